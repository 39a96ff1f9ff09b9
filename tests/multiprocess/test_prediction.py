"""`bench infer`: every image once, in order, with the same result whatever the number of devices."""

import csv
import os

import numpy as np
import pytest
import torch
from PIL import Image

from bench.tasks.inference.rank import head
from tests.runs import SMALL

COLOURS = {"blue": (20, 30, 220), "green": (20, 200, 40), "red": (220, 30, 20)}
UNREADABLE = ["a.jpg", "deep/empty.png", "pipe.png", "zero.png"]  # no image, an empty file, a FIFO, a device
MODEL = f"--model={SMALL['model']}"


def picture(path, colour: tuple, seed: int) -> None:
    """A noisy picture of one colour."""
    pixels = np.random.default_rng(seed).normal(colour, 30, (20 + seed % 5, 24, 3)).clip(0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, ranks):
    """A checkpoint of a model that tells three colours apart, and a folder of images to be classified."""
    place = tmp_path_factory.mktemp("colours")
    for part, count in (("train", 12), ("val", 2)):
        for number, (name, colour) in enumerate(COLOURS.items()):
            for i in range(count):
                picture(place / "data" / part / name / f"{i}.png", colour, 10 * i + number)
    options = SMALL | {"mode": "ddp", "gpus": 2, "epochs": 1, "workers": 0, "batch": 6}
    options |= {"data": f"imagefolder:{place}/data", "data_dir": place / "cache", "image_size": 16, "warmup": 1}
    result = ranks.run(place / "runs", **options).ok()
    for number, (name, colour) in enumerate(COLOURS.items()):
        for i in range(4):
            picture(place / "new" / ("deep/er" if i == 1 else "") / f"{name}{i}.png", colour, 1000 + 10 * i + number)
    (place / "new" / "a.jpg").write_bytes(b"no image")
    (place / "new" / "deep" / "empty.png").write_bytes(b"")
    os.mkfifo(place / "new" / "pipe.png")
    (place / "new" / "zero.png").symlink_to("/dev/zero")
    picture(place / "new" / "=1+1.png", COLOURS["red"], 7)
    (place / "new" / "notes.txt").write_text("no image, and not taken for one")
    return place, result.run_dir


def predicted(ranks, place, run_dir, to, **options) -> list[dict]:
    """The rows of the table."""
    words = [f"--{name}={value}" for name, value in options.items()]
    words += [MODEL, "--device=cpu", "--workers=0", "--batch=4", f"--out={to}", "--timeout=200"]
    done = ranks.bench("infer", place / "new", f"--resume={run_dir}", *words).ok()
    assert "17 images" in done.stdout and f": {', '.join(UNREADABLE)}" in done.stdout
    assert [path.name for path in to.parent.iterdir()] == [to.name]  # the run's folder is gone
    with to.open() as file:
        return list(csv.DictReader(file))


def test_one_device_and_two_give_the_same_table(ranks, trained, tmp_path):
    tables = []
    for gpus in (1, 2):
        (tmp_path / str(gpus)).mkdir()
        tables.append(predicted(ranks, *trained, tmp_path / str(gpus) / "table.csv", gpus=gpus))
    rows = tables[0]
    assert tables[1] == rows
    place, _ = trained
    names = sorted(str(path.relative_to(place / "new")) for path in (place / "new").rglob("*.*g"))
    assert [row["name"].lstrip("'") for row in rows] == names and len(names) == 17
    assert rows[0]["name"] == "'=1+1.png"  # which a spreadsheet shows, and does not compute
    for row in rows:
        if row["name"] in UNREADABLE:
            assert row["error"] and not row["class"] and not row["probability_3"]
            continue
        shares = [float(row[name]) for name in ("probability", "probability_2", "probability_3")]
        assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1, abs=1e-4) and not row["error"]
        assert {row["class"], row["class_2"], row["class_3"]} == set(COLOURS)
    assert list(rows[0]) == head(3) and len(head(1000)) == 2 + 2 * 5  # as many columns as classes, at most five


def test_bad_input_is_one_line(ranks, trained, tmp_path):
    """And a model that is named by a checkpoint is not run before somebody trusts it."""
    place, run_dir = trained
    for name, changed in (
        ("own", {"data": "mine.py:datasets", "image_size": None}),
        ("theirs", {"data": "cifar10", "image_size": 16, "model": f"{tmp_path}/theirs.py:build"}),
    ):
        state = torch.load(run_dir / "latest.pt", weights_only=True)
        state["config"] |= changed
        torch.save(state, tmp_path / f"{name}.pt")
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "none").mkdir()
    new, usual = place / "new", [MODEL, "--device=cpu"]
    resume, out = f"--resume={run_dir}", f"--out={tmp_path}/table.csv"
    for words, named in (
        ([new], "RESUME"),
        ([tmp_path / "nowhere", resume, out], "nowhere"),
        ([tmp_path / "none", resume, out], "none"),
        ([new, resume, "--out=x.txt"], ".csv or .parquet"),
        ([new, resume, f"--out={tmp_path}/there.csv"], "there.csv"),
        ([new, resume, out, "--epochs=2"], "--epochs"),
        ([new, "--resume=nowhere", out], "RESUME=nowhere"),
        ([new, f"--resume={tmp_path}/own.pt", out], "DATA=mine.py:datasets"),
        ([new, resume, out, f"--classes={tmp_path}/names.txt"], "2"),
        ([new, f"--resume={tmp_path}/theirs.pt", out, "--model=resnet18"], "MODEL=FILE.py:FUNCTION"),
    ):
        done = ranks.bench("infer", words[0], *usual, *words[1:])
        assert done.code == 2 and named in done.stderr and done.stderr.count("\n") == 1, done.stderr
    done = ranks.bench("infer", new, "--device=cpu", f"--resume={tmp_path}/theirs.pt", out)
    assert done.code == 2 and "MODEL=FILE.py:FUNCTION" in done.stderr and not (tmp_path / "ran").exists()
    assert (tmp_path / "there.csv").read_text() == "mine" and not (tmp_path / "table.csv").exists()


@pytest.mark.wide
def test_the_table_as_parquet(ranks, trained, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    place, run_dir = trained
    words = (MODEL, "--device=cpu", "--workers=1", f"--out={tmp_path}/t.parquet")
    ranks.bench("infer", place / "new", f"--resume={run_dir}", *words).ok()
    table = pd.read_parquet(tmp_path / "t.parquet")
    assert len(table) == 17 and table["probability"].notna().sum() == 13 and table["error"].notna().sum() == 4
