"""Data sets, and the batches a process sees.

A data set answers one question: the images and labels of these draws (see sharding.py), as tensors, and the names of
images that could not be read. ``training_batches`` and ``validation_batches`` ask it for those that fall to this
process. Photographs come as bytes, [B, 3, H, W] of uint8, and ``ToFloat`` makes numbers of them on the device: a
quarter of what must be sent from process to process and to a GPU.
"""

import gzip
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.config.options import RunConfig
from bench.config.rules import DIGITS_TRAIN_IMAGES, data_kind
from bench.errors import UserError
from bench.workload import sharding
from bench.workload.images.place import cache

SYNTHETIC_IMAGES = 65_536  # the length that synthetic data pretend to have
HELD_GIB = 1.0  # decoded images of up to so much are held, where IN_MEMORY does not say
SMALL_SETS = {"fashionmnist": "FashionMnist", "cifar10": "Cifar10"}
MEAN, STD = 0.305, 0.376  # of the digits' pixels, in 0..1
SYNTHETIC_POOL = 512  # images that are really drawn; index i is pool image i % 512


class Digits:
    """scikit-learn's 1797 real handwritten digits, 8x8, grey: real data that need no download.

    Images are enlarged to image_size and repeated over three channels. 360 images, always the same, are held out.
    augment: each image is moved by up to one of its 8 pixels, anew every epoch.
    """

    num_classes = 10
    mean = std = None  # numbers already

    def __init__(self, image_size: int, train: bool, augment: bool = False, seed: int = 0):
        table = read_digits()  # [1797, 65]: 64 pixels of 0..16, then the label
        order = np.random.default_rng(1797).permutation(len(table))
        table = table[order[:DIGITS_TRAIN_IMAGES] if train else order[DIGITS_TRAIN_IMAGES:]]
        pixels = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8) / 16
        self.images = (pixels - MEAN) / STD
        self.labels = torch.from_numpy(table[:, 64]).long()
        self.image_size, self.augment, self.seed = image_size, augment, seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """[B] draws -> images [B, 3, image_size, image_size], labels [B], nothing unreadable."""
        index = torch.from_numpy(draws % len(self))
        size = (self.image_size, self.image_size)
        images = self.images[index]
        if self.augment:
            from bench.workload.images.augment import crop_and_flip  # torchvision takes half a second

            images = crop_and_flip(images, 1, self.augmentation_seeds(draws), flip=False, fill=-MEAN / STD)
        images = torch.nn.functional.interpolate(images, size, mode="bilinear", align_corners=False)
        return images.expand(-1, 3, -1, -1).contiguous(), self.labels[index], []

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        """The seed of each example's random choices: draws [B] -> [B] uint32."""
        from bench.workload.images.augment import example_seeds

        return example_seeds(self.seed, draws)


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
    mean = std = None  # numbers already

    def __init__(self, image_size: int, device: torch.device):
        generator = torch.Generator().manual_seed(0)  # the same pool in every process
        shape = (SYNTHETIC_POOL, 3, image_size, image_size)
        self.images = torch.randn(shape, generator=generator).to(device)
        self.labels = torch.randint(self.num_classes, (SYNTHETIC_POOL,), generator=generator).to(device)

    def __len__(self) -> int:
        return SYNTHETIC_IMAGES

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """[B] draws -> images [B, 3, image_size, image_size], labels [B], on the device; nothing unreadable."""
        index = torch.from_numpy(draws % SYNTHETIC_POOL).to(self.labels.device, non_blocking=True)
        return self.images[index], self.labels[index], []


class SlowStorage:
    """A data set behind a storage that takes ``milliseconds`` an image: simulated, so that waiting can be studied."""

    def __init__(self, dataset, milliseconds: float):
        self.dataset, self.milliseconds, self.num_classes = dataset, milliseconds, dataset.num_classes
        self.mean, self.std = dataset.mean, dataset.std

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """As the data set's own, later."""
        time.sleep(self.milliseconds * len(draws) / 1000)
        return self.dataset[draws]

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        """As the data set's own."""
        return self.dataset.augmentation_seeds(draws)


def load_data(config: RunConfig, device: torch.device, kind: str | None = None, folder: Path | None = None):
    """The training set and the validation set of a config; synthetic data have no validation set (None).

    kind, folder: what DATA turned out to be, and where its files lie on this machine (``workload.place.find``). Raises
    UserError for files that are missing or cannot be used, and when one step needs more images than there are.
    """
    kind = kind or data_kind(config.data)[0]
    if kind == "synthetic":
        return Synthetic(config.image_size, device), None
    if kind == "digits":
        train_set = Digits(config.image_size, train=True, augment=config.augment, seed=config.seed)
        val_set = Digits(config.image_size, train=False)
    elif kind in SMALL_SETS:
        train_set, val_set = (small_set(config, kind, train) for train in (True, False))
    else:
        train_set, val_set = image_sets(config, kind, folder)
    if config.storage_ms:
        train_set = SlowStorage(train_set, config.storage_ms)
    if len(train_set) < config.global_batch and not config.evaluate:
        raise UserError(
            f"a step of {config.global_batch} images (BATCH x GPUS x ACCUMULATE) is more than the {len(train_set)} "
            f"that DATA={config.data} has: use a smaller BATCH"
        )
    return train_set, val_set


