"""DATA=fashionmnist and DATA=cifar10: read by torchvision, held in memory as bytes."""

import contextlib
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torchvision
from torchvision.transforms import v2

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.workload.images.augment import crop_and_flip, example_seeds
from bench.workload.images.decode import quiet
from bench.workload.images.place import cache
from bench.workload.once import download_timeout, locked


@dataclass(frozen=True)
class Kind:
    torchvision_class: str
    folder: str  # below DATA_DIR
    files: str  # required there
    padding: int  # of the random crop
    mean: tuple[float, float, float]  # of the training pixels in 0..1
    std: tuple[float, float, float]


FASHION_MNIST = Kind(
    "FashionMNIST", "FashionMNIST/raw",
    "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz",
    2, (0.2860,) * 3, (0.3530,) * 3,
)  # fmt: skip
CIFAR10 = Kind("CIFAR10", ".", "cifar-10-python.tar.gz", 4, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


class SmallSet:
    """A data set held in memory as uint8 [n, 1 or 3, H, H], resized to image_size, augmented by ``crop_and_flip``.
    Raises UserError if the files are not in data_dir and cannot be downloaded, or cannot be read."""

    def __init__(self, kind: Kind, data_dir: str | Path, image_size: int, train: bool, augment=True, seed: int = 0):
        self.kind, self.image_size, self.seed, self.augment = kind, image_size, seed, train and augment
        self.mean, self.std = kind.mean, kind.std
        stored = read(kind, Path(data_dir), train)
        pixels = torch.as_tensor(stored.data)  # [n, H, W] or [n, H, W, 3]
        self.images = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
        self.labels = torch.as_tensor(stored.targets).long()
        self.classes, self.num_classes = list(stored.classes), len(stored.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """[B] draws -> images [B, 3, S, S] uint8, labels [B], nothing unreadable."""
        index = torch.from_numpy(draws % len(self))
        images = self.images[index]
        if self.augment:
            images = crop_and_flip(images, self.kind.padding, self.augmentation_seeds(draws))
        images = v2.functional.resize(images, [self.image_size] * 2, antialias=True)
        return images.expand(-1, 3, -1, -1).contiguous(), self.labels[index], []

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        return example_seeds(self.seed, draws)


def load(config: RunConfig, device: torch.device, kind: str, folder: Path | None) -> tuple:
    kind, place = {"fashionmnist": FASHION_MNIST, "cifar10": CIFAR10}[kind], cache(config)
    train_set = SmallSet(kind, place, config.image_size, True, config.augment, config.seed)
    return train_set, SmallSet(kind, place, config.image_size, False)


def read(kind: Kind, data_dir: Path, train: bool):
    """torchvision's data set, downloaded if missing by one process at a time. Raises UserError."""
    reader = getattr(torchvision.datasets, kind.torchvision_class)
    try:
        with contextlib.ExitStack() as lock, quiet():
            with contextlib.suppress(OSError):  # a read-only folder needs no lock
                lock.enter_context(locked(data_dir / ".download.lock"))
            try:
                return reader(data_dir, train=train)
            except RuntimeError:  # missing, or only as archives
                with download_timeout():  # it searches for archives first, and verifies checksums
                    return reader(data_dir, train=train, download=True)
    except (RuntimeError, OSError, ValueError, AssertionError, EOFError, KeyError, pickle.UnpicklingError) as error:
        said, folder = " ".join(str(error).split()) or type(error).__name__, data_dir / kind.folder
        wanted = f"{kind.files} into {folder}, again if they are damaged"
        raise UserError(f"no {kind.torchvision_class} ({said}): put {wanted}") from None
