"""Unpack ImageNet's archives into class folders ``train/<class>/`` and ``val/<class>/``. A split is unpacked into
``.<split>.part`` and renamed when complete. It continues after an interruption, overwrites nothing, and never writes
outside the folder."""

import collections
import contextlib
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from bench import files
from bench.errors import UserError
from bench.storage import labels

IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.(jpe?g|png)", re.IGNORECASE)
CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
SOURCE = ".unpacked.json"  # in a split's folder: its archive
IMAGENET = {"train": (1000, 1_281_167), "val": (1000, 50_000)}  # classes and images of ILSVRC 2012
SAY_EVERY_S = 10
BLOCK = 512  # of a tar

Image = tuple[str, str, int, Callable[[], BinaryIO]]  # class, name, bytes, opener


def unpack(
    train: Path | None, val: Path | None, labels_file: Path | None, to: Path, say: Callable[[str], None]
) -> None:
    """Unpack one archive or both. say: gets progress messages. Raises UserError for a damaged or wrong archive, labels
    that do not match, another folder's content, or a full disk; OSError when writing fails."""
    to.mkdir(parents=True, exist_ok=True)
    busy = UserError(f"another process unpacks into {to}: wait for it")
    with files.locked(to / ".unpack.lock", time.monotonic(), busy):
        if train:
            with opened(train) as tar:
                unpack_split("train", train, training_images(tar, train), to, say)
        if val:
            classes = sorted(path.name for path in (to / "train").glob("*") if path.is_dir())
            with opened(val) as tar:
                unpack_split("val", val, validation_images(tar, val, labels_file, classes), to, say)


def unpack_split(split: str, archive: Path, images: Iterator[Image], to: Path, say: Callable[[str], None]) -> None:
    whole, part = to / split, to / f".{split}.part"
    source = {"archive": archive.name, "bytes": archive.stat().st_size}
    if whole.exists():
        if source_of(whole) != source:
            raise UserError(f"{whole} already exists and does not come from {archive.name}: choose another folder")
        return say(f"{split}: already unpacked")
    if part.exists() and any(part.iterdir()) and source_of(part) != source:
        raise UserError(f"{part} is left from unpacking another archive: remove it, or choose another folder")
    if not part.exists() and shutil.disk_usage(to).free < source["bytes"]:
        raise UserError(
            f"{to} has not enough free space for {archive.name}: {source['bytes'] / 2**30:.1f} GiB are needed"
        )
    part.mkdir(exist_ok=True)
    (part / SOURCE).write_text(json.dumps(source))
    counts, said = collections.Counter(), time.monotonic()
    for class_name, name, size, open_image in images:
        (part / class_name).mkdir(exist_ok=True)
        counts[class_name] += 1
        write(part / class_name / name, size, open_image)
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            say(f"{split}: {counts.total()} images of {len(counts)} classes so far")
    for folder in part.iterdir():
        there, ours = len(os.listdir(folder)) if folder.name != SOURCE else 0, counts[folder.name]
        if there != ours:
            raise UserError(f"{folder} contains {there} files, {ours} of them from {archive.name}: remove {part}")
    os.sync()
    part.rename(whole)
    classes, images = IMAGENET[split]
    usual = f"ImageNet has {classes} and {images}"
    usual = "as in ImageNet" if (len(counts), counts.total()) == (classes, images) else usual
    say(f"{split}: {len(counts)} classes, {counts.total()} images ({usual})")


def source_of(folder: Path) -> dict | None:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / SOURCE).read_text())
    return None


def write(path: Path, size: int, open_image: Callable[[], BinaryIO]) -> None:
    """Write one image completely; a file of its size was written before."""
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_size == size:
            return
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        shutil.copyfileobj(open_image(), file, 1 << 20)
    temporary.replace(path)


def training_images(outer: tarfile.TarFile, archive: Path) -> Iterator[Image]:
    """The images of a tar of tars."""
    seen = set()
    for member in list(members(outer, archive)):  # read to the end before hours of unpacking
        class_name = member.name.removeprefix("./").removesuffix(".tar")
        if not CLASS.fullmatch(class_name) or not member.name.endswith(".tar"):
            raise UserError(
                f"{archive} contains {member.name!r}: the training archive contains one <class>.tar per class"
            )
        if class_name in seen:
            raise UserError(f"{archive} contains the class {class_name} twice: download it again")
        seen.add(class_name)
        with opened(archive, outer.extractfile(member)) as inner:
            for image in flat_images(inner, archive, f"{class_name}.tar of {archive}"):
                yield class_name, *image
    if not seen:
        raise UserError(f"{archive} is empty")


def validation_images(tar: tarfile.TarFile, archive: Path, labels_file: Path, classes: list[str]) -> Iterator[Image]:
    """The images of a flat tar with their classes."""
    images = sorted(flat_images(tar, archive, str(archive)), key=lambda image: image[0])
    if not images:
        raise UserError(f"{archive} is empty")
    for image, class_name in zip(images, labels.classes_of(labels_file, [i[0] for i in images], classes), strict=True):
        if not CLASS.fullmatch(class_name):
            raise UserError(f"{labels_file}: {class_name!r} cannot be the name of a class folder")
        if classes and class_name not in classes:
            raise UserError(f"{labels_file} has the class {class_name}, which the training images do not have")
        yield class_name, *image


def flat_images(tar: tarfile.TarFile, archive: Path, what: str) -> Iterator[tuple]:
    """(name, bytes, opener) of each image. Raises UserError for anything else in the tar."""
    seen = set()
    for member in members(tar, archive):
        name = member.name.removeprefix("./")
        if not IMAGE.fullmatch(name):
            raise UserError(f"{what} contains {member.name!r}, which is not an image at the top level")
        if name in seen:
            raise UserError(f"{what} contains {name} twice: download it again")
        seen.add(name)
        yield name, member.size, lambda member=member: tar.extractfile(member)


def members(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    """The files of a tar, checked to its end. Raises UserError for a link, a device or a sparse file."""
    for member in tar:
        if member.isdir() and member.name in (".", "./"):
            continue
        if not member.isfile() or member.issparse():
            raise UserError(f"{archive} contains {member.name!r}, which is not a regular file")
        yield member
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(BLOCK) != bytes(BLOCK):  # tarfile accepts a tar that is cut between two files
        raise UserError(f"{archive} is truncated or damaged: download it again")


@contextlib.contextmanager
def opened(archive: Path, fileobj: BinaryIO | None = None) -> Iterator[tarfile.TarFile]:
    with contextlib.ExitStack() as stack:
        try:
            file = fileobj or stack.enter_context(files.open_regular_file(archive))
        except OSError as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise UserError(f"{archive} {why}") from None
        try:
            yield stack.enter_context(tarfile.open(None, "r:", file))
        except (tarfile.TarError, EOFError) as error:
            raise UserError(f"{archive} is truncated, damaged or not a tar file ({error})") from None
