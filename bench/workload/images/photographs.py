"""DATA=imagefolder:PATH and DATA=tar:PATH. Your own photographs: a folder of class folders, or the same in tar files.

A source knows the classes, and the bytes of image i. ``ImageSet`` makes batches of one: read, decode, transform.
"""

import functools
import hashlib
import os
import tarfile
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.storage import labels as label_files
from bench.workload.images.augment import cut, example_seeds, middle, random_box, random_part
from bench.workload.images.decode import Unreadable, decode, quiet
from bench.workload.images.decode_on_gpu import NO_BOX, Encoded, as_file, decodes_on, on_device
from bench.workload.images.decoded_cache import DecodedCache, hold_size_gib, unreadable_line
from bench.workload.images.place import cache
from bench.workload.once import made_once

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
HELD_GIB = 1.0  # decoded images of up to so much are held, where IN_MEMORY does not say
SEARCH = 100  # unreadable images in a row after which a search for a readable one gives up


def load(config: RunConfig, device: torch.device, kind: str, folder: Path) -> tuple:
    """The training set and the validation set of a folder of class folders, or of two tars."""
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


class FolderSource:
    """Image files in ``PATH/train/<class>/`` and ``PATH/val/<class>/`` (or eval). Hidden files are ignored. A val of
    images and no folders, as ImageNet's, has its classes in a labels file: ``val_labels``, or the one in PATH.

    classes: the names of the training folders, sorted. labels: [n] int64; those of val count train's classes.
    Raises UserError for a missing folder, a folder without images, a class of val that train does not have, and labels
    that do not fit.
    """

    def __init__(self, path: str | Path, train: bool, val_labels: Path | None = None):
        self.path = Path(path)
        folder = self.path / "train"
        self.classes = class_names(folder)
        names = self.classes
        if not train:
            folder = held_out(self.path, "")
            if not folders_in(folder) and (images := image_names(folder)):
                self.names = np.array([os.fsencode(f"{folder.name}/{image}") for image in images])
                self.labels = flat_labels(self.path, folder, val_labels, images, self.classes)
                return
            names = class_names(folder)
        labels = labels_of(names, self.classes, folder, self.path / "train")
        files = [image_names(folder / name) for name in names]
        if not any(files):
            raise UserError(f"{folder} holds no image of a type that can be read ({' '.join(EXTENSIONS)})")
        below = []
        for name, found in zip(names, files, strict=True):
            below += [os.fsencode(f"{folder.name}/{name}/{file}") for file in found]
            if not found:
                raise UserError(f"{folder / name} holds no image: remove the folder, or put images into it")
        self.labels = np.repeat(labels, [len(found) for found in files])
        # One array, not a million objects: workers share it, where counting references would copy it page by page.
        self.names = np.array(below)

    def name(self, index: int) -> str:
        """An image's name below PATH."""
        return os.fsdecode(self.names[index])

    def read(self, index: int) -> bytes:
        """An image's file. Raises Unreadable."""
        try:
            return (self.path / self.name(index)).read_bytes()
        except OSError as error:
            raise Unreadable(error.strerror) from None

    def key(self) -> str:
        """A name for the state of the files: it changes with their names, sizes and times, and with the decoders."""
        stats = [os.stat(self.path / self.name(index)) for index in range(len(self.names))]
        return digest(self.path.resolve(), self.names.tobytes(), [(s.st_size, s.st_mtime_ns) for s in stats])


