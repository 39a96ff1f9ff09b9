"""What a run was observed to do: every rank's part, and how rank 0 puts the parts together.

``Observer`` watches a run of this bench. What costs nothing while steps are timed it does always: hashes at the
start and the end, the images that the loader's own sampler drew, figures that every rank holds anyhow. With WATCH=1 it
puts probes up before the model is built and takes those that slow a step down when the timed
steps begin; without it there are none.
"""

import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path

from bench.config.options import RunConfig
from bench.observe.coverage import coverage, first_steps, walks_of
from bench.observe.gradients import GradientProbe, Gradients
from bench.observe.loads import LoadedWeights, Loads
from bench.observe.metrics import Metrics
from bench.observe.norms import Norms, batch_norms, norm_of
from bench.observe.together import columns, put_together
from bench.observe.waits import HostSyncs, Waits
from bench.observe.weights import hash_of, state_of
from bench.observe.writers import Writers, WrittenFiles
from bench.record.observed import from_samples, rate_of
from bench.training import injected
from bench.training.hooks import Hook
from bench.training.loop import Trainer
from bench.workload.sharding import FINGERPRINTED_STEPS, steps_of_epochs

NO_MEAN = {"Adasum": "Adasum", "each process its own": "none"}  # what a mode's facts call an exchange that is none
WAITING = ("update", "save_snapshot")  # methods of the trainer that wait as they should: LOSS_GUARD, SNAPSHOTS
LR_SAMPLES = 997  # places of the schedule at which its highest is looked for; a prime, so as not to fall in with cycles


