"""DATA=synthetic: random images, to measure steps without reading data."""

from pathlib import Path

import numpy as np
import torch

from bench.config.data_sets import DATA_SETS
from bench.config.options import RunConfig

LENGTH = 65_536  # at least
POOL = 512  # random images; index i is pool image i % 512


def load(config: RunConfig, device: torch.device, kind: str, folder: Path | None) -> tuple:
    return Synthetic(config.image_size, device, max(LENGTH, config.global_batch)), None


class Synthetic:
    """Random images and labels on the device; a batch is an index operation."""

    num_classes = DATA_SETS["synthetic"].classes
    mean = std = None  # already float

    def __init__(self, image_size: int, device: torch.device, length: int = LENGTH):
        self.length = length
        generator = torch.Generator().manual_seed(0)  # the same pool in every process
        shape = (POOL, 3, image_size, image_size)
        self.images = torch.randn(shape, generator=generator).to(device)
        self.labels = torch.randint(self.num_classes, (POOL,), generator=generator).to(device)
        self.bytes_on_device = self.images.nbytes + self.labels.nbytes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        index = torch.from_numpy(draws % POOL).to(self.labels.device, non_blocking=True)
        return self.images[index], self.labels[index], []