class TarSource:
    """Images in ``PATH/train.tar`` and ``PATH/val.tar`` (or eval), not unpacked. An image's class is its folder in the
    tar, or the tar within the tar that it is in, as in ImageNet's train.tar.

    timm's reader of tar files finds the images. Reading them through its open tar files goes wrong in loader workers:
    processes that inherit one open file share its position, and samples are swapped without an error. So an image is
    read at its own offset, from a file opened for it. Finding them reads a tar of tars from end to end: with ``cache``,
    a folder, one process does so once for a given state of the file. A val of images in no class folder has its classes
    in a labels file, as in FolderSource.

    classes, labels: as in FolderSource. Raises UserError for a missing, damaged or truncated tar, or without timm.
    """

    def __init__(self, path: str | Path, train: bool, cache: Path | None = None, val_labels: Path | None = None):
        self.path = Path(path)
        training = tar_index(self.path / "train.tar", cache)
        self.tar, index = self.path / "train.tar", training
        self.classes = training["classes"].tolist()
        if {"", "."} & set(self.classes):
            raise UserError(f"{self.tar} holds images outside of class folders: their names must be <class>/<image>")
        if not train:
            self.tar = held_out(self.path, ".tar")
            index = tar_index(self.tar, cache)
        self.names, self.offsets, self.sizes = index["names"], index["offsets"], index["sizes"]
        held = index["classes"].tolist()
        if not train and len(held) == 1 and held[0] not in self.classes:  # all in one place that is no class
            images = [Path(os.fsdecode(name)).name for name in self.names]
            self.labels = flat_labels(self.path, self.tar, val_labels, images, self.classes)
        else:
            self.labels = labels_of(held, self.classes, self.tar, self.path / "train.tar")[index["labels"]]

    def name(self, index: int) -> str:
        """An image's name: the tar, then the name within."""
        return f"{self.tar.name}/{os.fsdecode(self.names[index])}"

    def read(self, index: int) -> bytes:
        """An image's bytes. Raises Unreadable."""
        try:
            with self.tar.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), int(self.sizes[index]), int(self.offsets[index]))
        except OSError as error:
            raise Unreadable(error.strerror) from None
        if len(data) < self.sizes[index]:
            raise Unreadable("the tar ends within it")
        return data

    def key(self) -> str:
        """A name for the state of the tar: it changes with its size and time, and with the decoders."""
        stat = self.tar.stat()
        return digest(self.tar.resolve(), self.names.tobytes(), (stat.st_size, stat.st_mtime_ns))


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
        """Where JPEGs are decoded, for the record."""
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
            return [self.one(row[0]).to(self.finish_on) for row in rows]

    def one(self, index: int) -> torch.Tensor:
        """One image, [3, H, W] uint8 on the CPU. Raises UserError where it cannot be read."""
        try:
            return decode(self.source.read(index))
        except Unreadable as error:
            raise UserError(unreadable_line(self.source, index, error)) from None

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        """The seed of each example's random choices: draws [B] -> [B] uint32."""
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


def class_names(folder: Path) -> list[str]:
    """The class folders of a folder, sorted. Raises UserError without any."""
    names = folders_in(folder)
    if not names:
        raise UserError(f"{folder} holds no class folders: images lie in PATH/train/<class>/ and PATH/val/<class>/")
    return names


