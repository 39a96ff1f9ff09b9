"""What a run was observed to do: every rank's part, and how rank 0 puts the parts together.

``Observer`` watches a run of this bench. What costs nothing while steps are timed it does always: hashes at the
start and the end, the images that the loader's own sampler drew, figures that every rank holds anyhow. With WATCH=1 it
puts probes (bench/observe/probes.py) up before the model is built and takes those that slow a step down when the timed
steps begin; without it there are none.

``put_together`` makes ``observed`` (bench/record/observed.py) of the ranks' parts, for a run and for a Watch.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.config.options import RunConfig
from bench.observe.coverage import coverage, first_steps
from bench.observe.probes import GradientProbe, HostSyncs, Loads, Writers, batch_norms, hash_of, norm_of, state_of
from bench.record.observed import from_samples, rate_of
from bench.workload.sharding import FINGERPRINTED_STEPS, steps_of_epochs

NO_MEAN = {"Adasum": "Adasum", "each process its own": "none"}  # what a mode's facts call an exchange that is none
# Where a step's lines stand, and which of their functions wait because they were asked to: LOSS_GUARD, SNAPSHOTS.
STEP = tuple(str(Path(__file__).parents[1] / name) for name in ("training/loop.py", "modes"))
WAITING = ("update", "save_snapshot")
LR_SAMPLES = 997  # places of the schedule at which its highest is looked for; a prime, so as not to fall in with cycles


class Observer:
    """Beside one process of a run."""

    def __init__(self, config: RunConfig, run_dir: Path):
        self.config = config
        self.gradient = self.waits = None
        self.writers, self.loads = (Writers(run_dir), Loads()) if config.watch else (None, None)

    def start(self, trainer) -> None:
        """The model is wrapped, and nothing has been trained in this run."""
        self.trainer, self.first_step = trainer, trainer.step
        self.begun = self.state()
        if self.config.watch:
            self.waits = HostSyncs(trainer.device.type == "cuda", STEP, WAITING)
            if trainer.mode.topology.world_size > 1:
                self.look_after_synchronize()

    def state(self) -> dict[str, str]:
        """The plain model's parameters and buffers as hashes, every tensor whole."""
        mode, model = self.trainer.mode, self.trainer.model
        return state_of(mode.unwrap(model), mode.full_state(model))

    def look_after_synchronize(self) -> None:
        """Look at the gradients of the first step: before their exchange, and when the mode has exchanged them."""
        mode, optimizer = self.trainer.mode, self.trainer.optimizer
        self.gradient = GradientProbe(p for group in optimizer.param_groups for p in group["params"])
        synchronize = mode.synchronize

        def synchronize_and_look(optimizer) -> None:
            synchronize(optimizer)
            if self.gradient.hooks:
                self.gradient.look()
                self.gradient.close()

        mode.synchronize = synchronize_and_look
        self.give_back = lambda: setattr(mode, "synchronize", synchronize)

    def batches(self, loader) -> Iterator:
        """The loader's batches; its sampler is walked again at the end."""
        self.sampler = loader.sampler
        return self.waits.steps_of(loader) if self.waits else iter(loader)

    def timing_starts(self) -> None:
        """From here on steps are timed: nothing of what slows one down stays."""
        if self.waits:
            self.waits.close()
        if self.gradient:
            self.gradient.close()
            self.give_back()

    def part(self, dataset, val_set, rows: list[dict], facts: dict) -> dict:
        """This rank's part of ``observed``, at the end. rows: this rank's own epochs, as ``Epochs`` has them."""
        self.timing_starts()
        seen = {
            "start": self.begun,
            "end": self.state(),
            "data": self.data(dataset, rows),
            "reported": reported([row for row in rows if row["steps"] > self.first_step], val_set),
            "augmentation": self.augmentation(dataset),
            "norm": norm_of(batch_norms(self.trainer.model), self.config.per_device_batch),
            "gradient": self.gradient and self.gradient.result(),
            "host_syncs": self.waits and self.waits.result(),
        }
        if seen["gradient"]:
            kind = "PowerSGD" if facts["compression"] == "powersgd" else NO_MEAN.get(facts["gradient"], "mean")
            seen["gradient"]["kind"] = kind
        for name in ("writers", "loads"):
            if probe := getattr(self, name):
                probe.close()
                seen[name] = probe.result()
        return seen

    def data(self, dataset, rows: list[dict]) -> dict:
        """The images of this rank's first steps, and where the whole epochs begin and end among them."""
        ends = [0, *(row["steps"] for row in rows)]
        if not rows:
            epochs = len(self.sampler) * self.config.global_batch // len(dataset)
            ends = [0, *steps_of_epochs(len(dataset), epochs, self.config.global_batch)]
        first = self.first_step  # the epoch in which a run is resumed is not whole
        epochs = [(a - first, b - first) for a, b in itertools.pairwise(ends) if a > first or a == first == 0]
        ranks = self.trainer.mode.topology.world_size
        steps = [draws % len(dataset) for draws in first_steps(self.sampler, ranks, epochs)]
        return {"steps": steps, "num_images": len(dataset), "epochs": epochs}

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
        return put_together([part.pop("observed") for part in parts], known)

    def learning_rate(self, num_images: int) -> dict | None:
        """The highest learning rate of the schedule that the loop asks at every step."""
        config = self.config
        if config.lr_batch is None:
            return None
        images = config.epochs * num_images or (config.warmup_steps + config.timed_steps) * config.global_batch
        used = max(self.trainer.lr_of(images * i // LR_SAMPLES) for i in range(LR_SAMPLES))
        return rate_of(used, config.lr, config.global_batch, config.lr_batch)


def reported(rows: list[dict], val_set) -> dict | None:
    """What this rank would print of its epochs; None where nothing was validated."""
    if not rows or "top1" not in rows[0]:
        return None
    return {"top1": [row["top1"] for row in rows], "images": [row["images"] for row in rows],
            "val_images": len(val_set)}  # fmt: skip


# --- rank 0: the parts put together -------------------------------------------------------------------------------


def put_together(parts: list[dict], known: dict) -> dict:
    """``observed`` of the ranks' parts; what some rank did not observe is absent. known: what is known besides them."""
    observed = {"world_size": len(parts), **known}
    for name, join in JOINS.items():
        own = [part.get(name) for part in parts]
        if all(part is not None for part in own):
            observed[name] = join(own)
    return {name: value for name, value in observed.items() if value is not None}


def columns(parts: list[dict]) -> dict[str, list]:
    """A list by rank for each key that all ranks have."""
    return {key: [part[key] for part in parts] for key in parts[0] if all(key in part for part in parts)}


def data_of(parts: list[dict]) -> dict | None:
    """What the ranks drew. A part: steps (arrays of indices), num_images, epochs, and from a Watch two more.

    subset: [num_images], which images of another set of ``of`` images this rank's data set is made of. Where the ranks
    have different ones, their indices count in that other set. kind: of the data set's first examples. Where it
    differs the ranks read sets of their own, and the same index is not the same image: nothing is known then.
    """
    ranks, num_images = [part["steps"] for part in parts], parts[0]["num_images"]
    if len({part.get("kind") for part in parts}) > 1:
        return None
    subsets = [part.get("subset") for part in parts]
    if any(subset is not None for subset in subsets) and not all(np.array_equal(s, subsets[0]) for s in subsets):
        if any(subset is None for subset in subsets):
            return None
        ranks = [[subset[step] for step in steps] for subset, steps in zip(subsets, ranks, strict=True)]
        num_images = parts[0]["of"]
    return coverage(ranks, num_images, parts[0]["epochs"])


def reported_of(parts: list[dict]) -> dict:
    """What the ranks would print."""
    return columns(parts) | {"val_images": parts[0].get("val_images")}


def writers_of(parts: list[dict]) -> dict[str, list[int]]:
    """Which ranks wrote a file. On two machines the same name is two files."""
    ranks = {}
    for rank, part in enumerate(parts):
        for name in part["names"]:
            ranks.setdefault((part["host"], name), []).append(rank)
    several = {name for (_, name), writers in ranks.items() if len(writers) > 1}
    return {name: writers for (_, name), writers in ranks.items() if name not in several or len(writers) > 1}


def gradient_of(parts: list[dict]) -> dict | None:
    """The exchanged gradient G compared with m, the mean of the ranks' own: <G, m> / <m, m>, which is 1 for G = m."""
    if len({len(part["own"]) for part in parts}) > 1:
        return None
    mean = np.mean([part["own"] for part in parts], axis=0, dtype=np.float64)
    final = parts[0]["final"].astype(np.float64)
    with np.errstate(all="ignore"):
        ratio = finite(final @ mean / (mean @ mean))
    same = all(np.array_equal(part["final"], parts[0]["final"], equal_nan=True) for part in parts)
    return None if ratio is None else {"over_mean": ratio, "same_on_all_ranks": same, "kind": parts[0]["kind"]}


def norms_of(parts: list[dict]) -> dict:
    """disagreement: of the ranks' running means: the root mean square over all channels of the deviation over ranks,
    divided by the channel's mean running standard deviation."""
    norm = {name: value for name, value in parts[0].items() if name not in ("means", "variances")}
    means, variances = (np.stack([part[name] for part in parts]).astype(np.float64) for name in ("means", "variances"))
    if means.size:
        with np.errstate(all="ignore"):
            norm["disagreement"] = finite(np.sqrt((means.var(axis=0) / variances.mean(axis=0)).mean()))
    return norm


def finite(value) -> float | None:
    """A number that JSON has; None for one that is not finite."""
    return float(value) if np.isfinite(value) else None


def watched_rate(parts: list[dict]) -> dict | None:
    """A Watch's learning rate. images: of one optimizer step of one rank."""
    part = parts[0]
    return rate_of(part["used"], part["lr"], sum(part["images"] for part in parts), part["lr_batch"])


JOINS = {
    "start": columns,
    "end": columns,
    "data": data_of,
    "reported": reported_of,
    "writers": writers_of,
    "augmentation": lambda streams: {"streams": streams},
    "gradient": gradient_of,
    "loads": list,
    "norm": norms_of,
    "learning_rate": watched_rate,
    "host_syncs": lambda ranks: ranks[0],
    "loader": lambda ranks: {"wait_share": [rank["wait_share"] for rank in ranks],
                             "workers": sum(rank["workers"] for rank in ranks)},
}  # fmt: skip
