"""bench/storage/labels.py: the classes of flat images from the files that come with ImageNet, and what is none."""

import io
import tarfile

import numpy as np
import pytest

from bench.errors import UserError
from bench.storage import labels

IMAGES = [f"ILSVRC2012_val_0000000{n}.JPEG" for n in (1, 2, 3, 4)]
CLASSES = ["n01", "n02", "n03"]
WANTED = ["n03", "n01", "n02", "n03"]
IDS = {"n03": 1, "n01": 2, "n02": 7}  # ImageNet's numbers are not in the order of the names


def ground_truth(folder, meta: str | None = "meta.mat"):
    """The development kit's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / labels.GROUND_TRUTH).write_text("".join(f"{IDS[name]}\n" for name in WANTED))
    if meta == "meta.txt":
        (folder / meta).write_text("".join(f"{number} {name} a word of it\n" for name, number in IDS.items()))
    if meta == "meta.mat":
        from scipy.io import savemat

        table = np.zeros(len(IDS), dtype=[("ILSVRC2012_ID", "f8"), ("WNID", object), ("words", object)])
        for row, (name, number) in zip(table, IDS.items(), strict=True):
            row["ILSVRC2012_ID"], row["WNID"], row["words"] = number, name, "a word"
        savemat(folder / meta, {"synsets": table})
    return folder / labels.GROUND_TRUTH


def written(tmp_path, text: str):
    """A list in a file."""
    (tmp_path / "list.txt").write_text(text)
    return tmp_path / "list.txt"


def the_line(*arguments) -> str:
    """The one line with which labels are refused."""
    with pytest.raises(UserError) as caught:
        labels.classes_of(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


@pytest.mark.parametrize("meta", ["meta.mat", "meta.txt"])
@pytest.mark.parametrize("named", ["the file", "its folder", "the kit", "the kit's archive"])
def test_imagenets_ground_truth(tmp_path, meta, named):
    file = ground_truth(tmp_path / "kit" / "data", meta)
    archive = tmp_path / "kit.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "kit", "ILSVRC2012_devkit_t12")
    places = {"the file": file, "its folder": file.parent, "the kit": tmp_path / "kit", "the kit's archive": archive}
    assert labels.classes_of(places[named], IMAGES) == WANTED


def test_class_names_that_are_numbers_are_names_first(tmp_path):
    file = written(tmp_path, "a.png 10\nb.png 2\n")
    assert labels.classes_of(file, ["a.png", "b.png"], ["10", "2", "7"]) == ["10", "2"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no label for 4 of 4 images"),
        (LISTS["commas"].replace(IMAGES[2], "other.JPEG"), "line 3: 'other.JPEG,n02'"),
        (LISTS["commas"].replace(",n02", ","), "line 3"),
        (LISTS["commas"] + f"{IMAGES[0]},n01\n", f"line 5: {IMAGES[0]} has the label n03 already"),
        (LISTS["tabs"].replace(f"{IMAGES[3]}\tn03\n", ""), f"no label for 1 of 4 images, {IMAGES[3]} among them"),
        (LISTS["numbers from 0"].replace(" 2", " 3"), "3 is not a class: numbers count the 3 sorted"),
        ("1\n2\n3\n4\n", "put meta.mat"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(tmp_path, text, words):
    assert words in the_line(written(tmp_path, text), IMAGES, CLASSES)


def test_what_is_no_labels_file_is_one_line(tmp_path):
    assert "cannot be read" in the_line(tmp_path / "nowhere.txt", IMAGES)
    (tmp_path / "image.txt").write_bytes(b"\xff\xd8\xff\xe0")
    assert "not text" in the_line(tmp_path / "image.txt", IMAGES)
    assert f"holds no {labels.GROUND_TRUTH}" in the_line(tmp_path, IMAGES)
    (tmp_path / "kit.tar.gz").write_bytes(b"\x1f\x8b, and no more")
    assert "cannot be read" in the_line(tmp_path / "kit.tar.gz", IMAGES)
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(labels.MOST_BYTES + 1)
    assert "more than 64 MiB" in the_line(tmp_path / "large.txt", IMAGES)


def test_a_ground_truth_that_does_not_fit_is_one_line(tmp_path):
    file = ground_truth(tmp_path)
    assert "4 labels for 3 images" in the_line(file, IMAGES[:3])
    file.write_text("1\n2\n3\n1\n")
    assert "3 is not a class in meta.mat" in the_line(file, IMAGES)
    (tmp_path / "meta.mat").write_bytes(io.BytesIO(b"no matrix at all" * 20).read())
    assert "meta.mat beside" in the_line(file, IMAGES)


def test_numbers_without_class_names_mean_nothing(tmp_path):
    assert "unpack the training images" in the_line(written(tmp_path, LISTS["numbers from 0"]), IMAGES)


def test_a_data_sets_folder_is_searched_for_its_labels(tmp_path):
    assert labels.find(tmp_path) is None
    file = ground_truth(tmp_path)
    assert labels.find(tmp_path) == file
    (tmp_path / "val_labels.csv").write_text(LISTS["commas"])
    assert labels.find(tmp_path) == tmp_path / "val_labels.csv"
