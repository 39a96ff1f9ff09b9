"""The known mistakes, made on purpose in a real run: MISTAKE=<name>, as bench/mistakes/__init__.py has them.

``Right`` is what a right script does at the places where scripts go wrong; the worker and the loop ask it there. Each
mistake is a class that answers one question wrongly, and its docstring has the wrong line as scripts have it. Half of
gradient-sum is in bench/modes, where gradients are exchanged. What a mistake leaves to be seen goes into the record as
``lab`` of each rank's sample.
"""

import dataclasses
import functools
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.training import checkpoint
from bench.workload import sharding
from bench.workload.images import models


class Right:
    """No mistake. ``mode`` is open; every method is asked on every rank."""

    def __init__(self, config: RunConfig, mode):
        self.config, self.mode, self.topology = config, mode, mode.topology

    def order(self, num_images: int, seed: int, epoch: int) -> np.ndarray:
        """The images of one epoch in the order of the global batches: device d of D takes every D-th from the d-th."""
        return sharding.epoch_permutation(num_images, seed, epoch)

    def epoch_images(self, num_images: int) -> int:
        """How many images an epoch trains on, over all devices, by the script's own reckoning."""
        return num_images

    def prepare_data(self, train_set) -> None:
        """Change the training set before its first batch."""

    def recipe(self) -> RunConfig:
        """The config from which optimizer and learning rate are made."""
        return self.config

    def build_model(self, num_classes: int, say) -> nn.Module:
        """The plain model with its first weights; ``say`` is told in sentences what stayed fresh."""
        return models.build_model(self.config, num_classes, self.topology.rank, say)

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """What backward starts from: outputs [b, classes], labels [b] -> a scalar, the mean over the images."""
        return nn.functional.cross_entropy(outputs, labels)

    def sum_counts(self, counts: torch.Tensor) -> torch.Tensor:
        """A validation's counts [4] of this rank's share -> those of the whole validation set."""
        return self.mode.reduce(counts, "sum")

    def save(self, path: Path, state: dict) -> None:
        """Write a checkpoint."""
        if self.topology.rank == 0:
            checkpoint.save(path, state)

    def seen(self) -> dict:
        """What this rank saw of its mistake, for the record."""
        return {}


class WholeData(Right):
    """``DataLoader(data, shuffle=True)`` on every rank, without a DistributedSampler: each walks its own permutation of
    the whole set. len(loader) is N times what it should be, and so are the epoch and the schedule made of it."""

    def order(self, num_images, seed, epoch):
        ranks = [sharding.epoch_permutation(num_images, seed + rank, epoch) for rank in range(self.topology.world_size)]
        return np.stack(ranks, axis=1).ravel()

    def epoch_images(self, num_images):
        return num_images * self.topology.world_size


class NoReshuffle(Right):
    """``for epoch in range(epochs): for batch in loader: …`` without ``sampler.set_epoch(epoch)``: the sampler stays in
    epoch 0. Random crops go on to be other ones."""

    def order(self, num_images, seed, epoch):
        return sharding.epoch_permutation(num_images, seed, 0)


class LostRemainder(Right):
    """``mine = range(rank * share, (rank + 1) * share)`` with ``share = len(data) // N``, cut to whole batches once:
    what is left over is in nobody's shard, in no epoch. Each rank shuffles its shard."""

    def order(self, num_images, seed, epoch):
        share = num_images // self.topology.world_size
        kept = self.epoch_images(num_images) // self.topology.world_size
        ranks = [rank * share + sharding.epoch_permutation(kept, seed + rank, epoch)
                 for rank in range(self.topology.world_size)]  # fmt: skip
        return np.stack(ranks, axis=1).ravel()

    def epoch_images(self, num_images):
        batch = self.config.global_batch // self.topology.world_size  # of one rank
        steps = num_images // self.topology.world_size // batch
        if not steps:
            raise UserError(f"MISTAKE=lost-remainder leaves no image: a rank's shard fills no batch of {batch}")
        return steps * self.config.global_batch


class SameAugmentation(Right):
    """``torch.manual_seed(seed)`` on every rank, and the transforms draw from it: the k-th image that a rank draws gets
    the k-th numbers of one stream, whichever rank it is."""

    def prepare_data(self, train_set):
        inner = getattr(train_set, "dataset", train_set)  # behind a simulated storage
        stream = self.config.seed, len(train_set), self.topology.num_devices
        inner.augmentation_seeds = functools.partial(seeds_by_place, *stream)


