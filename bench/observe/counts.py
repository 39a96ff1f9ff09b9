"""Steps and images of a rank, and how long its steps wait for data."""

import statistics
import time
from typing import ClassVar

import torch

from bench.observe.probe import Probe

TIMED_STEPS = 10_000


class Counts(Probe):
    """images: of the first batch, 0 where its length is not known. batches, optimizer_steps: how many there were."""

    images = batches = optimizer_steps = depth = 0

    def trained(self, loader, batch) -> None:
        self.batches += 1
        if self.batches == 1:
            self.images = length_of(batch)

    def before_step(self, optimizer) -> None:
        self.depth += 1

    def after_step(self, optimizer) -> None:
        self.depth -= 1
        self.optimizer_steps += self.depth == 0

    def images_per_step(self) -> int:
        """Images of this rank that one step of the optimizer is made of."""
        return self.images * max(1, round(self.batches / max(1, self.optimizer_steps)))


def length_of(batch) -> int:
    """Examples in a batch: the length of the first tensor in it; 0 without one."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((length for item in items if (length := length_of(item))), 0)


def loader_of(parts: list[dict]) -> dict:
    """The share of the median step of each rank, and the workers of all."""
    return {"wait_share": [part["wait_share"] for part in parts], "workers": sum(part["workers"] for part in parts)}


class DataWaits(Probe):
    """The share of each step that was spent waiting for its batch."""

    joins: ClassVar = {"loader": loader_of}
    silent: ClassVar = {"loader": "no step was seen"}
    workers, began = 0, None

    def begin(self, loader) -> None:
        self.workers, self.shares = getattr(loader, "num_workers", 0), []

    def asked(self, loader) -> None:
        self.began = self.began or time.perf_counter()

    def fetched(self, loader, batch) -> None:
        self.got = time.perf_counter()

    def trained(self, loader, batch) -> None:
        now = time.perf_counter()
        if len(self.shares) < TIMED_STEPS:
            self.shares.append((self.got - self.began) / (now - self.began))
        self.began = now

    def epoch_ended(self, loader, batches: int, whole: bool) -> None:
        self.began = None

    def part(self) -> dict:
        if not getattr(self, "shares", None):
            return {}
        return {"loader": {"wait_share": statistics.median(self.shares), "workers": self.workers}}
