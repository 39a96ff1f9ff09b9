"""The decisions of a training script at which scripts make mistakes. The worker and the loop call them here.

``Script`` decides like a right script. INJECT=<name> uses a subclass whose methods are the functions of the same names
in the mistake's file (bench/mistakes); ``script`` is their self, so they do not import the training.
"""

import dataclasses
import functools
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench import mistakes
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.modes.base import Mode
from bench.training import checkpoint
from bench.workload import sharding, weights
from bench.workload.base import Workload

ONE_VALUE = "Expected more than 1 value per channel"  # torch's batch norm, when it trains


class Script:
    """Every decision is called on every rank. noted: a mistake's own counts by name, for the record."""

    def __init__(self, config: RunConfig, mode: Mode, workload: Workload):
        self.config, self.mode, self.workload, self.topology = config, mode, workload, mode.topology
        self.noted = defaultdict(Counter)

    # --- decisions ------------------------------------------------------------------------------------------------

    def order(self, num_images: int, seed: int, epoch: int) -> np.ndarray:
        """The images of one epoch in the order of the global batches: device d of D takes every D-th from the d-th."""
        return self.permutation(num_images, seed, epoch)

    def epoch_images(self, num_images: int) -> int:
        """The number of images in an epoch, over all devices, by the script's count."""
        return num_images

    def prepare_data(self, train_set) -> None:
        """Change the training set before its first batch."""

    def recipe(self) -> RunConfig:
        return self.config

    def build_model(self, num_outputs: int, say) -> nn.Module:
        """The plain model with its first weights; ``say`` gets a sentence about weights not loaded or frozen."""
        return self.workload.model(self.config, self.topology.rank, say)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss for backward: outputs [b, …], targets [b, …] -> a scalar, the mean over the batch."""
        return self.workload.loss(outputs, targets)

    def forward(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple:
        """The forward pass of a step: (outputs, loss). Raises UserError if a batch norm gets one value per channel,
        which has no variance."""
        try:
            outputs, loss = self.workload.step(model, inputs, targets, self.loss)
        except Exception as error:  # a compiled model, or a replica of DataParallel, raises another class
            if self.config.per_device_batch > 1 or ONE_VALUE not in str(error):
                raise
            size = f" at IMAGE_SIZE={self.config.image_size}" if self.config.image_size else ""
            raise UserError(
                f"BATCH=1: batch norm needs at least two values per channel, but MODEL={self.config.model}{size} "
                "has one: use BATCH=2 or more, or NORM=group"
            ) from error
        return outputs, loss.mean() if loss.dim() else loss  # nn.DataParallel returns a vector of its replicas' losses

    def sum_counts(self, counts: torch.Tensor) -> torch.Tensor:
        """A validation's counts of this rank's share -> those of the whole validation set."""
        return self.mode.reduce(counts, "sum")

    def save(self, path: Path, state: dict) -> None:
        if self.topology.rank == 0:
            checkpoint.save(path, state)

    # --- what a mistake may use -----------------------------------------------------------------------------------

    @property
    def right(self) -> "Script":
        return Script(self.config, self.mode, self.workload)

    def permutation(self, num_images: int, seed: int, epoch: int) -> np.ndarray:
        return sharding.epoch_permutation(num_images, seed, epoch)

    def interleaved(self, ranks: list[np.ndarray]) -> np.ndarray:
        """One order for all: rank r's k-th index is the (k x ranks + r)-th, as ``order`` wants it."""
        return np.stack(ranks, axis=1).ravel()

    def seeds_by_place(self, num_images: int):
        """A function: draws [B] -> augmentation seeds [B], by the place of each draw in its rank's stream."""
        return functools.partial(seeds_by_place, self.config.seed, num_images, self.topology.num_devices)

    def fresh_model(self, num_outputs: int, say) -> nn.Module:
        """The plain model with random weights, without PRETRAINED."""
        return self.workload.model(self.without(pretrained=None), self.topology.rank, say)

    def without(self, **changes) -> RunConfig:
        return dataclasses.replace(self.config, mistake="none", **changes)

    def read_weights(self, path: str) -> dict[str, torch.Tensor]:
        """The weights in the file of PRETRAINED, by their names in the plain model."""
        path, content = weights.read_named(path, self.config.trust)
        return weights.weights_in(content, path)

    def read_checkpoint(self, path: Path) -> dict | None:
        """None for a file that cannot be read."""
        try:
            return weights.read(path)
        except UserError:
            return None

    def impossible(self, why: str) -> UserError:
        return UserError(f"INJECT={self.config.mistake} {why}")

    def seen(self) -> dict:
        return {name: dict(counts) for name, counts in self.noted.items()}


def make_script(config: RunConfig, mode: Mode, workload: Workload, mistake: str = "none") -> Script:
    """mistake: a name in MISTAKES; its ``overrides`` are the methods of a subclass. Raises AttributeError for a method
    that ``Script`` does not have."""
    overrides = {} if mistake == "none" else mistakes.MISTAKES[mistake].overrides
    for decision in overrides:
        if not callable(getattr(Script, decision, None)):
            raise AttributeError(f"INJECT={mistake} overrides {decision}, which is not a decision of a script")
    kind = type("MistakenScript", (Script,), dict(overrides)) if overrides else Script
    return kind(config, mode, workload)


def seeds_by_place(seed: int, num_images: int, num_devices: int, draws: np.ndarray) -> np.ndarray:
    """draws [B] -> [B] uint32. Not a method: loader workers may pickle it."""
    from bench.workload.images.augment import example_seeds  # torchvision takes half a second

    epochs, indices = np.divmod(draws, num_images)
    places = np.empty(len(draws), dtype=np.int64)
    for epoch in np.unique(epochs):
        of_image = np.argsort(sharding.epoch_permutation(num_images, seed, int(epoch)))
        places[epochs == epoch] = epoch * num_images + of_image[indices[epochs == epoch]]
    return example_seeds(seed, places // num_devices)
