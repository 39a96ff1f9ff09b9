"""`bench compare` and its sisters as a person runs them: real modes in real rounds, at the smallest size."""

import json
import statistics

import pytest

from tests.runs import SMALL, bench, flags, needs_horovod, without_horovod

SIZE = {k: v for k, v in SMALL.items() if k != "baselines"} | {"steps": 3}


@pytest.fixture(params=["without horovod", pytest.param("all modes", marks=[pytest.mark.wide, needs_horovod])])
def ways(request, tmp_path_factory):
    """The modes that take part, and the environment in which they do. All of them together only with -m wide."""
    if request.param == "all modes":
        return {"single", "dp", "ddp", "horovod"}, {}
    return {"single", "dp", "ddp"}, without_horovod(tmp_path_factory.mktemp("hide"))


def suite(command: str, out, env=None, **options):
    """One command with SIZE's options and these."""
    return bench(command, *flags(**SIZE | options), "--out", out, env=env, out=out, timeout=560)


def records_of(out) -> list[dict]:
    """Every record below a folder."""
    return [json.loads(path.read_text()) for path in sorted(out.rglob("record.json"))]


@needs_horovod
def test_compare_gives_certificate_verdicts_pictures_and_a_page(tmp_path):
    result = suite("compare", tmp_path, gpus=2, quick=1)
    assert result.code == 0, result.stderr
    (folder,) = tmp_path.iterdir()
    assert result.stdout.splitlines()[-1] == f"report: {folder / 'report.html'}"
    assert "QUICK: 2 rounds" in result.stdout and "parity certificate: fair" in result.stdout
    records = records_of(folder)
    roles = [(r["config"]["round"], r["config"]["role"]) for r in records]
    assert sorted(roles) == sorted((n, m) for n in (0, 1) for m in ("single", "dp", "ddp", "horovod", "independent"))
    started = sorted(records, key=lambda r: r["started_at"])
    assert [r["config"]["role"] for r in started[:5]] == [r["config"]["role"] for r in started[5:]][::-1]  # interleaved
    assert {path.suffix for path in (folder / "pictures").iterdir()} == {".svg", ".png"}
    assert "<svg" in (folder / "report.html").read_text()


def test_strict_refuses_an_unfair_comparison_after_one_round(tmp_path, tmp_path_factory):
    """Two processes cannot share one thread: dp and single get one, ddp two."""
    env = without_horovod(tmp_path_factory.mktemp("hide"))
    result = suite("compare", tmp_path, env, gpus=2, threads=1, strict=1, rounds=3)
    assert result.code == 2
    assert "STRICT=1: NOT A FAIR COMPARISON: threads in total" in result.last_error_line
    assert {r["config"]["round"] for r in records_of(tmp_path)} == {0}  # they stay, and no further round was run


def test_a_replayed_unfairness_moves_the_verdict_and_is_flagged_everywhere(tmp_path):
    """One loader for two devices: dp waits twice as long as ddp, whose ranks have one each. The storage is so slow that
    the wait is the longest part of a step on a busy machine, too."""
    result = suite("compare", tmp_path, gpus=2, rounds=2, replay="dp-workers", steps=4, storage_ms=150)
    assert result.code == 0, result.stderr
    assert "loader workers in total" in result.stdout and "NOT A FAIR COMPARISON" in result.stdout
    (folder,) = tmp_path.iterdir()
    assert "NOT A FAIR COMPARISON" in (folder / "report.html").read_text()
    assert "NOT A FAIR COMPARISON" in (folder / "pictures" / "ratios.svg").read_text()
    throughput = {}
    for record in records_of(tmp_path):
        throughput.setdefault(record["config"]["role"], []).append(record["summary"]["throughput_images_per_s"])
    medians = {role: statistics.median(values) for role, values in throughput.items()}
    assert medians["unfair: dp"] < 0.8 * medians["fair: dp"]