def folders_in(folder: Path) -> list[str]:
    """The folders in a folder that are not hidden, sorted. Raises UserError when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): images lie in PATH/train/<class>/") from None


def flat_labels(path: Path, place: Path, given: Path | None, images: list[str], classes: list[str]) -> np.ndarray:
    """The labels of a held-out set without class folders: [n] int64. given: its labels file; None: the one in ``path``.
    place: where the images are. Raises UserError without a labels file, and for one that does not fit."""
    file = given or label_files.find(path)
    if file is None:
        raise UserError(f"{place} holds images outside of class folders: name their labels file, VAL_LABELS=FILE, or "
                        "unpack ImageNet's archive with `bench unpack-imagenet`")  # fmt: skip
    in_order = sorted(images)  # a tar's need not be
    found = dict(zip(in_order, label_files.classes_of(file, in_order, classes), strict=True))
    numbers = dict(
        zip(names := sorted(set(found.values())), labels_of(names, classes, file, path / "train"), strict=True)
    )
    return np.array([numbers[found[image]] for image in images], dtype=np.int64)


def image_names(folder: Path) -> list[str]:
    """The image files of a class folder, sorted."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if is_image(e.name) and e.is_file())


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image, and not hidden."""
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def held_out(path: Path, suffix: str) -> Path:
    """``val`` or ``eval`` below a path. Raises UserError when there is neither."""
    for name in ("val", "eval"):
        if (path / f"{name}{suffix}").exists():
            return path / f"{name}{suffix}"
    raise UserError(f"{path} holds neither val{suffix} nor eval{suffix}: the held-out images belong there")


def labels_of(names: list[str], classes: list[str], place: Path, training: Path) -> np.ndarray:
    """The label of each class name: its place among the training classes. Raises UserError for one unknown there."""
    labels = {name: label for label, name in enumerate(classes)}
    for name in names:
        if name not in labels:
            raise UserError(f"{place} has the class {name}, which {training} does not have: remove or rename it")
    return np.array([labels[name] for name in names], dtype=np.int64)


def digest(*parts) -> str:
    """A short name for some values, and for the versions of the decoders."""
    said = repr((*parts, torchvision.__version__, PIL.__version__, 1))
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()[:24]


def tar_index(tar: Path, cache: Path | None) -> dict[str, np.ndarray]:
    """What a tar holds, found once a process and, with a cache folder, once a machine; see ``scan``."""
    try:
        stat = tar.stat()
    except OSError as error:
        raise UserError(f"{tar} cannot be read ({error.strerror}): images lie in PATH/train.tar and val.tar") from None
    return load_index(tar.resolve(), stat.st_size, stat.st_mtime_ns, cache)


@functools.lru_cache(maxsize=4)
def load_index(tar: Path, size: int, mtime_ns: int, cache: Path | None) -> dict[str, np.ndarray]:
    """``scan``, kept for a state of the file."""
    if cache is None:
        return scan(tar)

    def make(part: Path) -> None:
        with part.open("wb") as file:
            np.savez(file, **scan(tar))

    with np.load(made_once(Path(cache) / f"{digest(tar, size, mtime_ns)}.npz", make)) as saved:
        return dict(saved)


def scan(tar: Path) -> dict[str, np.ndarray]:
    """Find the images of a tar with timm: classes [c], and for each image its label, name, offset and size in bytes.

    Raises UserError without timm, and for a tar that is damaged, truncated, or without images in class folders.
    """
    try:
        from timm.data.readers.reader_image_in_tar import extract_tarinfos
    except ImportError:
        raise UserError("images in tar files are read with timm, which is not installed: pip install timm") from None
    try:
        samples, labels, class_labels, _ = extract_tarinfos(str(tar), cache_tarinfo=False, extensions=EXTENSIONS)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{tar} cannot be read to its end ({error}): it is truncated, damaged or no tar") from None
    except ValueError:  # timm has nothing to unpack
        raise UserError(f"{tar} holds no image of a type that can be read ({' '.join(EXTENSIONS)})") from None
    keep = [i for i, (image, _, _) in enumerate(samples) if is_image(Path(image.path).name)]  # none that is hidden
    if not keep:
        raise UserError(f"{tar} holds only hidden images")
    samples, (used, labels) = samples[keep], np.unique(labels[keep], return_inverse=True)
    classes = np.array(sorted(class_labels, key=class_labels.get))[used]
    # An inner tar's members count from its own start.
    offsets = [image.offset_data + (inner.offset_data if inner else 0) for image, _, inner in samples]
    sizes = [image.size for image, _, _ in samples]
    if max(offset + size for offset, size in zip(offsets, sizes, strict=True)) > tar.stat().st_size:
        raise UserError(f"{tar} is truncated: an image extends beyond its end")
    names = [f"{inner.name}/{image.name}" if inner else image.name for image, _, inner in samples]
    return {
        "classes": classes,
        "labels": labels.astype(np.int64),
        "names": np.array([os.fsencode(name) for name in names]),
        "offsets": np.array(offsets, dtype=np.int64),
        "sizes": np.array(sizes, dtype=np.int64),
    }
