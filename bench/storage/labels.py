"""The class of each image of a folder without class folders, from the labels file that came with it. No torch.

What is read, all as text but for meta.mat:

- a list of two columns, a name and a class or its number, with a comma, a tab or spaces between and perhaps a head:
  ``ILSVRC2012_val_00000001.JPEG,n01751748``. Numbers count the sorted class names from 0. Of Kaggle's
  ``LOC_val_solution.csv`` the boxes are left out;
- ImageNet's own ``ILSVRC2012_validation_ground_truth.txt``: a number for each image, in the order of their names. What
  the numbers mean stands in ``meta.mat`` beside it, or in ``meta.txt``: a number and a class on each line;
- the folder of the development kit that has these two, or its ``.tar.gz``.
"""

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from bench import files
from bench.errors import UserError

GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
META = ("meta.mat", "meta.txt")
LISTS = ("val_labels.csv", "val_labels.txt", "LOC_val_solution.csv")
MOST_BYTES = 64 * 2**20  # of a labels file


def find(folder: Path) -> Path | None:
    """The labels file in a data set's folder; None without one."""
    return next((folder / name for name in (*LISTS, GROUND_TRUTH) if (folder / name).is_file()), None)


def classes_of(path: Path, images: Sequence[str], classes: Sequence[str] = ()) -> list[str]:
    """The class of each image. images: their names, sorted. classes: the class names, where they are known.

    Raises UserError for a file that is not there or is no labels file, for an image without a label or with two, for a
    label of no image, and for a number that is no class.
    """
    found = files_at(path)
    name, text = next(((name, data) for name, data in found.items() if name not in META), (None, b""))
    if name is None:
        raise UserError(f"{path} holds no {GROUND_TRUTH}: name the labels file")
    lines = [line.strip() for line in decoded(path, text).splitlines() if line.strip()]
    if lines and all(line.isdecimal() for line in lines):
        return in_order(path, lines, images, meanings(path, found))
    return by_name(path, lines, images, sorted(classes))


def files_at(path: Path) -> dict[str, bytes]:
    """The labels file and what explains it: name -> content. Raises UserError when nothing can be read."""
    wanted = (GROUND_TRUTH, *META)
    try:
        if path.is_dir():
            places = [place / name for name in wanted for place in (path, path / "data")]
            return {place.name: files.read_plain(place, MOST_BYTES) for place in places if place.is_file()}
        if path.name.endswith((".tar.gz", ".tgz")):
            with files.opened_plain(path) as file, tarfile.open(None, "r:gz", file) as tar:
                members = [
                    m for m in tar if PurePosixPath(m.name).name in wanted and m.isfile() and m.size < MOST_BYTES
                ]
                return {PurePosixPath(m.name).name: tar.extractfile(m).read() for m in members}
        beside = [path.with_name(name) for name in META]
        return {
            place.name: files.read_plain(place, MOST_BYTES)
            for place in (path, *beside)
            if place == path or place.is_file()
        }
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): name the labels file"
        ) from None


def decoded(path: Path, text: bytes) -> str:
    """Bytes as text. Raises UserError for what is none."""
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is no labels file: it is no text") from None


def by_name(path: Path, lines: list[str], images: Sequence[str], classes: Sequence[str]) -> list[str]:
    """A list of two columns -> the class of each image."""
    known = {Path(image).stem: image for image in images} | {image: image for image in images}
    found = {}
    for number, line in enumerate(lines, 1):
        name, label = columns(line)
        image = known.get(PurePosixPath(name).name)
        if image is None and number == 1:
            continue  # a head
        if image is None or not label:
            raise UserError(
                f"{path}, line {number}: {line[:60]!r} is not the name of an image that is there, and its class"
            )
        if found.setdefault(image, label) != label:
            raise UserError(f"{path}, line {number}: {image} has the label {found[image]} already")
    if missing := [image for image in images if image not in found]:
        raise UserError(f"{path} has no label for {len(missing)} of {len(images)} images, {missing[0]} among them")
    return [class_of(path, found[image], classes) for image in images]


def columns(line: str) -> tuple[str, str]:
    """A line's name and label.

    >>> columns("a.JPEG,n01"), columns("a 65"), columns("a,n01 111 108 230 202")
    (('a.JPEG', 'n01'), ('a', '65'), ('a', 'n01'))
    """
    name, _, rest = line.partition(",") if "," in line else re.sub(r"\s+", " ", line).partition(" ")
    return name.strip().strip('"'), (rest.split() or [""])[0].strip('"')


def class_of(path: Path, label: str, classes: Sequence[str]) -> str:
    """A label as a class name: it is one, or the number of one."""
    if label in classes or not label.isdecimal():
        return label
    if not classes:
        raise UserError(
            f"{path} numbers the classes, and what they are is not known: unpack the training images as well"
        )
    if int(label) >= len(classes):
        raise UserError(f"{path}: {label} is no class: numbers count the {len(classes)} sorted class names from 0")
    return classes[int(label)]


def in_order(path: Path, numbers: list[str], images: Sequence[str], meaning: dict[int, str]) -> list[str]:
    """ImageNet's ground truth -> the class of each image."""
    if len(numbers) != len(images):
        raise UserError(f"{path} has {len(numbers)} labels, and there are {len(images)} images")
    for number in numbers:
        if int(number) not in meaning:
            raise UserError(f"{path}: {number} is no class of {' or '.join(META)}")
    return [meaning[int(number)] for number in numbers]


def meanings(path: Path, found: dict[str, bytes]) -> dict[int, str]:
    if "meta.mat" in found:
        return read_mat(path, found["meta.mat"])
    if "meta.txt" in found:
        pairs = [line.split()[:2] for line in decoded(path, found["meta.txt"]).splitlines() if line.strip()]
        if all(len(pair) == 2 and pair[0].isdecimal() for pair in pairs):
            return {int(number): name for number, name in pairs}
        raise UserError(f"meta.txt beside {path}: write a number and a class on each line")
    raise UserError(
        f"{path} is a list of numbers: what they mean stands in meta.mat of the development kit: put it beside"
    )


def read_mat(path: Path, data: bytes) -> dict[int, str]:
    """The classes of meta.mat: its table ``synsets`` has a number, ILSVRC2012_ID, and a name, WNID."""
    from scipy.io import loadmat

    try:
        table = loadmat(io.BytesIO(data), squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table}
    except Exception as error:  # a damaged file can make its reader raise anything
        raise UserError(
            f"meta.mat beside {path} cannot be read ({str(error)[:80]}): take it from the development kit"
        ) from None
