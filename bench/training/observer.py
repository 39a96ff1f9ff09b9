"""The observations of a run: every rank's part, and how rank 0 combines them.

Observations without cost in timed steps are always on. WATCH=1 adds more, some of them before the model is built;
those that slow down a step are removed before the timed steps.
"""

import inspect
import itertools
from pathlib import Path

from torch.utils.data import Sampler

from bench.config.options import RunConfig
from bench.observe import coverage, gradients, loads, metrics, probe, waits, weights, writers
from bench.record.observed import from_samples, rate_of
from bench.training import hooks
from bench.training.loop import Trainer
from bench.workload.sharding import FINGERPRINTED_STEPS, steps_of_epochs

NO_MEAN = {"Adasum": "Adasum", "each process its own": "none"}  # a mode's gradient in words -> kind of exchange
LR_SAMPLES = 997  # points of the schedule where its maximum is searched; a prime, so as not to coincide with cycles
# Key of ``observed`` -> the function that makes it from the ranks' parts.
JOINS = {
    "start": probe.columns,
    "end": probe.columns,
    "data": lambda parts: coverage.coverage([part["walks"] for part in parts], parts[0]["num_images"]),
    "augmentation": lambda streams: {"streams": streams},
    **metrics.Metrics.joins,
    **weights.Norms.joins,
    **writers.WrittenFiles.joins,
    **loads.LoadedWeights.joins,
    **gradients.Gradients.joins,
    **waits.Waits.joins,
}


class FirstGradient(hooks.Hook):
    def __init__(self, trainer: Trainer):
        self.probe = gradients.GradientProbe(p for group in trainer.optimizer.param_groups for p in group["params"])

    def after_synchronize(self) -> None:
        if self.probe.hooks:
            self.probe.look()
            self.probe.close()

    def close(self) -> None:
        self.probe.close()

    def result(self, facts: dict) -> dict | None:
        exchange = NO_MEAN.get(facts["gradient"].partition(";")[0], "mean")
        kind = "PowerSGD" if facts["compression"] == "powersgd" else exchange
        look = self.probe.result()
        return look and {"looks": [look], "passes": self.probe.passes, "kind": kind}


class HostWaits(hooks.Hook):
    """Lines of the loop and the modes that make the host wait for the device in an untimed step."""

    def __init__(self, trainer: Trainer):
        modes = str(Path(inspect.getfile(type(trainer.mode))).parent)
        files = inspect.getfile(type(trainer)), inspect.getfile(hooks), modes
        by_option = (Trainer.update, Trainer.save_snapshot, Trainer.count_left_out)  # LOSS_GUARD, SNAPSHOTS, REPLICAS
        self.waits = waits.HostSyncs(trainer.device.type == "cuda", files, tuple(f.__name__ for f in by_option))
        self.before_step, self.after_step = self.waits.step_begins, self.waits.step_ends
        self.close = self.waits.close


class Observer:
    """One process's observations of its run. sampler: of the run's loader, once it exists."""

    sampler: Sampler | None = None
    gradient: FirstGradient | None = None

    def __init__(self, config: RunConfig, run_dir: Path):
        self.config = config
        self.untimed = []  # hooks that slow down a step
        if config.watch:  # before the model is built
            self.writers, self.loads = writers.Writers(run_dir), loads.Loads()

    def start(self, trainer: Trainer) -> None:
        self.trainer, self.first_step = trainer, trainer.step
        self.start_state = self.state()
        if self.config.watch:
            self.waits = HostWaits(trainer)
            self.untimed = [self.waits]
            if trainer.mode.topology.world_size > 1 and trainer.mode.replicated:
                self.gradient = FirstGradient(trainer)
                self.untimed.append(self.gradient)
            trainer.hooks += self.untimed

    def state(self) -> dict[str, str]:
        """Hashes of parameters and buffers, of complete tensors. Every rank calls it."""
        mode, model = self.trainer.mode, self.trainer.model
        return weights.state_of(mode.unwrap(model), mode.full_state(model))

    def timing_starts(self) -> None:
        for hook in self.untimed:
            hook.close()
            self.trainer.hooks.remove(hook)
        self.untimed = []

    def part(self, train_set, val_set, rows: list[dict], facts: dict) -> dict:
        """This rank's part of ``observed``, at the end. rows: of its epochs. facts: of its part of the record."""
        self.timing_starts()
        seen = {}
        if self.config.watch:
            self.writers.close()
            self.loads.close()
            seen = {"writers": self.writers.result(), "loads": self.loads.result()}
            seen["host_syncs"] = self.waits.waits.result()
        if self.gradient:
            seen["gradient"] = self.gradient.result(facts)
        return seen | {
            "start": self.start_state,
            "end": self.state(),
            "data": self.data(len(train_set), rows),
            "augmentation": self.augmentation(train_set),
            "reported": self.reported(rows, val_set),
            "norm": weights.norm_of(weights.batch_norms(self.trainer.model), self.config.per_device_batch),
        }

    def data(self, number: int, rows: list[dict]) -> dict:
        """The examples of this rank's first steps, and where complete epochs begin and end among them."""
        batch, first = self.config.global_batch, self.first_step
        ends = [0, *(row["steps"] for row in rows)]
        if not rows:
            ends = [0, *steps_of_epochs(number, len(self.sampler) * batch // number, batch)]
        # The epoch in which a run is resumed is incomplete.
        epochs = [(a - first, b - first) for a, b in itertools.pairwise(ends) if a > first or a == first == 0]
        ranks = self.trainer.mode.topology.world_size
        steps = [draws % number for draws in coverage.first_steps(self.sampler, ranks, epochs)]
        return {"walks": coverage.walks_of(steps, epochs), "num_images": number}

    def augmentation(self, train_set) -> str | None:
        seeds_of = getattr(train_set, "augmentation_seeds", None)
        if not (self.config.augment and seeds_of):
            return None
        first = itertools.islice(self.sampler, FINGERPRINTED_STEPS)
        return weights.hash_of(seeds_of(draws).tobytes() for draws in first)

    def reported(self, rows: list[dict], val_set) -> dict | None:
        rows = [row for row in rows if row["steps"] > self.first_step]
        metric = self.trainer.workload.info.metrics[0].key
        if not rows or any(row.get(metric) is None for row in rows):
            return None
        return {metric: [row[metric] for row in rows], "images": [row["images"] for row in rows],
                "val_images": len(val_set)}  # fmt: skip

    def join_over_ranks(self, parts: list[dict]) -> dict:
        """``observed`` of the run. parts: one per rank, as gathered for the record, each with its part from here."""
        known = {"num_devices": self.trainer.mode.topology.num_devices, "global_batch": self.config.global_batch,
                 "loader_workers_total": sum(part["loader_workers"] for part in parts)}  # fmt: skip
        known = from_samples(self.config, known, parts)
        known["learning_rate"] = self.learning_rate(parts[0]["observed"]["data"]["num_images"])
        observed, _ = probe.join_parts([part.pop("observed") for part in parts], known, JOINS)
        return observed

    def learning_rate(self, num_images: int) -> dict | None:
        config = self.config
        if config.lr_batch is None:
            return None
        images = config.epochs * num_images or (config.warmup_steps + config.timed_steps) * config.global_batch
        used = max(self.trainer.lr_of(images * i // LR_SAMPLES) for i in range(LR_SAMPLES))
        return rate_of(used, config.lr, config.global_batch, config.lr_batch)