def test_a_breakdown_has_phases_exposed_communication_and_a_timeline(tmp_path, ways):
    modes, env = ways
    result = suite("breakdown", tmp_path, env, gpus=2, rounds=1)
    assert result.code == 0, result.stderr
    profiled = [r for r in records_of(tmp_path) if r["config"]["profile"]]
    assert {r["config"]["mode"] for r in profiled} == modes
    for record in profiled:
        for part in record["samples"]:
            lanes = {span["lane"] for span in part["timeline"]["spans"]}
            assert {"phase", "compute"} <= lanes
            assert ("communication" in lanes) == (len(record["samples"]) > 1)
    (folder,) = tmp_path.iterdir()
    names = {path.stem for path in (folder / "pictures").iterdir()}
    assert {"step", "timeline"} <= names


def test_scaling_runs_weak_and_strong(tmp_path, ways):
    modes, env = ways
    result = suite("scaling", tmp_path, env, max_gpus=2, rounds=1, steps=2)
    assert result.code == 0, result.stderr
    assert "one round: no interval" in result.stdout
    assert {r["config"]["mode"] for r in records_of(tmp_path)} == {*modes, "independent"}
    kinds = {path.name.partition("-")[0] for path in tmp_path.iterdir()}
    assert kinds == {"weak", "strong"}
    batches = {(r["config"]["suite"][:4], r["topology"]["num_devices"], r["topology"]["global_batch"])
               for r in records_of(tmp_path)}  # fmt: skip
    assert batches == {("weak", 1, 6), ("weak", 2, 12), ("stro", 1, 12), ("stro", 2, 12)}


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = suite("compare", tmp_path / "file", gpus=2, quick=1)
    assert result.code == 2 and "cannot be written to" in result.last_error_line


def test_accuracy_trains_every_mode_from_the_same_seeds(tmp_path, ways):
    modes, env = ways
    options = {"device": "cpu", "gpus": 2, "model": "shufflenet_v2_x0_5", "image_size": 8, "batch": 256, "epochs": 1,
               "lr_warmup_epochs": 0}  # fmt: skip
    command = ["accuracy", *flags(**options, seeds=2, seed=5), "--out", tmp_path]
    result = bench(*command, env=env, out=tmp_path, timeout=560)
    assert result.code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert said.index("margin, fixed now: ±1 percentage point of top-1, against single") < said.index("round 1 of 2")
    assert "parity certificate: fair" in said and "images/s" not in said
    (folder,) = tmp_path.iterdir()
    records = records_of(folder)
    seeds = {(r["config"]["round"], r["config"]["role"]): r["config"]["seed"] for r in records}
    assert seeds == {(n, mode): 5 + n for n in (0, 1) for mode in modes}
    for number in (0, 1):
        first = [r["samples"][0]["initial_weights_sha256"] for r in records if r["config"]["round"] == number]
        assert len(set(first)) == 1
    assert all(r["accuracy"]["epochs"][-1]["images"] == 360 and r["accuracy"]["target"] == 0.98 for r in records)
    assert not list(folder.rglob("*.pt"))  # no checkpoints
    assert {path.name for path in (folder / "pictures").iterdir()} == {"accuracy.svg", "accuracy.png"}
    assert "Do all modes reach the same accuracy?" in (folder / "report.html").read_text()


def test_a_sweep_of_training_options(tmp_path):
    """With dp, which is not compiled: a compiler takes minutes. bf16 runs where the processor has it, and is left out
    with a sentence where it has not."""
    result = suite("knobs", tmp_path, mode="dp", gpus=2, rounds=1)
    assert result.code == 0, result.stderr
    records = {r["config"]["role"]: r for r in records_of(tmp_path)}
    assert "dp" in records and records["dp channels_last=1"]["config"]["channels_last"]
    said = " ".join(result.stdout.split())
    for role in ("dp precision=bf16", "dp channels_last=1 precision=bf16"):
        assert (role in records) != (f"left out: {role}: PRECISION=bf16: this CPU" in said)
    assert "parity certificate: fair" in said
