"""DATA=imagefolder:PATH and DATA=tar:PATH: your own photographs, in class folders or in tar files of them.

A source (sources.py) has the classes and the bytes of each image; ``ImageSet`` makes batches of them."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.workload.images import decode as decoding
from bench.workload.images.augment import cut, example_seeds, middle, random_box, random_part
from bench.workload.images.decode import Unreadable, decode, quiet, size_of
from bench.workload.images.place import cache
from bench.workload.images.sources import FolderSource, TarSource
from bench.workload.once import made_once

HELD_GIB = 1.0  # decoded images of up to this size are cached if CACHE_IMAGES is not set
SEARCH = 100  # consecutive unreadable images, then the search for a readable one fails
SAMPLED_HEADERS = 64
CHUNK = 256  # images decoded before they are written


def load(config: RunConfig, device: torch.device, kind: str, folder: Path) -> tuple:
    given = Path(config.val_labels).expanduser() if config.val_labels else None
    sources = [
        TarSource(folder, train, cache(config), given) if kind == "tar" else FolderSource(folder, train, given)
        for train in (True, False)
    ]
    on_gpu = decoding.decodes_on(device, config)
    hold = False if on_gpu else config.in_memory
    if hold is None:
        hold = config.epochs > 1 and sum(map(hold_size_gib, sources)) <= HELD_GIB
    options = {"skip_bad": config.skip_bad, "hold": cache(config) / "decoded" if hold else None,
               "finish_on": device if on_gpu else None}  # fmt: skip
    train_set = ImageSet(sources[0], config.image_size, True, config.augment, config.seed, **options)
    return train_set, ImageSet(sources[1], config.image_size, False, **options)


class ImageSet:
    """The images of a source as batches of one size.

    Training takes a random crop of an image, mirrored or not; validation and ``augment=False`` take the middle. An
    unreadable image raises UserError; with skip_bad, training takes the next readable one and validation leaves it out.
    hold: a folder for a ``DecodedCache``; the batches are identical. finish_on: a GPU that decodes the batches, which
    are ``Encoded`` until ``finish``.
    """

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, for pixels in 0..1

    def __init__(
        self, source: FolderSource | TarSource, image_size: int, train: bool, augment: bool = True, seed: int = 0,
        skip_bad: bool = False, hold: Path | None = None, finish_on: torch.device | None = None,
    ):  # fmt: skip
        self.source, self.image_size, self.train, self.seed, self.skip_bad = source, image_size, train, seed, skip_bad
        self.classes, self.num_classes, self.finish_on = source.classes, len(source.classes), finish_on
        self.decoder = "nvJPEG, on the GPU" if finish_on else "the loader's workers"  # for the record
        self.transform = functools.partial(random_part if train and augment else middle, image_size)
        self.held = DecodedCache(source, hold, skip_bad) if hold else None

    def __len__(self) -> int:
        return len(self.source.labels)

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor | decoding.Encoded, torch.Tensor, list[str]]:
        """[B] draws -> images [B, 3, S, S] uint8 (fewer in a validation with skip_bad), labels [B], names of the images
        that could not be read. Each draw has its own random stream; torch's global one is unchanged."""
        if self.finish_on:
            return self.encoded(draws), torch.from_numpy(self.source.labels[draws % len(self)]), []
        images = torch.empty(len(draws), 3, self.image_size, self.image_size, dtype=torch.uint8)
        chosen, skipped = [], []
        with quiet(), torch.random.fork_rng(devices=[]):
            for draw, seed in zip(draws.tolist(), self.augmentation_seeds(draws).tolist(), strict=True):
                index, image = self.readable(draw % len(self), skipped)
                if image is None:
                    continue
                torch.default_generator.manual_seed(seed)
                images[len(chosen)] = self.transform(image)
                chosen.append(index)
        return images[: len(chosen)], torch.from_numpy(self.source.labels[chosen]), skipped

    def encoded(self, draws: np.ndarray) -> decoding.Encoded:
        """The loader worker's part: the files, and each image's crop."""
        files, table = [], []
        with quiet(), torch.random.fork_rng(devices=[]):
            for draw, seed in zip(draws.tolist(), self.augmentation_seeds(draws).tolist(), strict=True):
                index = draw % len(self)
                try:
                    file, *form = decoding.as_file(self.source.read(index))
                except Unreadable as error:
                    raise unreadable_error(self.source, index, error) from None
                torch.default_generator.manual_seed(seed)
                box = random_box(*form[:2]) if self.transform.func is random_part else decoding.NO_BOX
                files.append(file)
                table.append([index, len(file), *form, *box])
        return decoding.Encoded(torch.cat(files), torch.tensor(table))

    def finish(self, batch: tuple) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """(Encoded, labels [B], names) -> (images [B, 3, S, S] uint8 on the device, labels, names). Raises UserError
        for an image that cannot be read."""
        encoded, labels, skipped = batch
        rows = encoded.table.tolist()
        files = encoded.data.split([row[1] for row in rows])
        shape = (len(labels), 3, self.image_size, self.image_size)
        images = torch.empty(shape, dtype=torch.uint8, device=self.finish_on)
        with quiet():
            try:
                decoded = decoding.on_device(files, [row[2:5] for row in rows], self.finish_on)
            except RuntimeError:  # which one is unknown: decode each on the CPU, which reads more kinds of JPEG
                decoded = [read_image(self.source, row[0]).to(self.finish_on) for row in rows]
            for place, (row, image) in enumerate(zip(rows, decoded, strict=True)):
                *box, mirrored = row[5:]
                images[place] = cut(self.image_size, image, *box, bool(mirrored)) if box[2] else self.transform(image)
        return images, labels, skipped

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        return example_seeds(self.seed, draws)

    def readable(self, index: int, skipped: list[str]) -> tuple[int, torch.Tensor | None]:
        """The index and the pixels of an image; if unreadable, of the next readable one (training), or no pixels
        (validation). Raises UserError without skip_bad."""
        for candidate in range(index, index + SEARCH):
            candidate %= len(self)
            image = self.held[candidate] if self.held else None
            try:
                return candidate, decode(self.source.read(candidate)) if image is None else image
            except Unreadable as error:
                if not self.skip_bad:
                    raise unreadable_error(self.source, candidate, error) from None
                skipped.append(self.source.name(candidate))
            if not self.train:
                return index, None
        raise UserError(f"{SEARCH} images in a row from {self.source.name(index)} on cannot be read: repair the data")