def seeds_by_place(seed: int, num_images: int, num_devices: int, draws: np.ndarray) -> np.ndarray:
    """A seed by the place of each draw in its rank's stream: draws [B] -> [B] uint32."""
    from bench.workload.images.augment import example_seeds  # torchvision takes half a second

    epochs, indices = np.divmod(draws, num_images)
    places = np.empty(len(draws), dtype=np.int64)
    for epoch in np.unique(epochs):
        of_image = np.argsort(sharding.epoch_permutation(num_images, seed, int(epoch)))
        places[epochs == epoch] = epoch * num_images + of_image[indices[epochs == epoch]]
    return example_seeds(seed, places // num_devices)


class RankMetrics(Right):
    """``print(f"accuracy {hits / images}")`` without an all_reduce of the two: each rank's figure is of its share."""

    def sum_counts(self, counts):
        return counts


class Rank0Collective(Right):
    """``if rank == 0: dist.all_reduce(counts)``: rank 0 waits in a collective that nobody else enters."""

    def sum_counts(self, counts):
        if self.topology.rank == 0:
            counts = self.mode.reduce(counts, "sum")
        return counts


class LrNotScaled(Right):
    """``SGD(model.parameters(), lr=LR)``, with the LR of another global batch."""

    def recipe(self):
        return dataclasses.replace(self.config, lr_batch=None, mistake="none")


class GradientSum(Right):
    """``dist.all_reduce(p.grad)`` without ``p.grad /= N`` (bench/modes); under DataParallel a loss of each device's
    chunk and ``losses.sum().backward()`` instead of ``losses.mean()``."""

    def loss(self, outputs, labels):
        devices = self.topology.devices_per_process
        chunks = zip(outputs.chunk(devices), labels.chunk(devices), strict=True)
        return torch.stack([super(GradientSum, self).loss(some, theirs) for some, theirs in chunks]).sum()


class StrictFalse(Right):
    """``torch.save(ddp_model.state_dict(), path)``, then ``model.load_state_dict(torch.load(path), strict=False)`` into
    the plain model: every key in the file begins with ``module.``, and none is the model's. A file of PRETRAINED whose
    keys have no prefix is read as if it had been saved so."""

    def build_model(self, num_classes, say):
        plain = dataclasses.replace(self.config, pretrained=None, mistake="none")
        model = models.build_model(plain, num_classes, self.topology.rank, say)
        path = Path(self.config.pretrained).expanduser()
        weights = checkpoint.weights_in(checkpoint.read(path, self.config.trust), path)
        model.load_state_dict({f"module.{key}": value for key, value in weights.items()}, strict=False)
        return model


class ManyWriters(Right):
    """``torch.save(state, path)`` on every rank, to one name. Whose the file is then is looked at after each write:
    the batch-norm statistics in it differ by rank."""

    def __init__(self, config, mode):
        super().__init__(config, mode)
        self.files = Counter()  # what a written file held -> how often

    def save(self, path, state):
        torch.save(state, path)
        self.mode.barrier()  # the lab's: the file is looked at when all have written
        if self.topology.rank == 0:
            self.files[whose(path)] += 1
        self.mode.barrier()

    def seen(self):
        return {"files": dict(self.files)}


def whose(path: Path) -> str:
    """Which rank's statistics a checkpoint's model has: "rank 1", "a mixture of ranks", "no rank" or "unreadable"."""
    try:
        state = checkpoint.read(path)
    except UserError:
        return "unreadable"
    owners = [
        {rank for rank, part in enumerate(state["ranks"]) if torch.equal(part["buffers"][name], state["model"][name])}
        for name in state["ranks"][0]["buffers"]
    ]
    if not owners:
        return "not known: no statistics"
    common = set.intersection(*owners)
    if common:
        return f"rank {min(common)}" if len(common) == 1 else "any rank: all are equal"
    return "a mixture of ranks" if all(owners) else "no rank"


SCRIPTS = {
    "none": Right,
    "whole-data": WholeData,
    "no-reshuffle": NoReshuffle,
    "rank-metrics": RankMetrics,
    "many-writers": ManyWriters,
    "rank0-collective": Rank0Collective,
    "lr-not-scaled": LrNotScaled,
    "same-augmentation": SameAugmentation,
    "gradient-sum": GradientSum,
    "strict-false": StrictFalse,
    "lost-remainder": LostRemainder,
}


def script_of(config: RunConfig, mode) -> Right:
    """What MISTAKE says, or nothing wrong."""
    return SCRIPTS[config.mistake](config, mode)
