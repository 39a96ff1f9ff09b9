"""The class of each image of a folder without class folders, from a labels file: a list of two columns (name, and class
or its number in the sorted class names; Kaggle's LOC_val_solution.csv, too); ImageNet's ground truth, a number per
image whose meaning is in meta.mat or meta.txt beside it; or the development kit's folder or .tar.gz."""

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
    """The labels file in a data set's folder."""
    return next((folder / name for name in (*LISTS, GROUND_TRUTH) if (folder / name).is_file()), None)


def classes_of(path: Path, images: Sequence[str], classes: Sequence[str] = ()) -> list[str]:
    """The class of each image. images: sorted names. classes: the class names if known. Raises UserError."""
    found = files_at(path)
    text = next((data for name, data in found.items() if name not in META), None)
    if text is None:
        raise UserError(f"{path} does not contain {GROUND_TRUTH}: name the labels file")
    lines = decoded_lines(path, text)
    if not lines or not all(line.isdecimal() for line in lines):
        return by_name(path, lines, images, sorted(classes))
    meaning = meanings(path, found)
    if len(lines) != len(images):
        raise UserError(f"{path} has {len(lines)} labels for {len(images)} images: use the labels file of these images")
    for number in lines:
        if int(number) not in meaning:
            raise UserError(
                f"{path}: {number} is not a class in {' or '.join(META)}: use the files of one development kit"
            )
    return [meaning[int(number)] for number in lines]


def files_at(path: Path) -> dict[str, bytes]:
    """The labels file and its meta files, by name. Raises UserError."""
    wanted = (GROUND_TRUTH, *META)
    try:
        if path.is_dir():
            places = [place / name for name in wanted for place in (path, path / "data")]
            return {place.name: files.read_regular_file(place, MOST_BYTES) for place in places if place.is_file()}
        if path.name.endswith((".tar.gz", ".tgz")):
            with files.open_regular_file(path) as file, tarfile.open(None, "r:gz", file) as tar:
                members = [(PurePosixPath(member.name).name, member) for member in tar if member.isfile()]
                members = [(name, member) for name, member in members if name in wanted and member.size < MOST_BYTES]
                return {name: tar.extractfile(member).read() for name, member in members}
        places = [path, *(meta for name in META if (meta := path.with_name(name)).is_file())]
        return {place.name: files.read_regular_file(place, MOST_BYTES) for place in places}
    except (OSError, EOFError, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({why}): name the labels file") from None


def decoded_lines(path: Path, text: bytes) -> list[str]:
    try:
        return [line.strip() for line in text.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file: name the labels file") from None


def by_name(path: Path, lines: list[str], images: Sequence[str], classes: Sequence[str]) -> list[str]:
    known = {Path(image).stem: image for image in images} | {image: image for image in images}
    found = {}
    for number, line in enumerate(lines, 1):
        name, label = columns(line)
        image = known.get(PurePosixPath(name).name)
        if image is None and number == 1:
            continue  # a header
        if image is None or not label:
            raise UserError(f"{path}, line {number}: {line[:60]!r} is not an existing image and its class")
        if found.setdefault(image, label) != label:
            raise UserError(f"{path}, line {number}: {image} already has the label {found[image]}: remove one")
    if missing := [image for image in images if image not in found]:
        raise UserError(f"{path} has no label for {len(missing)} of {len(images)} images, including {missing[0]}")
    return [class_of(path, found[image], classes) for image in images]


def columns(line: str) -> tuple[str, str]:
    """A line's name and label, separated by a comma or spaces."""
    name, _, rest = line.partition(",") if "," in line else re.sub(r"\s+", " ", line).partition(" ")
    return name.strip().strip('"'), (rest.split() or [""])[0].strip('"')


def class_of(path: Path, label: str, classes: Sequence[str]) -> str:
    """A label as a class name: itself, or the number of one."""
    if label in classes or not label.isdecimal():
        return label
    if not classes:
        raise UserError(f"{path} numbers the classes, but their names are unknown: unpack the training images as well")
    if int(label) >= len(classes):
        raise UserError(f"{path}: {label} is not a class: numbers count the {len(classes)} sorted class names from 0")
    return classes[int(label)]


def meanings(path: Path, found: dict[str, bytes]) -> dict[int, str]:
    """The class of each number in ImageNet's ground truth."""
    if "meta.mat" in found:
        from scipy.io import loadmat

        try:
            table = loadmat(io.BytesIO(found["meta.mat"]), squeeze_me=True)["synsets"]
            return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table}
        except Exception as error:  # a damaged file can make its reader raise anything
            remedy = "take it from the development kit"
            raise UserError(f"meta.mat beside {path} cannot be read ({str(error)[:80]}): {remedy}") from None
    if "meta.txt" not in found:
        raise UserError(f"{path} is a list of numbers: put meta.mat of the development kit beside it")
    pairs = [line.split()[:2] for line in decoded_lines(path, found["meta.txt"])]
    if not all(len(pair) == 2 and pair[0].isdecimal() for pair in pairs):
        raise UserError(f"meta.txt beside {path}: write a number and a class on each line")
    return {int(number): name for number, name in pairs}