def small_set(config: RunConfig, kind: str, train: bool):
    """FashionMNIST or CIFAR-10."""
    from bench.workload.images import small_sets  # torchvision takes half a second

    options = {"augment": config.augment, "seed": config.seed} if train else {}
    return getattr(small_sets, SMALL_SETS[kind])(cache(config), config.image_size, train, **options)


def image_sets(config: RunConfig, kind: str, folder: Path) -> tuple:
    """Training and validation images of a folder of class folders, or of two tars."""
    from bench.workload.images import decoded_cache as held
    from bench.workload.images import files as images

    sources = [
        images.TarSource(folder, train, cache(config)) if kind == "tar" else images.FolderSource(folder, train)
        for train in (True, False)
    ]
    hold = config.in_memory
    if hold is None:  # what is decoded once must be seen again, and fit beside everything else
        hold = config.epochs > 1 and sum(map(held.hold_size_gib, sources)) <= HELD_GIB
    options = {"skip_bad": config.skip_bad, "hold": cache(config) / "decoded" if hold else None}
    train_set = images.ImageSet(sources[0], config.image_size, True, config.augment, config.seed, **options)
    return train_set, images.ImageSet(sources[1], config.image_size, False, **options)


class Draws:
    """A sampler: for each step the draws of this process, [per_device_batch x accumulate x devices_per_process].

    Of a step's global batch each pass (ACCUMULATE) takes one part after the other, and each part is shared out over the
    devices. It can be walked more than once.
    """

    def __init__(
        self, config: RunConfig, topology, num_images: int, steps: int, first: int = 0,
        order: Callable = sharding.epoch_permutation,
    ):  # fmt: skip
        self.config, self.topology, self.num_images, self.steps, self.first = config, topology, num_images, steps, first
        self.order = order

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[np.ndarray]:
        config, topology = self.config, self.topology
        stream = sharding.global_batches(self.num_images, config.seed, config.global_batch, self.first, self.order)
        device = topology.rank * topology.devices_per_process
        for batch in itertools.islice(stream, self.steps):
            passes = np.split(batch, config.accumulate)
            shares = [
                sharding.shard(part, device, topology.devices_per_process, topology.num_devices) for part in passes
            ]
            yield np.concatenate(shares)


def training_batches(
    config: RunConfig, topology, dataset, steps: int, first: int = 0, order: Callable = sharding.epoch_permutation
) -> DataLoader:
    """``steps`` batches for this process: images [b, 3, H, W], labels [b], unreadable names; b as ``Draws`` says.

    first: images seen before. order: of an epoch, as ``sharding.global_batches`` takes it. A loader of whole arrays of
    draws: the data set makes a batch at once.
    """
    return loader(config, topology, dataset, Draws(config, topology, len(dataset), steps, first, order), keep=True)


def validation_batches(config: RunConfig, topology, dataset, whole: bool = False) -> DataLoader:
    """This process's share of a validation set, once: rank r takes images r, r + N, r + 2N, …: none twice, none left
    out, whatever the sizes; ``whole``: all of it. Images [≤ per_device_batch, 3, H, W], labels, unreadable names."""
    mine = np.arange(len(dataset)) if whole else np.arange(topology.rank, len(dataset), topology.world_size)
    shares = [mine[i : i + config.per_device_batch] for i in range(0, len(mine), config.per_device_batch)]
    return loader(config, topology, dataset, shares, keep=False)


def loader(config: RunConfig, topology, dataset, draws, keep: bool) -> DataLoader:
    """Two batches ahead in each worker, in pinned memory for a GPU. WORKERS is the total over all processes; rank r
    gets its share. keep: whether the workers live on after the last batch."""
    share = config.workers // topology.world_size + (topology.rank < config.workers % topology.world_size)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=draws,
        num_workers=share,
        persistent_workers=keep and share > 0,
        pin_memory=topology.device.type == "cuda" and config.data != "synthetic",
        generator=torch.Generator(),  # its own: the training process's random numbers are left alone
    )


def plain_errors(batches: Iterator) -> Iterator:
    """The batches; a UserError that a loader worker raised has its own one line again (torch adds a traceback)."""
    try:
        yield from batches
    except UserError as error:
        raise UserError(str(error).strip().splitlines()[-1].removeprefix("bench.errors.UserError: ")) from None


class ToFloat:
    """Pixels of 0..255, [B, 3, H, W] uint8, to numbers of mean 0 and deviation 1 by a data set's ``mean`` and ``std``
    (of pixels in 0..1, one a channel). Images that are numbers already pass through."""

    def __init__(self, dataset, device: torch.device):
        if dataset.mean is not None:
            mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (dataset.mean, dataset.std))
            self.scale, self.shift = 1 / (255 * std), -mean / std

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """images on the device -> float32 there."""
        return images if images.is_floating_point() else images.float().mul_(self.scale).add_(self.shift)
