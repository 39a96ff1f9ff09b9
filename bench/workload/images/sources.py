"""Sources of photographs: class folders, or tar files of them. The names, labels and bytes of the images."""

import functools
import hashlib
import os
import tarfile
from pathlib import Path

import numpy as np
import PIL
import torchvision

from bench import files
from bench.errors import UserError
from bench.storage import labels as label_files
from bench.workload.images.decode import Unreadable
from bench.workload.once import made_once

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class FolderSource:
    """Image files in ``PATH/train/<class>/`` and ``PATH/val/<class>/`` (or eval), without hidden ones. A val folder
    without class folders, like ImageNet's, needs a labels file: ``val_labels``, or the one in PATH.

    classes: the names of the training folders, sorted. labels: [n] int64, indices into ``classes``. Raises UserError
    for missing folders, images or labels, and for a class of val that train does not have.
    """

    def __init__(self, path: str | Path, train: bool, val_labels: Path | None = None):
        self.path = Path(path)
        self.classes = class_names(self.path / "train")
        folder = self.path / "train" if train else held_out(self.path, "")
        if not folders_in(folder) and (images := image_names(folder)):
            self.names = np.array([os.fsencode(f"{folder.name}/{image}") for image in images])
            self.labels = flat_labels(self.path, folder, val_labels, images, self.classes)
            return
        names = class_names(folder)
        labels = labels_of(names, self.classes, folder, self.path / "train")
        files = [image_names(folder / name) for name in names]
        if not any(files):
            raise UserError(f"{folder} contains no image of a supported type ({' '.join(EXTENSIONS)})")
        if empty := next((name for name, found in zip(names, files, strict=True) if not found), None):
            raise UserError(f"{folder / empty} contains no image: remove the folder, or put images into it")
        self.labels = np.repeat(labels, [len(found) for found in files])
        # One array, not a million objects: reference counts would copy the workers' shared memory page by page.
        self.names = np.array([os.fsencode(f"{folder.name}/{name}/{file}")
                               for name, found in zip(names, files, strict=True) for file in found])  # fmt: skip

    def name(self, index: int) -> str:
        return os.fsdecode(self.names[index])

    def read(self, index: int) -> bytes:
        try:
            return files.read_regular_file(self.path / self.name(index))
        except OSError as error:
            raise Unreadable(error.strerror) from None

    def key(self) -> str:
        """Changes with the files' names, sizes and times, and with the decoders."""
        stats = [os.stat(self.path / self.name(index)) for index in range(len(self.names))]
        return digest(self.path.resolve(), self.names.tobytes(), [(s.st_size, s.st_mtime_ns) for s in stats])


class TarSource:
    """Images in ``PATH/train.tar`` and ``PATH/val.tar`` (or eval), not unpacked. An image's class is its folder in the
    tar, or its inner tar, as in ImageNet's train.tar. val_labels, classes, labels, errors: as in FolderSource. Needs
    timm. cache: a folder for the index of each tar, written by one process, because finding the images reads a tar of
    tars completely."""

    def __init__(self, path: str | Path, train: bool, cache: Path | None = None, val_labels: Path | None = None):
        self.path = Path(path)
        self.tar = training = self.path / "train.tar"
        index = tar_index(training, cache)
        self.classes = index["classes"].tolist()
        if {"", "."} & set(self.classes):
            raise UserError(f"{training} contains images outside of class folders: name them <class>/<image>")
        if not train:
            self.tar = held_out(self.path, ".tar")
            index = tar_index(self.tar, cache)
        self.names, self.offsets, self.sizes = index["names"], index["offsets"], index["sizes"]
        held = index["classes"].tolist()
        if not train and len(held) == 1 and held[0] not in self.classes:  # all in one folder that is not a class
            images = [Path(os.fsdecode(name)).name for name in self.names]
            self.labels = flat_labels(self.path, self.tar, val_labels, images, self.classes)
        else:
            self.labels = labels_of(held, self.classes, self.tar, training)[index["labels"]]

    def name(self, index: int) -> str:
        return f"{self.tar.name}/{os.fsdecode(self.names[index])}"

    def read(self, index: int) -> bytes:
        """An image's bytes. Loader workers that inherit one open tar would share its position and silently swap images,
        so each read opens the file."""
        try:
            with self.tar.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), int(self.sizes[index]), int(self.offsets[index]))
        except OSError as error:
            raise Unreadable(error.strerror) from None
        if len(data) < self.sizes[index]:
            raise Unreadable("the tar ends within it")
        return data

    def key(self) -> str:
        stat = self.tar.stat()
        return digest(self.tar.resolve(), self.names.tobytes(), (stat.st_size, stat.st_mtime_ns))


