"""Every kind of DATA through `bench run`: folders, tars, a bucket, files on disk; and what is wrong with them."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from bench.record.view import Record
from tests.multiprocess.broken import one_line, refused
from tests.multiprocess.ranks import each
from tests.runs import needs_horovod
from tests.s3 import needs_s3

SMALL = {"image_size": 16, "batch": 4, "gpus": 2, "mode": "ddp", "warmup": 1, "epochs": 1, "lr": 0.01}
ALONE = {"mode": "single", "gpus": 1}
CLASSES = ("daisies", "roses", "tulips")


def photograph(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (5, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((37 + seed % 7, 29 + seed % 5), Image.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def images() -> dict[str, bytes]:
    """Name below the data set -> file: 3 classes of 7 training and 3 validation images."""
    return {
        f"{part}/{name}/{number}.jpg": photograph(1000 * CLASSES.index(name) + 10 * number + (part == "val"))
        for part, count in (("train", 7), ("val", 3))
        for name in CLASSES
        for number in range(count)
    }


@pytest.fixture
def folder(tmp_path):
    for name, content in images().items():
        path = tmp_path / "flowers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "flowers"


@pytest.fixture
def options(tmp_path, folder) -> dict:
    return SMALL | {"data": f"imagefolder:{folder}", "data_dir": tmp_path / "cache", "in_memory": 0}


def trained(result, images: int = 9) -> Record:
    """The record of a run that trained, validated on every image once and left its checkpoints."""
    record = result.ok().loaded
    assert [row["images"] for row in record.epochs] == [images] * record.config.epochs
    assert (result.run_dir / "latest.pt").exists() and (result.run_dir / "best.pt").exists()
    return record


def same(one: Record, other: Record) -> bool:
    hashes = [[part.final_weights_sha256 for part in record.samples] for record in (one, other)]
    found = [[(row["top1"], row["loss"]) for row in record.epochs] for record in (one, other)]
    return hashes[0] == hashes[1] and found[0] == found[1]


def test_the_same_images_train_alike_however_they_are_kept(tmp_path, folder, options, ranks):
    """Read when they are needed, decoded once, in two tars, and with ImageNet's flat validation folder and its list,
    whatever rank or worker reads them."""
    read = trained(ranks.run(tmp_path / "read", **options))
    decoded = trained(ranks.run(tmp_path / "decoded", **options | {"in_memory": 1, "workers": 2}))
    assert same(read, decoded) and list((tmp_path / "cache" / "decoded").iterdir())
    assert decoded.samples[0].loader_workers == 1 and read.config.augment
    tars = tmp_path / "tars"
    tars.mkdir()
    for part in ("train", "val"):
        with tarfile.open(tars / f"{part}.tar", "w") as tar:
            for name in CLASSES:
                tar.add(folder / part / name, arcname=name)
    assert same(read, trained(ranks.run(tmp_path / "tar", **options | {"data": f"tar:{tars}", "workers": 4})))
    with (tmp_path / "list.txt").open("w") as labels:
        for number, file in enumerate(sorted((folder / "val").rglob("*.jpg"))):
            labels.write(f"{number}.jpg {CLASSES.index(file.parent.name)}\n")
            file.rename(folder / "val" / f"{number}.jpg")
    for name in CLASSES:
        (folder / "val" / name).rmdir()
    flat = trained(ranks.run(tmp_path / "flat", **options, val_labels=tmp_path / "list.txt"))
    assert same(read, flat) and flat.config.val_labels == "list.txt"  # a record names no folder of this machine


@needs_horovod
def test_a_folder_of_images_under_horovod(tmp_path, options, ranks):
    result = ranks.run(tmp_path / "out", **options | {"mode": "horovod", "workers": 2})
    assert "flowers" in trained(result).config.data and each(result, "loader_workers") == [1, 1]


@needs_s3
def test_a_bucket_is_staged_and_results_go_back(tmp_path, bucket, ranks, monkeypatch):
    for name, content in images().items():
        bucket.put(f"v1/{name}", content)
    options = SMALL | {"data": bucket.url("v1"), "data_dir": tmp_path / "cache"}
    result = ranks.run(tmp_path / "out", **options, copy_to=bucket.url("results"))
    assert trained(result).config.data == bucket.url("v1")
    assert f"{bucket.url('results')}/{result.run_dir.name}" in result.stdout
    found, name = bucket.objects(), f"results/{result.run_dir.name}"
    assert found[f"{name}/record.json"] == (result.run_dir / "record.json").read_bytes()
    assert {f"{name}/latest.pt", f"{name}/rank1.log"} <= found.keys()
    bucket.server.requests.clear()
    trained(ranks.run(tmp_path / "again", **options | ALONE))
    assert not bucket.server.reads()  # nothing is fetched twice
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    dead = options | {"data": "s3://flowers/v1", "data_dir": tmp_path / "none"}
    refused(ranks.run(tmp_path / "dead", **dead), "s3://flowers/v1")


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
    options = SMALL | ALONE | {"data": "fashionmnist", "data_dir": tmp_path / "cache", "image_size": None}
    assert trained(ranks.run(tmp_path / "out", **options), images=24).config.image_size == 28


def test_a_corrupt_image_is_named_or_counted(tmp_path, folder, options, ranks):
    (folder / "val" / "roses" / "1.jpg").write_bytes(b"not an image")
    result = ranks.run(tmp_path / "validation", **options | ALONE, workers=1)
    one_line(result, 2)
    assert "val/roses/1.jpg" in result.last_error_line
    (folder / "train" / "roses" / "3.jpg").write_bytes(photograph(1)[:200])
    result = ranks.run(tmp_path / "refused", **options)
    one_line(result, 2)
    assert "roses/" in result.last_error_line and "SKIP_BAD=1" in result.last_error_line
    assert result.loaded.status == "failed" and (result.run_dir / "rank0.log").exists()
    record = trained(ranks.run(tmp_path / "skipped", **options, skip_bad=1, workers=2), images=8)
    (note,) = [note for note in record.notes if "train/roses/3.jpg" in note]
    assert note.startswith("2 images") and "val/roses/1.jpg" in note


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ({"data": "imagefolder:{}/nowhere", **SMALL}, "nowhere"),
        ({"copy_to": "nowhere://bucket/results"}, "nowhere://bucket/results"),
    ],
)
def test_a_place_that_is_not_there_is_said_before_the_training(tmp_path, folder, ranks, wrong, value):
    asked = SMALL | ALONE | {"data_dir": tmp_path / "cache"} | wrong
    if "data" in wrong:
        asked["data"] = wrong["data"].format(tmp_path)
    refused(ranks.run(tmp_path / "out", **asked), value)
