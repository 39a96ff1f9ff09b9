"""What a run was observed to do: every rank's part, and how rank 0 puts the parts together.

A run has checks of its own, where a ``Watch`` has to listen to a script: it can ask its own loop. What costs nothing
while steps are timed is always there: hashes at the start and the end, the examples that the loader's own sampler drew,
metrics that every rank holds anyhow. With WATCH=1 there are more, some of them before the model is built; those that
slow a step down are taken away when the timed steps begin.
"""

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch.utils.data import Dataset, Sampler

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
LR_SAMPLES = 997  # places of the schedule at which its highest is looked for; a prime, so as not to fall in with cycles


@dataclass(frozen=True)
class Trained:
    """What a run has trained, at its end. sampler: of its loader, to be walked again. rows: this rank's own epochs, as
    ``Epochs`` has them. facts: of this rank's part of the record. first_step: that this run began with."""

    trainer: Trainer
    train_set: Dataset
    val_set: Dataset | None
    sampler: Sampler
    rows: list[dict]
    facts: dict
    first_step: int


class Check(Hook):
    """One thing that is observed of a run, from its construction to ``part``.

    joins: key of ``observed`` -> the function that makes it of the ranks' parts, as of a Watch's probes.
    """

    joins: ClassVar[dict[str, Callable]] = {}

    def close(self) -> None:
        """Take down what was put up."""

    def part(self, trained: Trained) -> dict:
        """This rank's part for each key of ``joins``; None for what was not seen."""


# --- always ---------------------------------------------------------------------------------------------------------


class Weights(Check):
    """The plain model's parameters and buffers as hashes, every tensor whole, at the start and the end."""

    joins: ClassVar = {"start": columns, "end": columns}

    def __init__(self, trainer: Trainer):
        self.start = self.state(trainer)

    def state(self, trainer: Trainer) -> dict[str, str]:
        """As hashes. Every rank must ask for it."""
        return state_of(trainer.mode.unwrap(trainer.model), trainer.mode.full_state(trainer.model))

    def part(self, trained: Trained) -> dict:
        return {"start": self.start, "end": self.state(trained.trainer)}


