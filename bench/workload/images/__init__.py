"""Image classification: torchvision's networks on digits, small sets, photographs or random images.

Photographs are uint8 [B, 3, H, W] until they are on the device: a quarter of the bytes to copy."""

import importlib
from collections.abc import Callable

import torch
from torch import nn

from bench.config import data_sets
from bench.config.options import RunConfig
from bench.workload import base
from bench.workload.images import place
from bench.workload.loader import training_set


class Workload(base.Workload):
    def load(self, mode, say: Callable[[str], None]) -> tuple:
        kind, folder = place.find(self.config, mode, say)
        train_set, val_set = load_data(self.config, self.device, kind, folder)
        self.num_outputs, self.to_float = train_set.num_classes, ToFloat(train_set, self.device)
        self.classes = getattr(train_set, "classes", None)
        return train_set, val_set

    def prepare(self, inputs: torch.Tensor) -> torch.Tensor:
        """[b, 3, H, W] uint8 or float32 -> float32 on the device, in the memory format of the model."""
        images = self.to_float(inputs.to(self.device, non_blocking=True))
        return images.contiguous(memory_format=torch.channels_last) if self.config.channels_last else images

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def count(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[3]: the sum of the losses, the top-1 and the top-5 hits."""
        loss = nn.functional.cross_entropy(outputs, targets, reduction="sum")
        hits = outputs.topk(min(5, outputs.shape[1])).indices == targets[:, None]  # [b, 5]
        return torch.stack([loss, hits[:, 0].sum(), hits.sum()])

    def blank(self) -> torch.Tensor:
        return torch.zeros(1, 3, self.config.image_size, self.config.image_size)

    def sample(self, train_set) -> tuple:
        inputs, targets = self.planned(2)  # photographs need not be decoded
        return inputs.float(), targets

    def planned(self, examples: int) -> tuple:
        dtype = torch.float32 if data_sets.info_of(self.config.data).numbers else torch.uint8
        size = self.config.image_size
        return (torch.empty(examples, 3, size, size, dtype=dtype, device="meta"),
                torch.empty(examples, dtype=torch.long, device="meta"))  # fmt: skip


def load_data(config: RunConfig, device: torch.device, kind: str | None = None, folder=None) -> tuple:
    """The training set and the validation set (or None). kind, folder: from ``place.find``. Raises UserError for files
    that cannot be used, and if one step needs more images than there are."""
    kind = kind or data_sets.data_kind(config.data)[0]
    module = importlib.import_module(f"bench.workload.images.{data_sets.DATA_SETS[kind].module}")
    train_set, val_set = module.load(config, device, kind, folder)
    return training_set(config, train_set, "images"), val_set


class ToFloat:
    """Normalise uint8 images [B, 3, H, W] on the device by a data set's ``mean`` and ``std`` per channel, of pixels in
    0..1. float32 images stay as they are."""

    def __init__(self, dataset, device: torch.device):
        if dataset.mean is not None:
            mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (dataset.mean, dataset.std))
            self.scale, self.shift = 1 / (255 * std), -mean / std

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images if images.is_floating_point() else images.float().mul_(self.scale).add_(self.shift)
