"""Every kind of DATA through `bench run`: folders, tars, a bucket, files on disk; and what is wrong with them."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from bench.record.view import Record
from tests.runs import needs_horovod, run
from tests.s3 import needs_s3

SMALL = {"image_size": 16, "batch": 4, "gpus": 2, "warmup": 1, "epochs": 1, "lr": 0.01}
ALONE = {"mode": "single", "gpus": 1}
CLASSES = ("daisies", "roses", "tulips")


def photograph(seed: int) -> bytes:
    """A small JPEG whose colours say little and whose size is odd."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (5, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((37 + seed % 7, 29 + seed % 5), Image.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def images() -> dict[str, bytes]:
    """Name below the data set -> file: 3 classes of 7 training and 3 validation images."""
    return {
        f"{part}/{name}/{number}.jpg": photograph(hash_of(part, name, number))
        for part, count in (("train", 7), ("val", 3))
        for name in CLASSES
        for number in range(count)
    }


def hash_of(part: str, name: str, number: int) -> int:
    """A seed an image."""
    return 1000 * CLASSES.index(name) + 10 * number + (part == "val")


@pytest.fixture
def folder(tmp_path):
    """The images as an ImageFolder."""
    for name, content in images().items():
        path = tmp_path / "flowers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "flowers"


@pytest.fixture
def tars(tmp_path):
    """The same in two tars."""
    place = tmp_path / "tars"
    place.mkdir()
    for part in ("train", "val"):
        with tarfile.open(place / f"{part}.tar", "w") as tar:
            for name, content in images().items():
                if name.startswith(part):
                    info = tarfile.TarInfo(name.removeprefix(f"{part}/"))
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return place


def trained(result, images: int = 9) -> Record:
    """The record of a run that trained, validated on every image once and left its checkpoints."""
    assert result.code == 0, result.stderr
    record = result.loaded
    assert [row["images"] for row in record.epochs] == [images] * record.config.epochs
    assert (result.run_dir / "latest.pt").exists() and (result.run_dir / "best.pt").exists()
    return record


@needs_horovod
def test_a_folder_of_images_under_horovod(tmp_path, folder, ranks):
    """And again with its images decoded once: the same images, so the same accuracy and the same weights."""
    options = SMALL | {"mode": "horovod", "data": f"imagefolder:{folder}", "data_dir": tmp_path / "cache", "epochs": 2}
    read, held = (
        trained(ranks.run(tmp_path / name, **options, in_memory=n, workers=2))
        for n, name in enumerate(("read", "held"))
    )
    assert read.samples[0].loader_workers == 1
    assert read.samples[0].final_weights_sha256 == held.samples[0].final_weights_sha256
    assert list((tmp_path / "cache" / "decoded").iterdir())
    assert read.config.augment and "flowers" in read.config.data


def test_tars_train_as_the_folder_does(tmp_path, folder, tars, ranks):
    """The same images in the same classes and order: the same weights, whatever rank or worker read them."""
    options = SMALL | {"mode": "ddp", "data_dir": tmp_path / "cache", "in_memory": 0}
    tar = trained(ranks.run(tmp_path / "tar", **options, data=f"tar:{tars}", workers=4))
    plain = trained(ranks.run(tmp_path / "plain", **options, data=f"imagefolder:{folder}", workers=0))
    assert tar.samples[0].final_weights_sha256 == plain.samples[0].final_weights_sha256


def test_imagenets_flat_validation_images_are_judged_as_those_in_folders(tmp_path, folder, ranks):
    """The same images with their classes in a list: the same weights and the same accuracy."""
    options = SMALL | {"mode": "ddp", "data": f"imagefolder:{folder}", "data_dir": tmp_path / "cache", "in_memory": 0}
    sorted_in = trained(ranks.run(tmp_path / "folders", **options))
    with (tmp_path / "list.txt").open("w") as labels:
        for number, file in enumerate(sorted((folder / "val").rglob("*.jpg"))):
            labels.write(f"{number}.jpg {CLASSES.index(file.parent.name)}\n")
            file.rename(folder / "val" / f"{number}.jpg")
    for name in CLASSES:
        (folder / "val" / name).rmdir()
    flat = trained(ranks.run(tmp_path / "flat", **options, val_labels=tmp_path / "list.txt"))
    assert [flat.epochs[0][key] for key in ("top1", "loss")] == [sorted_in.epochs[0][key] for key in ("top1", "loss")]
    assert flat.config.val_labels == "list.txt"  # a record names no folder of this machine


