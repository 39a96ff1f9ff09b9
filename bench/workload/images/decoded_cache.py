"""The decoded-image cache: images that are decoded once, by one process, and read by all processes of a machine from
the same memory.

The pixels of all images lie one after the other in one file, which every process and loader worker maps: the system
keeps one copy for all of them.
"""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from bench.errors import UserError
from bench.workload.images.decode import Unreadable, decode, quiet, size_of
from bench.workload.once import made_once

SAMPLED_HEADERS = 64
CHUNK = 256  # images decoded before they are written


class DecodedCache:
    """The decoded images of a source, in a file: pixels as rows (H, W, 3), one image after the other, then all [H, W].

    ``held[i]`` is [3, H, W] uint8, laid out as ``decode`` does, or None for an image that could not be read. The file's
    name follows from names, sizes and times of the source's files and from the decoders' versions, so changed data
    are decoded anew; what is no longer wanted in ``folder`` may be removed. Raises UserError when the folder cannot be
    written to, or for an unreadable image unless skip_bad.
    """

    def __init__(self, source, folder: Path, skip_bad: bool):
        self.path = made_once(Path(folder) / f"{source.key()}.held", lambda path: write(source, path, skip_bad))
        size, table = self.path.stat().st_size, 8 * len(source.labels)
        self.shapes = np.fromfile(self.path, np.int32, offset=size - table).reshape(-1, 2)  # [n, 2]: H, W
        self.starts = np.concatenate([[0], np.cumsum(3 * self.shapes.astype(np.int64).prod(1))])  # [n + 1]
        self.map()

    def map(self) -> None:
        """Nothing is read until it is looked at."""
        self.bytes = torch.from_file(str(self.path), size=self.path.stat().st_size, dtype=torch.uint8)

    def __getitem__(self, index: int) -> torch.Tensor | None:
        height, width = self.shapes[index].tolist()
        if height == 0:
            return None
        return self.bytes[self.starts[index] : self.starts[index + 1]].view(height, width, 3).permute(2, 0, 1)

    def __getstate__(self) -> dict:
        """For a spawned worker: without the bytes, which it maps itself."""
        return {name: value for name, value in vars(self).items() if name != "bytes"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self.map()


def write(source, path: Path, skip_bad: bool) -> None:
    """Decode every image of a source into one file. Raises UserError for an unreadable one unless skip_bad."""
    shapes = np.zeros((len(source.labels), 2), dtype=np.int32)
    pixels = functools.partial(read_image, source, skip_bad=skip_bad)
    with path.open("wb") as file, ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, quiet():
        for first in range(0, len(shapes), CHUNK):
            chunk = range(first, min(first + CHUNK, len(shapes)))
            for index, image in zip(chunk, pool.map(pixels, chunk), strict=True):
                if image is not None:
                    shapes[index] = image.shape[1:]
                    file.write(image.permute(1, 2, 0).numpy())
        file.write(shapes.tobytes())


def read_image(source, index: int, skip_bad: bool = False) -> torch.Tensor | None:
    """[3, H, W] uint8 on the CPU. An image that cannot be read is a UserError, and None with skip_bad."""
    try:
        return decode(source.read(index))
    except Unreadable as error:
        if skip_bad:
            return None
        raise UserError(unreadable_line(source, index, error)) from None


def unreadable_line(source, index: int, error: Unreadable) -> str:
    return f"{source.path / source.name(index)} cannot be read ({error}): repair it, or SKIP_BAD=1 leaves it out"


def hold_size_gib(source) -> float:
    """What the decoded images of a source would take, in GiB (2^30 bytes): an estimate from up to 64 headers."""
    areas = []
    with quiet():
        for index in np.unique(np.linspace(0, len(source.labels) - 1, SAMPLED_HEADERS).astype(int)).tolist():
            try:
                width, height = size_of(source.read(index))
                areas.append(width * height)
            except Unreadable:
                continue
    return 3 * len(source.labels) * float(np.mean(areas)) / 2**30 if areas else 0.0
