"""bench/storage/labels.py: the classes of flat images from the files that come with ImageNet, and what is none."""

import tarfile

import numpy as np
import pytest
from scipy.io import savemat

from bench.storage import labels
from tests.runs import refuses

IMAGES = [f"ILSVRC2012_val_0000000{n}.JPEG" for n in (1, 2, 3, 4)]
CLASSES = ["n01", "n02", "n03"]
WANTED = ["n03", "n01", "n02", "n03"]
IDS = {"n03": 1, "n01": 2, "n02": 7}  # ImageNet's numbers are not in the order of the names


def ground_truth(folder, meta: str | None = "meta.mat"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / labels.GROUND_TRUTH).write_text("".join(f"{IDS[name]}\n" for name in WANTED))
    if meta == "meta.txt":
        (folder / meta).write_text("".join(f"{number} {name} a word of it\n" for name, number in IDS.items()))
    if meta == "meta.mat":
        table = np.zeros(len(IDS), dtype=[("ILSVRC2012_ID", "f8"), ("WNID", object), ("words", object)])
        for row, (name, number) in zip(table, IDS.items(), strict=True):
            row["ILSVRC2012_ID"], row["WNID"], row["words"] = number, name, "a word"
        savemat(folder / meta, {"synsets": table})
    return folder / labels.GROUND_TRUTH


def written(tmp_path, text: str):
    (tmp_path / "list.txt").write_text(text)
    return tmp_path / "list.txt"


ROWS = list(zip(IMAGES, WANTED, strict=True))
LISTS = {
    "commas": "".join(f"{image},{name}\n" for image, name in ROWS),
    "a head": "name,label\n" + "".join(f"{image},{name}\n" for image, name in ROWS),
    "tabs": "".join(f"{image}\t{name}\n" for image, name in ROWS),
    "in another order": "".join(f"{image} {name}\n" for image, name in reversed(ROWS)),
    "with folders": "".join(f"val/{image} {name}\n" for image, name in ROWS),
    "Kaggle's": "ImageId,PredictionString\n" + "".join(f"{i[:-5]},{n} 1 2 3 4 {n} 5 6 7 8 \n" for i, n in ROWS),
    "numbers from 0": "".join(f"{image} {CLASSES.index(name)}\n" for image, name in ROWS),
    "Windows'": "\ufeff" + "".join(f'"{image}","{name}"\r\n' for image, name in ROWS),
}


@pytest.mark.parametrize("form", LISTS)
def test_a_list_of_names_and_classes(tmp_path, form):
    assert labels.classes_of(written(tmp_path, LISTS[form]), IMAGES, CLASSES) == WANTED
    file = written(tmp_path, "a.png 10\nb.png 2\n")  # names that are numbers are names first
    assert labels.classes_of(file, ["a.png", "b.png"], ["10", "2", "7"]) == ["10", "2"]


@pytest.mark.parametrize("meta", ["meta.mat", "meta.txt"])
def test_imagenets_ground_truth(tmp_path, meta):
    """By the name of the file, its folder, the kit, or the kit's archive."""
    file = ground_truth(tmp_path / "kit" / "data", meta)
    archive = tmp_path / "kit.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "kit", "ILSVRC2012_devkit_t12")
    for place in (file, file.parent, tmp_path / "kit", archive):
        assert labels.classes_of(place, IMAGES) == WANTED
    assert labels.find(tmp_path) is None and labels.find(file.parent) == file
    (file.parent / "val_labels.csv").write_text(LISTS["commas"])
    assert labels.find(file.parent) == file.parent / "val_labels.csv"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ["4 of 4"]),
        (LISTS["commas"].replace(IMAGES[2], "other.JPEG"), ["line 3", "other.JPEG,n02"]),
        (LISTS["commas"].replace(",n02", ","), ["line 3"]),
        (LISTS["commas"] + f"{IMAGES[0]},n01\n", ["line 5", IMAGES[0], "n03"]),
        (LISTS["tabs"].replace(f"{IMAGES[3]}\tn03\n", ""), ["1 of 4", IMAGES[3]]),
        (LISTS["numbers from 0"].replace(" 2", " 3"), ["3"]),
        ("1\n2\n3\n4\n", ["meta.mat"]),
    ],
)
def test_labels_that_do_not_fit_are_one_line(tmp_path, text, values):
    with refuses(*values):
        labels.classes_of(written(tmp_path, text), IMAGES, CLASSES)


def test_what_is_no_labels_file_is_one_line(tmp_path):
    def refused(path, *values, images=IMAGES):
        with refuses(path, *values):
            labels.classes_of(path, images)

    refused(tmp_path / "nowhere.txt")
    (tmp_path / "image.txt").write_bytes(b"\xff\xd8\xff\xe0")
    refused(tmp_path / "image.txt")
    refused(tmp_path, labels.GROUND_TRUTH)
    (tmp_path / "kit.tar.gz").write_bytes(b"\x1f\x8b, and no more")
    refused(tmp_path / "kit.tar.gz")
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(labels.MOST_BYTES + 1)
    refused(tmp_path / "large.txt", "64 MiB")
    refused(written(tmp_path, LISTS["numbers from 0"]))  # numbers without class names mean nothing
    file = ground_truth(tmp_path)
    refused(file, "4", "3", images=IMAGES[:3])
    file.write_text("1\n2\n3\n1\n")
    refused(file, "3", "meta.mat")
    (tmp_path / "meta.mat").write_bytes(b"no matrix at all" * 20)
    refused(file, "meta.mat")