class Drawn(Check):
    """The examples of this rank's first steps, where the whole epochs begin and end among them, and by which seeds they
    were augmented."""

    joins: ClassVar = {
        "data": lambda parts: coverage([part["walks"] for part in parts], parts[0]["num_images"]),
        "augmentation": lambda streams: {"streams": streams},
    }

    def part(self, trained: Trained) -> dict:
        return {"data": self.data(trained), "augmentation": self.augmentation(trained)}

    def data(self, trained: Trained) -> dict:
        """The walks of coverage.py."""
        number, batch = len(trained.train_set), trained.trainer.config.global_batch
        ends = [0, *(row["steps"] for row in trained.rows)]
        if not trained.rows:
            ends = [0, *steps_of_epochs(number, len(trained.sampler) * batch // number, batch)]
        first = trained.first_step  # the epoch in which a run is resumed is not whole
        epochs = [(a - first, b - first) for a, b in itertools.pairwise(ends) if a > first or a == first == 0]
        ranks = trained.trainer.mode.topology.world_size
        steps = [draws % number for draws in first_steps(trained.sampler, ranks, epochs)]
        return {"walks": walks_of(steps, epochs), "num_images": number}

    def augmentation(self, trained: Trained) -> str | None:
        """A hash of the seeds; None without augmentation."""
        seeds_of = getattr(trained.train_set, "augmentation_seeds", None)
        if not (trained.trainer.config.augment and seeds_of):
            return None
        first = itertools.islice(trained.sampler, FINGERPRINTED_STEPS)
        return hash_of(seeds_of(draws).tobytes() for draws in first)


class Reported(Check):
    """What this rank would print of its epochs."""

    joins = Metrics.joins

    def part(self, trained: Trained) -> dict:
        rows = [row for row in trained.rows if row["steps"] > trained.first_step]
        return {"reported": reported(rows, trained.val_set, trained.trainer.workload.info.metrics[0].key)}


class NormLayers(Check):
    """The batch norms, and how many examples one of them sees."""

    joins = Norms.joins

    def part(self, trained: Trained) -> dict:
        trainer = trained.trainer
        return {"norm": norm_of(batch_norms(trainer.model), trainer.config.per_device_batch)}


# --- with WATCH=1 ---------------------------------------------------------------------------------------------------


class Written(Check):
    """The files below the run's folder that this rank writes."""

    joins = WrittenFiles.joins

    def __init__(self, run_dir: Path):
        self.writers = Writers(run_dir)

    def close(self) -> None:
        self.writers.close()

    def part(self, trained: Trained) -> dict:
        return {"writers": self.writers.result()}


class Loaded(Check):
    """What is loaded into modules, and how much of it finds its place."""

    joins = LoadedWeights.joins

    def __init__(self):
        self.loads = Loads()

    def close(self) -> None:
        self.loads.close()

    def part(self, trained: Trained) -> dict:
        return {"loads": self.loads.result()}


class FirstGradient(Check):
    """The gradients of the first step: a rank's own, before their exchange, and what the mode has made of them."""

    joins = Gradients.joins

    def __init__(self, trainer: Trainer):
        groups = trainer.optimizer.param_groups
        self.probe = GradientProbe(p for group in groups for p in group["params"])

    def after_synchronize(self) -> None:
        if self.probe.hooks:
            self.probe.look()
            self.close()

    def close(self) -> None:
        self.probe.close()

    def part(self, trained: Trained) -> dict:
        look, facts = self.probe.result(), trained.facts
        exchange = NO_MEAN.get(facts["gradient"].partition(";")[0], "mean")
        kind = "PowerSGD" if facts["compression"] == "powersgd" else exchange
        return {"gradient": look and {"looks": [look], "passes": self.probe.passes, "kind": kind}}


class HostWaits(Check):
    """Lines of the loop and the modes that make the host wait for the device in an untimed step."""

    joins = Waits.joins

    def __init__(self, trainer: Trainer):
        modes = str(Path(inspect.getfile(type(trainer.mode))).parent)
        files = inspect.getfile(type(trainer)), inspect.getfile(injected), modes
        asked_for = Trainer.update.__name__, Trainer.save_snapshot.__name__  # by LOSS_GUARD and SNAPSHOTS
        self.waits = HostSyncs(trainer.device.type == "cuda", files, asked_for)

    def before_step(self) -> None:
        self.waits.step_begins()

    def after_step(self) -> None:
        self.waits.step_ends()

    def close(self) -> None:
        self.waits.close()

    def part(self, trained: Trained) -> dict:
        return {"host_syncs": self.waits.result()}


CHECKS = (Weights, Drawn, Reported, NormLayers, Written, Loaded, FirstGradient, HostWaits)


class Observer:
    """The checks of one process of a run."""

    def __init__(self, config: RunConfig, run_dir: Path):
        self.config = config
        self.checks: list[Check] = [Written(run_dir), Loaded()] if config.watch else []  # before the model is built
        self.untimed: list[Check] = []  # those that slow a step down
        self.sampler: Sampler | None = None  # of the run's loader, once it is there

    def start(self, trainer: Trainer) -> None:
        """The model is wrapped, and nothing has been trained in this run."""
        self.trainer, self.first_step = trainer, trainer.step
        self.checks += [Weights(trainer), Drawn(), Reported(), NormLayers()]
        if self.config.watch:
            self.untimed = [HostWaits(trainer)]
            if trainer.mode.topology.world_size > 1 and trainer.mode.replicated:
                self.untimed.append(FirstGradient(trainer))
            self.checks += self.untimed
            trainer.hooks += self.untimed

    def timing_starts(self) -> None:
        """From here on steps are timed: nothing of what slows one down stays."""
        for check in self.untimed:
            check.close()
            self.trainer.hooks.remove(check)
        self.untimed = []

    def part(self, train_set, val_set, rows: list[dict], facts: dict) -> dict:
        """This rank's part of ``observed``, at the end; arguments: see ``Trained``."""
        self.timing_starts()
        trained = Trained(self.trainer, train_set, val_set, self.sampler, rows, facts, self.first_step)
        seen = {}
        for check in self.checks:
            check.close()
            seen |= check.part(trained)
        return seen

    def together(self, parts: list[dict]) -> dict:
        """``observed`` of the run. parts: one per rank, as gathered for the record, each with its part here."""
        topology = self.trainer.mode.topology
        known = {"num_devices": topology.num_devices, "global_batch": self.config.global_batch,
                 "loader_workers_total": sum(part["loader_workers"] for part in parts)}  # fmt: skip
        known = from_samples(self.config, known, parts)
        known["learning_rate"] = self.learning_rate(parts[0]["observed"]["data"]["num_images"])
        joins = {key: join for check in CHECKS for key, join in check.joins.items()}
        observed, _ = put_together([part.pop("observed") for part in parts], known, joins)
        return observed

    def learning_rate(self, num_images: int) -> dict | None:
        """The highest learning rate of the schedule that the loop asks at every step."""
        config = self.config
        if config.lr_batch is None:
            return None
        images = config.epochs * num_images or (config.warmup_steps + config.timed_steps) * config.global_batch
        used = max(self.trainer.lr_of(images * i // LR_SAMPLES) for i in range(LR_SAMPLES))
        return rate_of(used, config.lr, config.global_batch, config.lr_batch)


def reported(rows: list[dict], val_set, metric: str) -> dict | None:
    """What this rank would print of its epochs; None where nothing was validated. metric: the workload's first."""
    if not rows or any(row.get(metric) is None for row in rows):
        return None
    return {metric: [row[metric] for row in rows], "images": [row["images"] for row in rows],
            "val_images": len(val_set)}  # fmt: skip
