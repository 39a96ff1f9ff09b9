"""The images of a folder as batches for a model: every one in its place, also where it cannot be read."""

import os
from pathlib import Path

import torch

from bench import files
from bench.errors import UserError
from bench.workload.images.augment import middle
from bench.workload.images.decode import Unreadable, decode, quiet
from bench.workload.images.sources import EXTENSIONS, is_image


def images_below(folder: Path) -> list[str]:
    """The image files in a folder and all folders below it, by their path from there, sorted; none that is hidden.

    Raises UserError for what is no folder, and for one without images.
    """
    if not folder.is_dir():
        raise UserError(f"FOLDER={folder} is not a folder of images")
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names if is_image(name)]
    if not found:
        raise UserError(f"{folder} holds no image of a type that can be read ({' '.join(EXTENSIONS)})")
    return sorted(found)


class Batches:
    """``batches[k]`` are the images k B to k B + B of a list: ([b, 3, S, S] uint8 of those that can be read, their
    numbers [b], (number, why not) of the others). The same whatever process asks, so that a result does not depend on
    how many there are."""

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
                    images.append(middle(self.image_size, decode(files.read_plain(self.folder / name))))
                    numbers.append(at)
                except (Unreadable, OSError) as error:
                    unreadable.append((at, getattr(error, "strerror", None) or str(error)))
        none = torch.empty(0, 3, self.image_size, self.image_size, dtype=torch.uint8)
        return torch.stack(images) if images else none, numbers, unreadable