@needs_s3
def test_a_bucket_is_staged_and_results_go_back(tmp_path, bucket, ranks):
    for name, content in images().items():
        bucket.put(f"v1/{name}", content)
    options = SMALL | {"data": bucket.url("v1"), "data_dir": tmp_path / "cache"}
    result = ranks.run(tmp_path / "out", **options, mode="ddp", copy_to=bucket.url("results"))
    assert trained(result).config.data == bucket.url("v1")
    assert f"copied to: {bucket.url('results')}/{result.run_dir.name}" in result.stdout
    found, name = bucket.objects(), f"results/{result.run_dir.name}"
    assert found[f"{name}/record.json"] == (result.run_dir / "record.json").read_bytes()
    assert {f"{name}/latest.pt", f"{name}/rank1.log"} <= found.keys()
    bucket.server.requests.clear()
    trained(ranks.run(tmp_path / "again", **options | ALONE))
    assert not bucket.server.reads()  # nothing is fetched twice


def test_small_sets_are_read_from_local_files(tmp_path, ranks):
    """FashionMNIST's files in its own format, with 64 and 24 images."""
    raw = tmp_path / "cache" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", 64), ("t10k", 24)):
        pixels, labels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
            (raw / f"{name}-{kind}-ubyte").write_bytes(head + array.tobytes())
            (raw / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    options = SMALL | ALONE | {"data": "fashionmnist", "data_dir": tmp_path / "cache"}
    record = trained(ranks.run(tmp_path / "out", **options | {"image_size": None}), images=24)
    assert record.config.image_size == 28


def test_a_corrupt_image_is_named_or_counted(tmp_path, folder, ranks):
    (folder / "train" / "roses" / "3.jpg").write_bytes(photograph(1)[:200])
    (folder / "val" / "roses" / "1.jpg").write_bytes(b"not an image")
    options = SMALL | {"mode": "ddp", "data": f"imagefolder:{folder}", "data_dir": tmp_path / "cache", "in_memory": 0}
    result = ranks.run(tmp_path / "refused", **options)
    assert result.code == 2 and "roses/" in result.last_error_line and "SKIP_BAD=1" in result.last_error_line
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.loaded.status == "failed" and (result.run_dir / "rank0.log").exists()
    record = trained(ranks.run(tmp_path / "skipped", **options, skip_bad=1, workers=2), images=8)
    (note,) = [note for note in record.notes if "could not be read" in note]
    assert note.startswith("2 images") and "train/roses/3.jpg" in note and "val/roses/1.jpg" in note


def test_a_corrupt_validation_image_is_one_line_too(tmp_path, folder, ranks):
    (folder / "val" / "roses" / "1.jpg").write_bytes(b"not an image")
    options = SMALL | ALONE | {"data": f"imagefolder:{folder}", "in_memory": 0, "workers": 1}
    result = ranks.run(tmp_path / "out", **options, data_dir=tmp_path / "cache")
    assert result.code == 2 and "val/roses/1.jpg" in result.last_error_line, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


def test_a_wrong_place_for_the_results_is_said_before_the_training(tmp_path, ranks):
    result = ranks.run(tmp_path, **SMALL | ALONE, copy_to="nowhere://bucket/results")
    assert result.code == 2 and "nowhere://bucket/results" in result.last_error_line and not result.run_dirs


def refused(result, words: str) -> None:
    """Exit code 2, one line with these words, and no run folder."""
    assert result.code == 2 and words in result.last_error_line and result.stderr.count("\n") == 1, result.stderr
    assert not result.run_dirs


@pytest.mark.parametrize(("data", "words"), [("tar:{}/flowers", "train.tar"), ("cifar10", "cifar-10-python.tar.gz")])
def test_data_that_are_not_there_are_one_line(tmp_path, folder, ranks, data, words):
    options = SMALL | ALONE | {"data": data.format(tmp_path), "data_dir": tmp_path / "cache"}
    refused(ranks.run(tmp_path / "out", **options), words)


def test_data_that_torchruns_ranks_do_not_find_are_one_line(tmp_path, folder, copied_python):
    """With a launch of its own: its ranks all end, and so does torchrun, which has more to say."""
    options = SMALL | {"mode": "ddp", "data": f"imagefolder:{tmp_path}/nowhere", "data_dir": tmp_path / "cache"}
    refused(run(tmp_path / "out", **options), "nowhere")


@needs_s3
def test_a_bucket_that_does_not_answer_ends_in_one_line(tmp_path, ranks, monkeypatch):
    dead = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    for name, value in dead.items():
        monkeypatch.setenv(name, value)
    options = SMALL | {"mode": "ddp", "data": "s3://flowers/v1", "data_dir": tmp_path / "cache"}
    refused(ranks.run(tmp_path / "out", **options), "s3://flowers/v1")
