"""REPLICAS=1: the distance of a run's replicas after every step, and the metrics of each. It happens between the steps,
but it disturbs caches and makes ranks wait for each other, so such a run measures no speed."""

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from bench import formulas
from bench.modes.base import Mode
from bench.training.averages import estimate_statistics, forward_passes
from bench.training.hooks import Hook
from bench.training.loop import Trainer

MOST_POINTS = 1000  # with more steps only every second, third, … is compared
NOTE = (
    "REPLICAS=1: the weights are compared between the steps and every rank is validated separately: this run measures "
    "no speed. If the replicas differ, accuracy/epochs, whose validation is sharded over the ranks, mixes several "
    "models: each model's metrics are in samples/0/replicas, and a checkpoint holds rank 0's"
)


class Replicas(Hook):
    """trainer: before its first step. steps: their number. judge: the loss and metrics of this process's current model
    on the whole validation set. epoch: this rank's training batches of one epoch. Every rank has one."""

    def __init__(self, trainer: Trainer, steps: int, judge: Callable[[], dict], epoch: Iterable):
        self.trainer, self.judge, self.epoch = trainer, judge, epoch
        self.every = max(1, math.ceil(steps / MOST_POINTS))
        self.mode, self.model = trainer.mode, trainer.mode.unwrap(trainer.model)
        self.layers = {}  # conv1, bn1, layer1, …, fc: the first part of the parameters' names
        for name, parameter in self.model.named_parameters():
            self.layers.setdefault(name.partition(".")[0], []).append(parameter)
        self.steps, self.learning_rates, self.taken, self.distances = [], [], [], []
        self.metric = trainer.workload.info.metrics[0].key
        self.ranks_metric, self.ranks_loss, self.average = [], [], {}
        self.skipped, self.last = trainer.skipped_steps, trainer.step + steps
        if self.mode.topology.world_size > 1:  # one process has one set of weights
            self.compare()
            trainer.hooks.append(self)

    def after_step(self) -> None:
        trainer = self.trainer
        trainer.count_left_out()
        if trainer.skipped_steps == self.skipped:
            self.learning_rates.append(trainer.optimizer.param_groups[0]["lr"])
        self.skipped = trainer.skipped_steps
        if trainer.step % self.every == 0 or trainer.step == self.last:
            self.compare()
        trainer.clock.resume()

    def compare(self) -> None:
        self.steps.append(self.trainer.step)
        self.taken.append(len(self.learning_rates))
        self.distances.append(distances(self.mode, self.layers))

    def end_epoch(self) -> None:
        found = self.mode.gather(self.judge())
        self.ranks_metric.append([each[self.metric] for each in found])
        self.ranks_loss.append([each["loss"] for each in found])

    def end_training(self) -> None:
        """Validate the mean of the weights over the ranks: with the mean of the ranks' buffers, then with batch norm's
        statistics re-estimated on one epoch. The replicas are unchanged."""
        if self.mode.topology.world_size == 1:
            return
        own = copy.deepcopy(self.model.state_dict())
        average(self.mode, self.model)
        self.average = {"averaged_buffers": self.judge()}
        with self.trainer.autocast:
            has_norms = estimate_statistics(self.mode, self.model, forward_passes(self.trainer, self.epoch))
        if has_norms:
            self.average["estimated_statistics"] = self.judge()
        self.model.load_state_dict(own)

    def result(self) -> dict:
        factors = self.theory() or []
        return {
            "steps": self.steps,
            "lr": [digits(self.learning_rates[n - 1]) if n else None for n in self.taken],
            "distance": [digits(math.hypot(*point)) for point in self.distances],
            "by_layer": {name: [digits(point[i]) for point in self.distances] for i, name in enumerate(self.layers)},
            "theory": [digits(factors[n]) for n in self.taken] if factors else None,
            f"ranks_{self.metric}": self.ranks_metric,
            "ranks_loss": self.ranks_loss,
            "average": self.average,
        }

    def theory(self) -> list[float] | None:
        """The factor of the distance after every step taken; None if there is no closed form for all weights: some are
        frozen and do not decay, the exchange is Adasum, or the optimizer has none."""
        config = self.trainer.config
        frozen = any(not parameter.requires_grad for parameter in self.model.parameters())
        if config.adasum or (frozen and config.weight_decay):
            return None
        return formulas.replica_distance_factors(
            self.learning_rates, config.optimizer, config.weight_decay, config.momentum, config.nesterov
        )


def digits(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


@torch.no_grad()
def distances(mode: Mode, layers: dict[str, list[nn.Parameter]]) -> list[float]:
    """The distance of the replicas by layer (``formulas.replica_distance``). Every rank calls it. Equal replicas give
    exactly 0: in float64, N times a float32 is exact, and so is its division by N; two replicas need no float64."""
    ranks = mode.topology.world_size
    exact = torch.float32 if ranks == 2 else torch.float64
    flat = torch.cat([p.detach().reshape(-1).to(exact) for parameters in layers.values() for p in parameters])
    flat -= mode.reduce(flat, "sum") / ranks
    parts = flat.split([sum(p.numel() for p in parameters) for parameters in layers.values()])
    squares = torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64).square() for part in parts])
    return [formulas.replica_distance(total, ranks) for total in mode.reduce(squares, "sum").tolist()]


@torch.no_grad()
def average(mode: Mode, model: nn.Module) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.copy_(mode.reduce(tensor, "mean"))
