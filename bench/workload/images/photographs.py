"""DATA=imagefolder:PATH and DATA=tar:PATH. Your own photographs: a folder of class folders, or the same in tar files.

A source knows the classes, and the bytes of image i (sources.py). ``ImageSet`` makes batches of one: read, decode,
transform.
"""

import functools
from pathlib import Path

import numpy as np
import torch

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.workload.images.augment import cut, example_seeds, middle, random_box, random_part
from bench.workload.images.decode import Unreadable, decode, quiet
from bench.workload.images.decode_on_gpu import NO_BOX, Encoded, as_file, decodes_on, on_device
from bench.workload.images.decoded_cache import DecodedCache, hold_size_gib, read_image, unreadable_line
from bench.workload.images.place import cache
from bench.workload.images.sources import FolderSource, TarSource

HELD_GIB = 1.0  # decoded images of up to so much are held, where IN_MEMORY does not say
SEARCH = 100  # unreadable images in a row after which a search for a readable one gives up


def load(config: RunConfig, device: torch.device, kind: str, folder: Path) -> tuple:
    given = Path(config.val_labels).expanduser() if config.val_labels else None
    sources = [
        TarSource(folder, train, cache(config), given) if kind == "tar" else FolderSource(folder, train, given)
        for train in (True, False)
    ]
    on_gpu = decodes_on(device, config)
    hold = False if on_gpu else config.in_memory
    if hold is None:  # what is decoded once must be seen again, and fit into memory with everything else
        hold = config.epochs > 1 and sum(map(hold_size_gib, sources)) <= HELD_GIB
    options = {"skip_bad": config.skip_bad, "hold": cache(config) / "decoded" if hold else None}
    options["finish_on"] = device if on_gpu else None
    train_set = ImageSet(sources[0], config.image_size, True, config.augment, config.seed, **options)
    return train_set, ImageSet(sources[1], config.image_size, False, **options)


class ImageSet:
    """The images of a source as batches of one size.

    Training takes a random part of an image, mirrored or not (``augment=False``: as validation does); validation takes
    the middle. An unreadable image is a UserError that names it. With skip_bad, training takes the next readable one in
    its place and validation leaves it out. With hold, a folder, images are decoded once for all processes of this
    machine (``DecodedCache``) and the batches are bit-identical. JPEGs are decoded whole, not at a half or a
    quarter as libjpeg can: that would be other pixels than the held ones, and at 500 x 375 it saves nothing at 224
    pixels and 4 % at 64. Much larger photographs are better made smaller once than at every step. With finish_on, a
    device, a batch is ``Encoded``, and becomes images there by ``finish``.
    """

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, for pixels in 0..1

    def __init__(
        self,
        source: FolderSource | TarSource,
        image_size: int,
        train: bool,
        augment: bool = True,
        seed: int = 0,
        skip_bad: bool = False,
        hold: Path | None = None,
        finish_on: torch.device | None = None,
    ):
        self.finish_on = finish_on
        self.source, self.image_size, self.train, self.seed, self.skip_bad = source, image_size, train, seed, skip_bad
        self.classes, self.num_classes = source.classes, len(source.classes)
        self.transform = functools.partial(random_part if train and augment else middle, image_size)
        self.held = DecodedCache(source, hold, skip_bad) if hold else None

    def __len__(self) -> int:
        return len(self.source.labels)

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """[B] draws -> images [B, 3, S, S] uint8, labels [B], names of the images that could not be read.

        A draw is epoch x length + index: an image is augmented anew in each epoch, by its own random stream. Validation
        with skip_bad may return fewer than B. torch's random numbers are left as they were. With finish_on in place of
        the images: what ``finish`` takes.
        """
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

    @property
    def decoder(self) -> str:
        """For the record."""
        return "nvJPEG, on the GPU" if self.finish_on else "the loader's workers"

    def encoded(self, draws: np.ndarray) -> Encoded:
        """[B] draws -> the files, and which part of each image is taken: what a loader worker does of the work."""
        files, table = [], []
        with quiet(), torch.random.fork_rng(devices=[]):
            for draw, seed in zip(draws.tolist(), self.augmentation_seeds(draws).tolist(), strict=True):
                index = draw % len(self)
                try:
                    file, *form = as_file(self.source.read(index))
                except Unreadable as error:
                    raise UserError(unreadable_line(self.source, index, error)) from None
                torch.default_generator.manual_seed(seed)
                box = random_box(*form[:2]) if self.transform.func is random_part else NO_BOX
                files.append(file)
                table.append([index, len(file), *form, *box])
        return Encoded(torch.cat(files), torch.tensor(table))

    def finish(self, batch: tuple) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """(Encoded, labels [B], names) -> (images [B, 3, S, S] uint8 on the device, labels, names). Raises UserError
        for an image that cannot be read."""
        encoded, labels, skipped = batch
        shape = (len(labels), 3, self.image_size, self.image_size)
        images = torch.empty(shape, dtype=torch.uint8, device=self.finish_on)
        rows = encoded.table.tolist()
        with quiet():
            for place, (row, image) in enumerate(zip(rows, self.decoded(encoded, rows), strict=True)):
                *box, mirrored = row[5:]
                images[place] = cut(self.image_size, image, *box, bool(mirrored)) if box[2] else self.transform(image)
        return images, labels, skipped

    def decoded(self, encoded: Encoded, rows: list[list[int]]) -> list[torch.Tensor]:
        """The images of a batch, [3, H, W] uint8 on the device. Raises UserError for one that cannot be read."""
        files = encoded.data.split([row[1] for row in rows])
        try:
            return on_device(files, [row[2:5] for row in rows], self.finish_on)
        except RuntimeError:  # it does not say which: one by one, on the CPU, which reads more kinds of JPEG
            return [read_image(self.source, row[0]).to(self.finish_on) for row in rows]

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        return example_seeds(self.seed, draws)

    def readable(self, index: int, skipped: list[str]) -> tuple[int, torch.Tensor | None]:
        """The index and the pixels of an image. With skip_bad and an unreadable one: those of the next that
        is readable (training), or None for the pixels (validation)."""
        for candidate in range(index, index + SEARCH):
            candidate %= len(self)
            try:
                return candidate, self.pixels(candidate)
            except Unreadable as error:
                if not self.skip_bad:
                    raise UserError(unreadable_line(self.source, candidate, error)) from None
                skipped.append(self.source.name(candidate))
            if not self.train:
                return index, None
        raise UserError(f"{SEARCH} images in a row from {self.source.name(index)} on cannot be read: repair the data")

    def pixels(self, index: int) -> torch.Tensor:
        """[3, H, W] uint8, held or decoded. Raises Unreadable."""
        image = self.held[index] if self.held else None
        return decode(self.source.read(index)) if image is None else image
