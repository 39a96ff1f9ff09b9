"""DATA=digits: scikit-learn's 1797 handwritten digits, real data without a download."""

import functools
import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch

from bench.config.data_sets import DATA_SETS
from bench.config.options import RunConfig
from bench.errors import UserError

TRAIN_IMAGES = DATA_SETS["digits"].train_examples  # of 1797; the other 360 are held out
MEAN, STD = 0.305, 0.376  # of the digits' pixels, in 0..1


def load(config: RunConfig, device: torch.device, kind: str, folder: Path | None) -> tuple:
    train_set = Digits(config.image_size, train=True, augment=config.augment, seed=config.seed)
    return train_set, Digits(config.image_size, train=False)


class Digits:
    """Grey 8x8 images, enlarged to image_size and repeated over three channels; the same 360 are always held out.
    augment: each image is shifted by up to one of its 8 pixels."""

    num_classes = DATA_SETS["digits"].classes
    mean = std = None  # already float

    def __init__(self, image_size: int, train: bool, augment: bool = False, seed: int = 0):
        table = read_digits()  # [1797, 65]: 64 pixels of 0..16, then the label
        order = np.random.default_rng(1797).permutation(len(table))
        table = table[order[:TRAIN_IMAGES] if train else order[TRAIN_IMAGES:]]
        pixels = torch.from_numpy(table[:, :64]).reshape(-1, 1, 8, 8) / 16
        self.images = (pixels - MEAN) / STD
        self.labels = torch.from_numpy(table[:, 64]).long()
        self.image_size, self.augment, self.seed = image_size, augment, seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """[B] draws -> images [B, 3, image_size, image_size], labels [B], nothing unreadable."""
        index = torch.from_numpy(draws % len(self))
        images = self.images[index]
        if self.augment:
            from bench.workload.images.augment import crop_and_flip  # torchvision takes half a second

            images = crop_and_flip(images, 1, self.augmentation_seeds(draws), flip=False, fill=-MEAN / STD)
        images = torch.nn.functional.interpolate(images, (self.image_size,) * 2, mode="bilinear", align_corners=False)
        return images.expand(-1, 3, -1, -1).contiguous(), self.labels[index], []

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        from bench.workload.images.augment import example_seeds

        return example_seeds(self.seed, draws)


@functools.cache
def read_digits() -> np.ndarray:
    """Read scikit-learn's file without importing scikit-learn (which takes a second). Raises UserError if it is not
    installed."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None:
        raise UserError("DATA=digits comes with scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.float32)