class DecodedCache:
    """The decoded images of a source in one file, written once per machine: pixels (H, W, 3) of all images, then the
    sizes. All processes and loader workers map it, so that there is one copy in memory.

    ``held[i]`` is [3, H, W] uint8 as ``decode`` returns it, or None for an unreadable image. The file's name is
    ``source.key()``: changed data are decoded again. Raises UserError if the folder cannot be written to, or for an
    unreadable image unless skip_bad.
    """

    def __init__(self, source, folder: Path, skip_bad: bool):
        write = functools.partial(write_decoded, source, skip_bad)
        self.path = made_once(Path(folder) / f"{source.key()}.held", write)
        size, table = self.path.stat().st_size, 8 * len(source.labels)
        self.shapes = np.fromfile(self.path, np.int32, offset=size - table).reshape(-1, 2)  # [n, 2]: H, W
        self.starts = np.concatenate([[0], np.cumsum(3 * self.shapes.astype(np.int64).prod(1))])  # [n + 1]
        self.map()

    def map(self) -> None:
        self.bytes = torch.from_file(str(self.path), size=self.path.stat().st_size, dtype=torch.uint8)

    def __getitem__(self, index: int) -> torch.Tensor | None:
        height, width = self.shapes[index].tolist()
        if height == 0:
            return None
        return self.bytes[self.starts[index] : self.starts[index + 1]].view(height, width, 3).permute(2, 0, 1)

    def __getstate__(self) -> dict:
        """For a spawned worker, which maps the bytes itself."""
        return {name: value for name, value in vars(self).items() if name != "bytes"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self.map()


def write_decoded(source, skip_bad: bool, path: Path) -> None:
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
    """[3, H, W] uint8 on the CPU. An unreadable image raises UserError; with skip_bad it is None."""
    try:
        return decode(source.read(index))
    except Unreadable as error:
        if skip_bad:
            return None
        raise unreadable_error(source, index, error) from None


def unreadable_error(source, index: int, error: Unreadable) -> UserError:
    name = source.path / source.name(index)
    return UserError(f"{name} cannot be read ({error}): repair it, or use SKIP_BAD=1 to leave it out")


def hold_size_gib(source) -> float:
    """Estimate the size of a source's decoded images from up to 64 headers, in GiB (2^30 bytes)."""
    areas = []
    with quiet():
        for index in np.unique(np.linspace(0, len(source.labels) - 1, SAMPLED_HEADERS).astype(int)).tolist():
            try:
                width, height = size_of(source.read(index))
                areas.append(width * height)
            except Unreadable:
                continue
    return 3 * len(source.labels) * float(np.mean(areas)) / 2**30 if areas else 0.0
