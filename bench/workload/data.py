"""Data sets, and the batches a process sees.

A data set answers one question: the images and labels of these indices, as tensors. ``batches`` asks it for the
indices that fall to this process.
"""

import gzip
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.checks import DIGITS_TRAIN_IMAGES
from bench.config import RunConfig
from bench.errors import UserError
from bench.workload import sharding

SYNTHETIC_IMAGES = 65_536  # the length that synthetic data pretend to have
SYNTHETIC_POOL = 512  # images that are really drawn; index i is pool image i % 512


class Digits:
    """scikit-learn's 1797 real handwritten digits, 8x8, grey: real data that need no download.

    Images are enlarged to image_size and repeated over three channels. 360 images, always the same, are held out.
    """

    num_classes = 10

    def __init__(self, image_size: int, train: bool):
        table = read_digits()  # [1797, 65]: 64 pixels of 0..16, then the label
        order = np.random.default_rng(1797).permutation(len(table))
        table = table[order[:DIGITS_TRAIN_IMAGES] if train else order[DIGITS_TRAIN_IMAGES:]]
        pixels = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8) / 16
        self.images = (pixels - 0.305) / 0.376  # mean and deviation of the data set's pixels
        self.labels = torch.from_numpy(table[:, 64]).long()
        self.image_size = image_size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """[B] indices -> images [B, 3, image_size, image_size], labels [B]."""
        index = torch.from_numpy(indices)
        size = (self.image_size, self.image_size)
        images = torch.nn.functional.interpolate(self.images[index], size, mode="bilinear", align_corners=False)
        return images.expand(-1, 3, -1, -1).contiguous(), self.labels[index]


def read_digits() -> np.ndarray:
    """The table of digits, read from scikit-learn's own file without importing scikit-learn (which takes a second).

    Raises UserError when scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None:
        raise UserError("DATA=digits comes with scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.float32)


class Synthetic:
    """Random images and labels, drawn once, on the device: batches cost an index, so the step is measured alone."""

    num_classes = 1000

    def __init__(self, image_size: int, device: torch.device):
        generator = torch.Generator().manual_seed(0)  # the same pool in every process
        shape = (SYNTHETIC_POOL, 3, image_size, image_size)
        self.images = torch.randn(shape, generator=generator).to(device)
        self.labels = torch.randint(self.num_classes, (SYNTHETIC_POOL,), generator=generator).to(device)

    def __len__(self) -> int:
        return SYNTHETIC_IMAGES

    def __getitem__(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """[B] indices -> images [B, 3, image_size, image_size], labels [B], on the device."""
        index = torch.from_numpy(indices % SYNTHETIC_POOL).to(self.labels.device, non_blocking=True)
        return self.images[index], self.labels[index]


class SlowStorage:
    """A data set behind a storage that takes ``milliseconds`` an image: simulated, so that waiting can be studied."""

    def __init__(self, dataset, milliseconds: float):
        self.dataset, self.milliseconds, self.num_classes = dataset, milliseconds, dataset.num_classes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """As the data set's own, later."""
        time.sleep(self.milliseconds * len(indices) / 1000)
        return self.dataset[indices]


def load_data(config: RunConfig, device: torch.device):
    """The training set and the validation set of a config; synthetic data have no validation set (None)."""
    if config.data == "synthetic":
        return Synthetic(config.image_size, device), None
    train_set = Digits(config.image_size, train=True)
    if config.storage_ms:
        train_set = SlowStorage(train_set, config.storage_ms)
    return train_set, Digits(config.image_size, train=False)


def process_indices(config: RunConfig, topology, num_images: int) -> Iterator[np.ndarray]:
    """The indices of each step that fall to this process: [per_device_batch x devices_per_process], endless."""
    first = topology.rank * topology.devices_per_process
    for batch in sharding.global_batches(num_images, config.seed, config.global_batch):
        yield sharding.shard(batch, first, topology.devices_per_process, topology.num_devices)


def batches(config: RunConfig, topology, dataset, steps: int) -> DataLoader:
    """``steps`` batches for this process: images [b, 3, H, W] and labels [b]; b = per_device_batch x its devices.

    WORKERS is the total over all processes; rank r gets its share. A loader of whole index arrays: the data set
    makes a batch at once.
    """
    share = config.workers // topology.world_size + (topology.rank < config.workers % topology.world_size)
    stream = process_indices(config, topology, len(dataset))
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=[next(stream) for _ in range(steps)],
        num_workers=share,
        persistent_workers=share > 0,
        pin_memory=topology.device.type == "cuda" and config.data != "synthetic",
    )
