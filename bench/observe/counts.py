"""Batches and images of a rank per epoch, and its waits for data."""

import statistics
import threading
import time
from typing import ClassVar

import torch

from bench.observe.examples import is_list, length_of
from bench.observe.gradients import is_horovod
from bench.observe.probe import NotObserved, Probe, columns
from bench.observe.view import Epoch, chosen

TIMED_STEPS = 10_000
FEWEST_STEPS = 4  # for a median wait
COUNTED_EPOCHS = 1000
FLAGS = ("joined", "wrapped")  # true if they are on any rank
LENGTHS = 200  # batches of an epoch whose length is recorded


class Counts(Probe):
    """Batches and images of each epoch, and optimizer steps, without the inner steps of a wrapped optimizer."""

    joins: ClassVar = {"steps": lambda ranks: columns(ranks) | {key: any(rank[key] for rank in ranks) for key in FLAGS}}
    silent: ClassVar = {"steps": "no step was observed"}

    def setup(self) -> None:
        self.epochs: dict[Epoch, list[int | None]] = {}  # the lengths of its first batches
        self.known: dict[Epoch, list[int]] = {}  # the same from their indices
        self.optimizer_steps = 0
        self.joined, self.open = False, set()

    def before_iter(self, epoch) -> None:
        self.open.add(epoch)
        if len(self.epochs) < COUNTED_EPOCHS:
            self.epochs[epoch], self.known[epoch] = [], []

    def epoch_ended(self, epoch) -> None:
        self.open.discard(epoch)

    def drawn(self, epoch, iterator, indices) -> None:
        known = self.known.get(epoch)
        if known is not None and len(known) < LENGTHS and is_list(indices) and indices[0] is not None:
            known.append(len(indices))

    def fetched(self, epoch, batch) -> None:
        epoch.evaluates |= not (self.watch.training and torch.is_grad_enabled())
        lengths = self.epochs.get(epoch)
        if lengths is not None and len(lengths) < LENGTHS:
            known = self.known[epoch]
            lengths.append(length_of(batch, known[len(lengths)] if len(lengths) < len(known) else None))

    def after_step(self, optimizer) -> None:
        if self.watch.stepping:
            return
        self.optimizer_steps += 1
        for epoch in self.open:
            epoch.optimizer_steps += 1
        joining = (getattr(each, "_join_config", None) for each in self.watch.ddp_models)
        self.joined |= any(getattr(each, "enable", False) for each in joining)

    @property
    def training(self) -> list[tuple[Epoch, list]]:
        return [(epoch, self.epochs[epoch]) for epoch in chosen(list(self.epochs))]

    @property
    def images(self) -> int:
        """Images of a training batch; 0 if unknown."""
        known = [length for _, lengths in self.training for length in lengths]
        return statistics.mode(known) or 0 if known else 0

    def images_per_step(self, steps: int | None = None) -> int:
        """Images of this rank in one step. steps: the number it has taken; None: that of its optimizers."""
        batches = sum(epoch.taken for epoch, _ in self.training)
        return self.images * max(1, round(batches / max(1, steps or self.optimizer_steps)))

    def part(self) -> dict:
        epochs = [(epoch, lengths) for epoch, lengths in self.training if epoch.taken]
        if not epochs:
            return {}
        inner = [length for epoch, lengths in epochs for length in lengths[: epoch.taken - epoch.whole]]
        sizes = set(inner) if inner else {epochs[0][1][0]}
        return {"steps": {
            "batches": [epoch.taken for epoch, _ in epochs],
            "images": sizes.pop() if len(sizes) == 1 else None,
            "joined": self.joined,
            "wrapped": bool(self.watch.ddp_models or any(map(is_horovod, self.watch.optimizers))),
        }}  # fmt: skip


class DataWaits(Probe):
    """The wait of each training step for its batch, in seconds and as a share of the step.

    wait_share: of the median step. wait_s: the wait that three quarters of the steps exceed; None on a GPU.
    """

    joins: ClassVar = {"loader": lambda parts: columns(parts) | {"workers": sum(part["workers"] for part in parts)}}
    silent: ClassVar = {"loader": f"fewer than {FEWEST_STEPS} steps after the first of an epoch were timed"}

    def setup(self) -> None:
        self.timed: dict[Epoch, list[tuple[float, float]]] = {}  # the wait and the whole step, in seconds
        self.now: dict[Epoch, tuple[float, float]] = {}  # when this step's batch was requested, and when it arrived
        self.workers = self.steps = 0
        self.fetching, self.training = set(), set()  # threads

    def before_iter(self, epoch) -> None:
        if self.steps < TIMED_STEPS:
            self.timed[epoch] = []
            self.workers = max(self.workers, getattr(epoch.loader, "num_workers", 0) or 0)

    def fetch_begins(self, epoch) -> None:
        if epoch in self.timed:
            self.fetching.add(threading.get_ident())
            self.now[epoch] = time.perf_counter(), 0.0

    def after_step(self, optimizer) -> None:
        self.training.add(threading.get_ident())

    def fetched(self, epoch, batch) -> None:
        if epoch in self.now:
            self.now[epoch] = self.now[epoch][0], time.perf_counter()

    def trained(self, epoch) -> None:
        if epoch in self.now and epoch.taken > 1 and self.steps < TIMED_STEPS:
            asked, got = self.now[epoch]
            self.timed[epoch].append((got - asked, time.perf_counter() - asked))
            self.steps += 1

    def epoch_ended(self, epoch) -> None:
        self.now.pop(epoch, None)

    def part(self) -> dict:
        if self.training and not self.training & self.fetching:
            return {"loader": NotObserved("batches are fetched in another thread than the training's")}
        steps = [step for epoch in chosen(list(self.timed)) for step in self.timed[epoch]]
        if len(steps) < FEWEST_STEPS:
            return {}
        share = statistics.median(wait / step for wait, step in steps)
        on_gpu = any(p.is_cuda for p in self.watch.model.parameters())
        wait = None if on_gpu else statistics.quantiles((wait for wait, _ in steps), n=4)[0]
        return {"loader": {"wait_share": share, "wait_s": wait, "workers": self.workers}}