class Observer:
    """Beside one process of a run."""

    def __init__(self, config: RunConfig, run_dir: Path):
        self.config = config
        self.gradient = self.waits = None
        self.writers, self.loads = (Writers(run_dir), Loads()) if config.watch else (None, None)

    def start(self, trainer: Trainer) -> None:
        """The model is wrapped, and nothing has been trained in this run."""
        self.trainer, self.first_step = trainer, trainer.step
        self.begun = self.state()
        if self.config.watch:
            modes = str(Path(inspect.getfile(type(trainer.mode))).parent)
            step = inspect.getfile(type(trainer)), inspect.getfile(injected), modes
            waiting = tuple(getattr(trainer, name).__name__ for name in WAITING)
            self.waits = HostSyncs(trainer.device.type == "cuda", step, waiting)
            if trainer.mode.topology.world_size > 1 and trainer.mode.replicated:
                self.gradient = FirstGradient(trainer.optimizer)
                trainer.hooks.append(self.gradient)

    def state(self) -> dict[str, str]:
        """The plain model's parameters and buffers as hashes, every tensor whole."""
        mode, model = self.trainer.mode, self.trainer.model
        return state_of(mode.unwrap(model), mode.full_state(model))

    def batches(self, loader) -> Iterator:
        """The loader's batches; its sampler is walked again at the end."""
        self.sampler = loader.sampler
        return self.waits.steps_of(loader) if self.waits else iter(loader)

    def timing_starts(self) -> None:
        """From here on steps are timed: nothing of what slows one down stays."""
        if self.waits:
            self.waits.close()
        if self.gradient in self.trainer.hooks:
            self.trainer.hooks.remove(self.gradient)
            self.gradient.probe.close()

    def part(self, dataset, val_set, rows: list[dict], facts: dict) -> dict:
        """This rank's part of ``observed``, at the end. rows: this rank's own epochs, as ``Epochs`` has them."""
        self.timing_starts()
        seen = {
            "start": self.begun,
            "end": self.state(),
            "data": self.data(dataset, rows),
            "reported": reported(
                [row for row in rows if row["steps"] > self.first_step],
                val_set,
                self.trainer.workload.info.metrics[0].key,
            ),
            "augmentation": self.augmentation(dataset),
            "norm": norm_of(batch_norms(self.trainer.model), self.config.per_device_batch),
            "gradient": self.gradient and self.gradient_part(facts),
            "host_syncs": self.waits and self.waits.result(),
        }
        for name in ("writers", "loads"):
            if probe := getattr(self, name):
                probe.close()
                seen[name] = probe.result()
        return seen

    def gradient_part(self, facts: dict) -> dict | None:
        """The gradients of the first step, and how the mode exchanges them."""
        kind = (
            "PowerSGD"
            if facts["compression"] == "powersgd"
            else NO_MEAN.get(facts["gradient"].partition(";")[0], "mean")
        )
        look = self.gradient.probe.result()
        return look and {"looks": [look], "passes": self.gradient.probe.passes, "kind": kind}

    def data(self, dataset, rows: list[dict]) -> dict:
        """The images of this rank's first steps, and where the whole epochs begin and end among them."""
        ends = [0, *(row["steps"] for row in rows)]
        if not rows:
            walked = len(self.sampler) * self.config.global_batch // len(dataset)
            ends = [0, *steps_of_epochs(len(dataset), walked, self.config.global_batch)]
        first = self.first_step  # the epoch in which a run is resumed is not whole
        epochs = [(a - first, b - first) for a, b in itertools.pairwise(ends) if a > first or a == first == 0]
        ranks = self.trainer.mode.topology.world_size
        steps = [draws % len(dataset) for draws in first_steps(self.sampler, ranks, epochs)]
        return {"walks": walks_of(steps, epochs), "num_images": len(dataset)}

    def augmentation(self, dataset) -> str | None:
        """A hash of the seeds that the first steps' images were augmented by; None without augmentation."""
        seeds_of = getattr(dataset, "augmentation_seeds", None)
        if not (self.config.augment and seeds_of):
            return None
        return hash_of(seeds_of(draws).tobytes() for draws in itertools.islice(self.sampler, FINGERPRINTED_STEPS))

    def together(self, parts: list[dict]) -> dict:
        """``observed`` of the run. parts: one per rank, as gathered for the record, each with its part here."""
        topology = self.trainer.mode.topology
        known = {"num_devices": topology.num_devices, "global_batch": self.config.global_batch,
                 "loader_workers_total": sum(part["loader_workers"] for part in parts)}  # fmt: skip
        known = from_samples(self.config, known, parts)
        known["learning_rate"] = self.learning_rate(parts[0]["observed"]["data"]["num_images"])
        observed, _ = put_together([part.pop("observed") for part in parts], known, JOINS)
        return observed

    def learning_rate(self, num_images: int) -> dict | None:
        """The highest learning rate of the schedule that the loop asks at every step."""
        config = self.config
        if config.lr_batch is None:
            return None
        images = config.epochs * num_images or (config.warmup_steps + config.timed_steps) * config.global_batch
        used = max(self.trainer.lr_of(images * i // LR_SAMPLES) for i in range(LR_SAMPLES))
        return rate_of(used, config.lr, config.global_batch, config.lr_batch)


class FirstGradient(Hook):
    """The gradients of the first step: a rank's own, before their exchange, and what the mode has made of them."""

    def __init__(self, optimizer):
        self.probe = GradientProbe(p for group in optimizer.param_groups for p in group["params"])

    def after_synchronize(self) -> None:
        if self.probe.hooks:
            self.probe.look()
            self.probe.close()


def reported(rows: list[dict], val_set, metric: str) -> dict | None:
    """What this rank would print of its epochs; None where nothing was validated. metric: the workload's first."""
    if not rows or any(row.get(metric) is None for row in rows):
        return None
    return {metric: [row[metric] for row in rows], "images": [row["images"] for row in rows],
            "val_images": len(val_set)}  # fmt: skip


# What a run of this bench is observed in, which asks its own loop where a Watch has to listen.
JOINS = {
    "start": columns, "end": columns, **Metrics.joins, **WrittenFiles.joins, **Gradients.joins, **LoadedWeights.joins,
    **Norms.joins, **Waits.joins,
    "data": lambda parts: coverage([part["walks"] for part in parts], parts[0]["num_images"]),
    "augmentation": lambda streams: {"streams": streams},
}  # fmt: skip