def class_names(folder: Path) -> list[str]:
    names = folders_in(folder)
    if not names:
        raise UserError(
            f"{folder} contains no class folders: put images into PATH/train/<class>/ and PATH/val/<class>/"
        )
    return names


def folders_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): put images into PATH/train/<class>/") from None


def flat_labels(path: Path, place: Path, given: Path | None, images: list[str], classes: list[str]) -> np.ndarray:
    """The labels of a validation set without class folders: [n] int64. given: its labels file; None: the one in
    ``path``. place: of the images. Raises UserError without a labels file, and for one that does not match."""
    file = given or label_files.find(path)
    if file is None:
        raise UserError(f"{place} contains images outside of class folders: set VAL_LABELS=FILE, or "
                        "unpack ImageNet's archive with `bench install imagenet`")  # fmt: skip
    in_order = sorted(images)  # a tar's are in any order
    found = dict(zip(in_order, label_files.classes_of(file, in_order, classes), strict=True))
    return labels_of([found[image] for image in images], classes, file, path / "train")


def image_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if is_image(e.name) and e.is_file())


def is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def held_out(path: Path, suffix: str) -> Path:
    for name in ("val", "eval"):
        if (path / f"{name}{suffix}").exists():
            return path / f"{name}{suffix}"
    raise UserError(f"{path} contains neither val{suffix} nor eval{suffix}: put the validation images there")


def labels_of(names: list[str], classes: list[str], place: Path, training: Path) -> np.ndarray:
    """The index of each class name among the training classes. place, training: for the error."""
    labels = {name: label for label, name in enumerate(classes)}
    if unknown := sorted(set(names) - labels.keys()):
        raise UserError(f"{place} has the class {unknown[0]}, which {training} does not have: remove or rename it")
    return np.array([labels[name] for name in names], dtype=np.int64)


def digest(*parts) -> str:
    """A short hash of some values and of the decoders' versions."""
    said = repr((*parts, torchvision.__version__, PIL.__version__, 1))
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()[:24]


def tar_index(tar: Path, cache: Path | None) -> dict[str, np.ndarray]:
    """``scan`` of a tar, once per process and, with a cache folder, once per machine."""
    try:
        with files.open_regular_file(tar) as file:
            stat = os.fstat(file.fileno())
    except OSError as error:
        raise UserError(
            f"{tar} cannot be read ({error.strerror}): put images into PATH/train.tar and val.tar"
        ) from None
    return load_index(tar.resolve(), stat.st_size, stat.st_mtime_ns, cache)


@functools.lru_cache(maxsize=4)
def load_index(tar: Path, size: int, mtime_ns: int, cache: Path | None) -> dict[str, np.ndarray]:
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
        raise UserError(
            f"{tar} cannot be read completely ({error}): it is truncated, damaged or not a tar file"
        ) from None
    except ValueError:  # timm found nothing
        raise UserError(f"{tar} contains no image of a supported type ({' '.join(EXTENSIONS)})") from None
    keep = [i for i, (image, _, _) in enumerate(samples) if is_image(Path(image.path).name)]  # not hidden
    if not keep:
        raise UserError(f"{tar} contains only hidden files")
    samples, (used, labels) = samples[keep], np.unique(labels[keep], return_inverse=True)
    # An inner tar's members count from its own start.
    offsets = np.array([image.offset_data + (inner.offset_data if inner else 0) for image, _, inner in samples])
    sizes = np.array([image.size for image, _, _ in samples])
    if max(offsets + sizes) > tar.stat().st_size:
        raise UserError(f"{tar} is truncated: an image extends beyond its end")
    names = [f"{inner.name}/{image.name}" if inner else image.name for image, _, inner in samples]
    return {
        "classes": np.array(sorted(class_labels, key=class_labels.get))[used],
        "labels": labels.astype(np.int64),
        "names": np.array([os.fsencode(name) for name in names]),
        "offsets": offsets,
        "sizes": sizes,
    }
