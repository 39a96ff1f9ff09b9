"""The images of a folder, as batches."""

import os
from pathlib import Path

import torch

from bench import files
from bench.errors import UserError
from bench.workload.images.augment import middle
from bench.workload.images.decode import Unreadable, decode, quiet
from bench.workload.images.sources import EXTENSIONS, is_image


def images_below(folder: Path) -> list[str]:
    """The image files below a folder as sorted relative paths, without hidden folders. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"FOLDER={folder} is not a folder of images")
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names if is_image(name)]
    if not found:
        raise UserError(f"{folder} contains no image of a supported type ({' '.join(EXTENSIONS)})")
    return sorted(found)


class Batches:
    """``batches[k]`` has images k B to k B + B: ([b, 3, S, S] uint8 of the readable ones, their numbers [b], (number,
    reason) of the others). It does not depend on the number of ranks."""

    def __init__(self, folder: Path, names: list[str], batch: int, image_size: int):
        self.folder, self.names, self.batch, self.image_size = folder, names, batch, image_size

    def __len__(self) -> int:
        return -(-len(self.names) // self.batch)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, list[int], list[tuple[int, str]]]:
        images, numbers, unreadable = [], [], []
        first = number * self.batch
        with quiet():
            for at, name in enumerate(self.names[first : first + self.batch], first):
                try:
                    images.append(middle(self.image_size, decode(files.read_regular_file(self.folder / name))))
                    numbers.append(at)
                except (Unreadable, OSError) as error:
                    unreadable.append((at, getattr(error, "strerror", None) or str(error)))
        none = torch.empty(0, 3, self.image_size, self.image_size, dtype=torch.uint8)
        return torch.stack(images) if images else none, numbers, unreadable
