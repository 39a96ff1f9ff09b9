"""`bench compare` and its sisters: real modes in real rounds, at the smallest size. Their ranks are forked (ranks.py).
As a person runs it, over two machines: test_several_machines.py."""

import importlib.util
import re

import pytest

from bench.analysis.suite import suite_of
from bench.record.read import find_records
from bench.record.view import Record
from tests.runs import SMALL, TINY, flags, needs_horovod

SIZE = {k: v for k, v in SMALL.items() if k != "baselines"} | {"steps": 3}
ALL = pytest.param("single,dp,ddp,horovod", id="all modes", marks=[pytest.mark.wide, needs_horovod])


@pytest.fixture
def suite(ranks):
    """``suite(command, out, …)``: one command with SIZE's options and these."""
    return lambda words, out, **options: ranks.bench(*words.split(), *flags(**SIZE | options), "--out", out, out=out)


def records_of(out) -> list[Record]:
    records, refused = find_records(out)
    assert records and not refused
    return records


@pytest.mark.parametrize("modes", ["single,dp,ddp", ALL])
def test_compare_gives_certificate_verdicts_pictures_and_a_page(tmp_path, suite, modes, monkeypatch):
    """Of all modes that can run here: without Horovod, as far as this process sees."""
    found, hidden = importlib.util.find_spec, "" if "horovod" in modes else "horovod"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == hidden else found(name, *of))
    result = suite("compare", tmp_path, gpus=2, quick=1).ok()
    (folder,) = tmp_path.iterdir()
    assert result.stdout.splitlines()[-1] == f"report: {folder / 'report.html'}"
    assert "parity certificate: fair" in result.stdout
    counted = suite_of(folder.name, records_of(folder))
    assert set(counted.programs) == {*modes.split(","), "independent"} and counted.rounds == [0, 1]
    records = [record for program in counted.programs.values() for record in program.records]
    started = sorted(records, key=lambda record: record.started_at)
    first, second = ([record.program for record in started if record.label.round == n] for n in (0, 1))
    assert first == second[::-1] and started[len(first)].label.round == 1  # interleaved
    assert {path.suffix for path in (folder / "pictures").iterdir()} == {".svg"}
    assert "<svg" in (folder / "report.html").read_text()


def flagged(text: str) -> bool:
    return "NOT A FAIR COMPARISON" in text


def test_strict_refuses_an_unfair_comparison_after_one_round(tmp_path, suite, ranks):
    """Two processes cannot share one thread: dp and single get one, ddp two. What is made of its records later is
    flagged."""
    result = suite("compare", tmp_path, gpus=2, threads=1, strict=1, rounds=3, modes="single,dp,ddp")
    assert result.code == 2 and "STRICT=1" in result.last_error_line and flagged(result.last_error_line)
    records = records_of(tmp_path)  # they stay
    assert {record.program for record in records} >= {"single", "dp", "ddp"}
    assert {record.label.round for record in records} == {0}  # and no further round was run
    assert ranks.bench("report", tmp_path).code == 0 and flagged((tmp_path / "report.html").read_text())
    assert ranks.bench("report", tmp_path, "--format=plots").code == 0
    (picture,) = tmp_path.rglob("ratios.svg")
    assert flagged(picture.read_text())


def test_a_replayed_unfairness_moves_the_verdict_and_is_flagged_everywhere(tmp_path, suite):
    """One loader for two devices: dp waits twice as long as ddp, whose ranks have one each. The storage is so slow that
    the wait is the longest part of a step on a busy machine, too."""
    result = suite("compare", tmp_path, gpus=2, rounds=1, replay="dp-workers", batch=3, storage_ms=100).ok()
    (folder,) = tmp_path.iterdir()
    page, picture = (folder / "report.html").read_text(), (folder / "pictures" / "replay.svg").read_text()
    assert flagged(result.stdout) and flagged(page) and flagged(picture)
    throughput = {record.program: record.throughput for record in records_of(tmp_path)}
    assert throughput["unfair: dp"] < 0.8 * throughput["fair: dp"]


@pytest.mark.parametrize("modes", ["single,dp,ddp", ALL])
def test_a_breakdown_has_phases_exposed_communication_and_a_timeline(tmp_path, suite, modes):
    suite("profile", tmp_path, gpus=2, rounds=1, modes=modes).ok()
    profiled = [record for record in records_of(tmp_path) if record.config.profile]
    assert {record.config.mode for record in profiled} == {*modes.split(",")}
    for record in profiled:
        for part in record.samples:
            lanes = {span["lane"] for span in part.timeline["spans"]}
            assert {"phase", "compute"} <= lanes
            assert ("communication" in lanes) == (len(record.samples) > 1)
    (folder,) = tmp_path.iterdir()
    assert {"step", "timeline"} <= {path.stem for path in (folder / "pictures").iterdir()}


@pytest.mark.parametrize("modes", ["single,ddp", ALL])
def test_scaling_runs_weak_and_strong(tmp_path, suite, modes):
    suite("compare scaling", tmp_path, max_gpus=2, rounds=1, steps=2, modes=modes).ok()
    (page,) = tmp_path.rglob("report.html")
    assert "n = 1" in page.read_text()
    assert {record.config.mode for record in records_of(tmp_path)} == {*modes.split(","), "independent"}
    batches = {
        (folder.name.partition("-")[0], record.config.num_devices, record.global_batch)
        for folder in tmp_path.iterdir()
        if folder.is_dir()
        for record in records_of(folder)
    }
    assert batches == {("weak", 1, 6), ("weak", 2, 12), ("strong", 1, 12), ("strong", 2, 12)}


@pytest.mark.parametrize("modes", ["single,ddp", ALL])
def test_accuracy_trains_every_mode_from_the_same_seeds(tmp_path, ranks, modes):
    options = TINY | {"device": "cpu", "gpus": 2, "image_size": 8, "batch": 256, "epochs": 1, "lr_warmup_steps": 0}
    words = flags(**options, seeds=2, seed=5, modes=modes, out=tmp_path)
    result = ranks.bench("compare", "accuracy", *words).ok()
    said = " ".join(result.stdout.split())
    assert said.index("±1 percentage point") < said.index("round 1 of 2")  # the margin, in advance
    progress = re.compile(r"(?m)^.*: step \d+ of .*$")  # on a slow machine
    assert "parity certificate: fair" in said and "images/s" not in progress.sub("", result.stdout)
    (folder,) = tmp_path.iterdir()
    records = records_of(folder)
    seeds = {(record.label.round, record.program): record.config.seed for record in records}
    assert seeds == {(n, mode): 5 + n for n in (0, 1) for mode in modes.split(",")}
    starts = {(record.label.round, record.samples[0].initial_weights_sha256) for record in records}
    assert len(starts) == 2
    assert all(record.epochs[-1]["images"] == 360 and record.accuracy["target"] == 0.98 for record in records)
    assert not list(folder.rglob("*.pt"))  # no checkpoints
    assert {path.name for path in (folder / "pictures").iterdir()} == {"accuracy.svg"}
    assert "<svg" in (folder / "report.html").read_text()


def test_a_sweep_of_training_options(tmp_path, suite):
    """With dp, which is not compiled: a compiler takes minutes. bf16 runs where the processor has it, and is left out
    with its option where it has not. As many rounds as it takes, and no time for more than one."""
    result = suite("sweep", tmp_path, mode="dp", gpus=2, rounds="auto", max_minutes=0.01).ok()
    (folder,) = tmp_path.iterdir()
    assert suite_of(folder.name, records_of(folder)).rounds == [0]
    records = {record.program: record for record in records_of(folder)}
    assert "dp" in records and records["dp channels_last=1"].config.channels_last
    assert {(r.label.looks, r.label.limit_minutes) for r in records.values()} == {("4,8,16,32,64", 0.01)}
    said = " ".join(result.stdout.split())
    for program in ("dp precision=bf16", "dp channels_last=1 precision=bf16"):
        assert (program in records) != (f"left out: {program}: PRECISION=bf16" in said)
    assert "parity certificate: fair" in said


def test_a_grid_goes_on_without_the_cells_that_fail_and_names_what_cannot_run(tmp_path, suite):
    """Without a verdict: of one round. What every cell has is in a file."""
    small = "def small(outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, outputs))\n"
    broken = "def broken(outputs):\n    raise RuntimeError('CUDA out of memory')\n"
    (tmp_path / "nets.py").write_text(f"from torch import nn\n\n\n{small}\n\n{broken}")
    (tmp_path / "my.toml").write_text("steps = 2\n[model]\n")
    models = f"{tmp_path}/nets.py:small,{tmp_path}/nets.py:broken"
    out = tmp_path / "out"
    grid = {"model": models, "modes": "single,dp", "gpus": "1,2"}
    result = suite("sweep", out, **grid, rounds=1, config=tmp_path / "my.toml").ok()
    (folder,) = out.iterdir()
    records = {record.program: record for record in records_of(folder)}
    good = ["single gpus=1 model=nets.py:small", "dp gpus=1 model=nets.py:small", "dp gpus=2 model=nets.py:small"]
    assert sorted(label for label, record in records.items() if record.ok) == sorted(good)
    assert records[good[0]].label.config_file == "my.toml" and records[good[0]].config.timed_steps == 3
    said = " ".join(result.stdout.split())
    assert said.count("model=nets.py:broken failed") == 3 and "left out: single gpus=2" in said
    assert "no best command (a preview)" in said or "no best command (disturbed)" in said
    page = (folder / "report.html").read_text()
    assert "cannot run: MODE=single" in page and page.count("did not fit into memory") >= 3
    assert [path.name for path in (folder / "pictures").iterdir()] == ["sweep.svg"]
