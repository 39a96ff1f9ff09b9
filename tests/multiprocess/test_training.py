"""The table of real runs by epochs: checkpoints, resume, loading what another mode saved, averages, guards, freezing,
trackers, progress."""

import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.multiprocess.broken import refused
from tests.multiprocess.ranks import Table, each, equal_replicas
from tests.runs import DROPOUT, NARROW, TINY, needs_horovod

# Six steps an epoch of 1437 digits; a checkpoint in the middle of each. The kill comes after the one at step 8. A
# network with dropout: with other random numbers its weights would be others.
EPOCHS = DROPOUT | {"epochs": 2, "checkpoint_steps": 4, "image_size": 8, "warmup": 1, "lr": 0.02, "seed": 3,
                    "schedule": "cosine", "lr_warmup_steps": 2, "weight_decay": 1e-4, "track": "none",
                    "target": 0.05}  # fmt: skip
AVERAGES = {"ema": 0.8, "swa": 1, "snapshots": ",".join(map(str, range(1, 13)))}
PROGRESS = {"print_every": 2, "storage_ms": 1}  # so slow that a line of each step is seen
WITHOUT_NORMS = EPOCHS | TINY | {"norm": "none", "checkpoint_steps": None, "schedule": "constant", "lr_warmup_steps": 0}
EVALUATED = {"val_batch": 7, "threads": 3, "evaluate": 1} | DROPOUT
ASTRAY = {"mode": "single", "gpus": 1, "batch": 240, "epochs": 1, "lr": 1e30, "norm": "none"}
TIMES = ("elapsed_s", "validate_s")


def on(mode: str, gpus: int = 2, **options) -> dict:
    """A run with a global batch of 240."""
    return {"mode": mode, "gpus": gpus, "batch": 240 // gpus} | options


def folder(name: str):
    return lambda run: run(name).run_dir


def killed(name: str):
    return lambda run: run(name, code=1).run_dir


def as_good_as(top1: float, name: str):
    """A folder with a run's checkpoints, which say that this was its accuracy; so few steps reach hardly any."""

    def change(run) -> Path:
        run_dir = run(name).run_dir
        (to := run_dir.parent.with_name("good")).mkdir()
        for path in run_dir.glob("*.pt"):
            state = torch.load(path, map_location="cpu", weights_only=True)
            state["accuracy"] = [row | {"top1": top1} for row in state["accuracy"]]
            torch.save(state, to / path.name)
        return to

    return change


WHOLE = {
    "single": on("single", 1, keep=2) | EPOCHS | AVERAGES,
    "dp": on("dp") | EPOCHS | AVERAGES,
    "ddp": on("ddp") | EPOCHS | AVERAGES | PROGRESS,
    "horovod": on("horovod") | EPOCHS | AVERAGES | PROGRESS,
    "zero1": on("zero1") | EPOCHS,
    "fsdp": on("fsdp") | EPOCHS,
    "local": on("local") | EPOCHS,
}
RESUMED = ("single", "ddp", "horovod", "zero1", "fsdp")
# Each mode validates what the one before it has saved. 360 images do not divide by three ranks of batches of seven.
LOADED = {"single": "horovod", "dp": "single", "ddp": "dp", "horovod": "ddp", "zero1": "single", "fsdp": "zero1"}
LOADING = {"single": 1, "horovod": 2}

TABLE = {
    **WHOLE,
    **{f"{mode}, killed": WHOLE[mode] | {"fault": f"kill:{WHOLE[mode]['gpus'] - 1}:9"} for mode in RESUMED},
    **{f"{mode}, resumed": WHOLE[mode] | {"resume": killed(f"{mode}, killed")} for mode in RESUMED},
    **{f"{mode} evaluates": {"mode": mode, "gpus": LOADING.get(mode, 3), "resume": folder(saved)} | EVALUATED
       for mode, saved in LOADED.items()},
    "without averages": on("single", 1) | EPOCHS,
    "gone back": WHOLE["single"] | {"resume": lambda run: run("single").run_dir / "epoch1.pt"},
    "ruined": on("single", 1) | EPOCHS | {"epochs": 3, "lr": 100.0, "clip_norm": 9, "checkpoint_steps": None,
                                          "resume": as_good_as(0.9, "single")},
    "on three ranks": {"mode": "ddp", "gpus": 3, "batch": 60} | EPOCHS | {"epochs": 3, "resume": folder("horovod")},
    "without norms": on("single", 1) | WITHOUT_NORMS | {"epochs": 3},
    "first, fsdp": on("fsdp") | WITHOUT_NORMS | {"epochs": 1},
    "second, zero1": on("zero1") | WITHOUT_NORMS | {"resume": folder("first, fsdp")},
    "third, single": on("single", 1) | WITHOUT_NORMS | {"epochs": 3, "resume": folder("second, zero1")},
    **{f"{mode}, frozen": on(mode) | EPOCHS | {
        "epochs": 1, "checkpoint_steps": None, "train_only": "fc*,layer2.*", "track": "tensorboard",
        "pretrained": lambda run: run("single").run_dir / "best.pt"} for mode in ("ddp", "horovod")},
    **{f"{mode}, guarded": {"mode": mode, "gpus": 2, "batch": 96, "epochs": 1, "lr": 1e4, "momentum": 0.0,
                            "loss_guard": 2} for mode in ("ddp", "horovod")},
    "astray": ASTRAY,
    "astray, guarded": ASTRAY | {"loss_guard": 3},
}  # fmt: skip
WIDE = ("zero1", "fsdp", "local")


def rows(names) -> list:
    """Names of modes, with their marks."""
    horovod = [name for name in names if "horovod" in (name, LOADED.get(name))]
    marks = {name: [needs_horovod] * (name in horovod) + [pytest.mark.wide] * (name in WIDE) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names]


@pytest.fixture(scope="module")
def run(tmp_path_factory, ranks):
    """``run(name)``: the finished run of a row."""
    return Table(TABLE, lambda name, **options: ranks.run(tmp_path_factory.mktemp("run") / "runs", **options))


def checkpoint(result, name="latest.pt") -> dict:
    """What a run's checkpoint holds; reading it runs no code."""
    return torch.load(result.run_dir / name, map_location="cpu", weights_only=True)


def apart(a: dict, b: dict) -> float:
    """The largest difference between two state dicts."""
    assert a.keys() == b.keys()
    return max(float((a[key].double() - b[key].double()).abs().max()) for key in a)


def epochs(result) -> list[dict]:
    """The epochs of a record without what a clock says."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in result.record["accuracy"]["epochs"]]


@pytest.mark.parametrize("name", rows(WHOLE))
def test_epochs_are_whole_and_recorded(run, name):
    result = run(name)
    accuracy, found = result.record["accuracy"], result.record["accuracy"]["epochs"]
    assert [(row["epoch"], row["steps"], row["images_seen"]) for row in found] == [(1, 6, 1440), (2, 12, 2880)]
    assert all(row["images"] == 360 and row["train_loss"] > 0 and row["loss"] > 0 for row in found)
    assert all(0 <= row["train_top1"] <= row["train_top5"] <= 1 for row in found)
    assert found[0]["lr"] > found[1]["lr"] > 0  # a cosine
    assert found[0]["elapsed_s"] < found[1]["elapsed_s"]
    assert accuracy["best_top1"] == max(row["top1"] for row in found)
    assert accuracy["top1"] == found[-1]["top1"] <= accuracy["top5"] == found[-1]["top5"]
    assert accuracy["time_to_accuracy_s"] == found[0]["elapsed_s"]  # guessing reaches 5 %
    assert {len(times) for times in each(result, "step_time_s")} == {11}  # one warms up
    assert not list(result.run_dir.glob("*.tmp"))
    loss = found[0]["train_loss"] / epochs(run("single"))[0]["train_loss"]
    assert 0.9 < loss < 1.1 or name == "local"  # same start, images and steps
    state, best = checkpoint(result), checkpoint(result, "best.pt")
    assert state["model"].keys() == checkpoint(run("single"))["model"].keys()  # those of the plain model
    assert len(state["ranks"]) == (1 if name in ("single", "dp") else 2)
    assert (state["step"], state["images_seen"]) == (12, 2880)
    assert best["step"] == max(state["accuracy"], key=lambda row: row["top1"])["steps"]


@pytest.mark.parametrize("name", rows(["ddp", "horovod"]))
def test_progress_is_in_the_output_and_in_every_ranks_log(run, name):
    result = run(name)
    said = result.stdout.splitlines()
    steps = [line for line in said if line.startswith(f"{name}: step ")]
    losses = [line.partition(", loss ")[2] for line in steps if ", loss " in line]
    assert losses and all(" (rank 0), " in loss for loss in losses)  # the others have their own
    ended = [line for line in said if line.startswith("epoch ")]
    assert len(ended) == 2
    for rank in range(2):
        log = (result.run_dir / f"rank{rank}.log").read_text()
        found = re.findall(rf"(?m)^step (\d+) of 12, epoch (\d), .*\(rank {rank}\)", log)
        assert found == [("2", "1"), ("4", "1"), ("6", "1"), ("8", "2"), ("10", "2"), ("12", "2")]
        validated = re.findall(r"(?m)^validating epoch (\d), batch 2 of 2$", log)
        assert validated == ["1"] * 3 + ["2"] * 3  # also of averages
        assert re.findall(r"(?m)^epoch .*", log) == (ended if rank == 0 else [])


def test_one_process_stopped_and_resumed_is_bit_for_bit_the_unbroken_run(run):
    """Also from an epoch's own checkpoint, of which the newest KEEP are there."""
    whole = run("single")
    assert sorted(p.name for p in whole.run_dir.glob("*.pt")) == ["best.pt", "epoch1.pt", "epoch2.pt", "latest.pt"]
    assert [checkpoint(whole, f"epoch{epoch}.pt")["step"] for epoch in (1, 2)] == [6, 12]
    for after in (run("single, resumed"), run("gone back")):
        assert epochs(after) == epochs(whole)
        for key in ("final_weights_sha256", "averages_sha256"):
            assert each(after, key) == each(whole, key)
        for part in ("model", "ema", "swa"):
            assert apart(checkpoint(after)[part], checkpoint(whole)[part]) == 0.0


@pytest.mark.parametrize("name", rows(RESUMED[1:]))
def test_ranks_stopped_and_resumed_agree_with_the_unbroken_run(run, name):
    result = run(f"{name}, resumed")
    whole, after = checkpoint(run(name)), checkpoint(result)
    for part in {"model", "ema", "swa"} & whole.keys():
        assert apart(after[part], whole[part]) < 1e-4
    for mine, theirs in zip(after["ranks"], whole["ranks"], strict=True):
        assert apart(mine["buffers"], theirs["buffers"]) < 1e-4
        assert "averages" not in theirs or apart(mine["averages"]["ema"], theirs["averages"]["ema"]) < 1e-4
    assert after["accuracy"][-1]["top1"] == pytest.approx(whole["accuracy"][-1]["top1"], abs=2 / 360)
    assert after["accuracy"][-1]["train_loss"] == pytest.approx(whole["accuracy"][-1]["train_loss"], rel=1e-4)
    assert {len(times) for times in each(result, "step_time_s")} == {3}  # 12 steps, 8 before, 1 to warm up
    assert any("step 8" in note for note in result.record["topology"]["notes"])


def test_the_best_of_the_run_before_is_kept_until_there_is_a_better_one(run):
    """A learning rate that ruins the weights: no epoch of the resumed run is better."""
    result = run("ruined")
    assert result.record["accuracy"]["best_top1"] == 0.9 > result.record["accuracy"]["top1"]
    assert checkpoint(result, "best.pt")["step"] == checkpoint(run("single"), "best.pt")["step"]
    assert any("lr 0.02 → 100.0" in note and "9.0" in note for note in result.record["topology"]["notes"])


def test_a_training_goes_on_in_one_mode_after_the_other(run):
    """An epoch under fsdp, one under zero1, one in one process: weights, momentum and metrics are those of a training
    in one process, so each has read all of what the one before had collected."""
    for several, one in zip(epochs(run("third, single")), epochs(run("without norms")), strict=True):
        assert several["train_top1"] == pytest.approx(one["train_top1"], abs=0.01)
    found, alone = checkpoint(run("third, single")), checkpoint(run("without norms"))
    assert found["step"] == alone["step"] == 18
    assert apart(found["model"], alone["model"]) < 1e-4
    states = [state["optimizer"]["state"] for state in (found, alone)]
    momenta = [{str(n): part["momentum_buffer"] for n, part in state.items()} for state in states]
    assert apart(*momenta) < 1e-3 and max(float(m.abs().max()) for m in momenta[1].values()) > 1e-2


@needs_horovod
def test_another_number_of_ranks_may_go_on_and_what_changes_is_noted(run):
    result, before = run("on three ranks"), run("horovod")
    notes = "\n".join(result.record["topology"]["notes"])
    assert all(words in notes for words in ("3 processes", "180", "240", "horovod → ddp", "epochs 2 → 3"))
    assert [row["epoch"] for row in epochs(result)] == [1, 2, 3] and epochs(result)[:2] == epochs(before)
    assert epochs(result)[2]["images_seen"] == 2880 + 8 * 180  # 12 steps of 240, then up to the 3 × 1437th image


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"epochs": 2}, "EPOCHS=2"),
        ({"epochs": 3, "optimizer": "adamw"}, "OPTIMIZER=sgd"),
        ({"epochs": 3, "model": "resnet18"}, "layer1.0.conv1.weight"),
        ({"epochs": 3, "resume": "odd.pt"}, "odd.pt"),
    ],
)
def test_a_checkpoint_that_cannot_be_resumed_is_refused(tmp_path, ranks, run, options, value):
    """odd.pt has the right kind and the right names: only the run that would resume from it can know."""
    state = checkpoint(run("single"))
    state["ranks"][0]["buffers"] = dict.fromkeys(state["ranks"][0]["buffers"], torch.ones(7))
    torch.save(state, tmp_path / "odd.pt")
    resume = tmp_path / options["resume"] if "resume" in options else run("single").run_dir
    refused(ranks.run(tmp_path / "runs", **WHOLE["single"] | options | {"resume": resume}), value)


@pytest.mark.parametrize("name", rows(LOADED))
def test_what_one_mode_saved_another_validates_exactly(run, name):
    """No image is counted twice, none left out; averages of a checkpoint are judged as well."""
    result, before = run(f"{name} evaluates"), epochs(run(LOADED[name]))[-1]
    (found,) = epochs(result)
    assert result.record["status"] == "evaluated" and found["images"] == before["images"] == 360
    keys = [key for key in before if re.fullmatch("((ema|swa)_)?top[15]", key)]
    assert len(keys) == (6 if "ema" in TABLE[LOADED[name]] else 2)
    for key in keys:
        assert found.get(key) == (before[key] if name not in ("zero1", "fsdp") or "_" not in key else None), key
    assert found["loss"] == pytest.approx(before["loss"], rel=1e-4)
    assert re.search(r"(?m)^validation: .*\b360 images", result.stdout) and "step ms" not in result.stdout


@pytest.mark.parametrize("name", rows(["single", "dp", "ddp", "horovod"]))
def test_averages_are_those_of_the_weights_of_each_step(run, name):
    """Computed again from a snapshot of every step; and every rank has the same: rank 0's are validated and saved."""
    result = run(name)
    kept = checkpoint(result)
    every_step = [dict(np.load(result.run_dir / f"rank0-step{step}.npz")) for step in range(1, 13)]
    for key, tensor in kept["ema"].items():
        key = key.removeprefix("module.")
        if key not in every_step[0] or "running" in key or "num_batches" in key:
            continue
        weights = [saved[key].astype(np.float64) for saved in every_step]
        ema = functools.reduce(lambda average, new: 0.8 * average + 0.2 * new, weights)
        assert np.abs(tensor.numpy() - ema).max() < 1e-5
        mean = (weights[5] + weights[11]) / 2  # after each of the two epochs
        assert np.abs(kept["swa"][f"module.{key}"].numpy() - mean).max() < 1e-5
    assert kept["ema"]["n_averaged"] == 12 and kept["swa"]["n_averaged"] == 2
    for average in ("ema", "swa"):
        assert len({hashes[average] for hashes in each(result, "averages_sha256")}) == 1
    assert all({"ema_loss", "ema_top1", "swa_loss", "swa_top5"} <= row.keys() for row in epochs(result))


def test_averages_change_nothing_in_what_is_trained(run):
    """Dropout draws its numbers while statistics are estimated, too; the training must not notice."""
    assert each(run("single"), "final_weights_sha256") == each(run("without averages"), "final_weights_sha256")


@pytest.mark.parametrize("name", rows(["ddp", "horovod"]))
def test_an_exploding_loss_is_skipped_by_all_ranks_and_counted(run, name):
    """The first step is taken with a mad learning rate; no loss after it is acceptable."""
    result = run(f"{name}, guarded")
    assert epochs(result)[0]["skipped_steps"] >= math.ceil(1437 / 96 / 2) - 2
    assert equal_replicas(result) and {facts["loss_guard"] for facts in each(result, "facts")} == {2.0}


@pytest.mark.parametrize("name", ["astray", "astray, guarded"])
def test_a_loss_that_is_not_finite_is_recorded_as_none(run, name):
    """The training has diverged; its record is complete and shows it."""
    (row,) = epochs(run(name))
    assert row["loss"] is None and not (run(name).run_dir / "best.pt").exists()
    if "guarded" in name:
        assert row["skipped_steps"] == 5 and row["train_loss"] > 0  # that of the one step that was taken
        assert any("5 steps" in note for note in run(name).record["topology"]["notes"])
    else:
        assert row["train_loss"] is None


@pytest.mark.parametrize("name", rows(["ddp", "horovod"]))
def test_frozen_parameters_and_their_statistics_stay(run, name):
    result = run(f"{name}, frozen")
    old, new = checkpoint(run("single"), "best.pt")["model"], checkpoint(result)["model"]
    moved = {key for key in old if not torch.equal(old[key], new[key])}
    assert {key.split(".")[0] for key in moved} == {"fc", "layer2"} and "layer2.bn1.running_mean" in moved
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = result.run_dir.rglob("events.out.tfevents*")  # rank 0 alone tells the tracker
    events = EventAccumulator(str(file)).Reload()
    last = {name: events.Scalars(name)[-1] for name in events.Tags()["scalars"]}
    names = ("train/loss", "train/lr", "val/loss", "memory/device1_gib", "memory/device1_peak_gib", "summary/tflops")
    assert {*names} <= last.keys()
    (epoch,) = epochs(result)
    assert (last["val/top1"].step, last["val/top1"].value) == (epoch["steps"], pytest.approx(epoch["top1"]))
    assert last["summary/throughput_per_s"].value == pytest.approx(result.record["summary"]["throughput_per_s"])


def test_a_full_disk_leaves_the_checkpoint_before_whole(small_disk, ranks):
    out = small_disk(pages=2100)  # one checkpoint of 5.6 MB and its record, and not a second one beside it
    result = ranks.run(out, **NARROW, mode="single", batch=480, epochs=3)
    assert result.code == 1 and result.stderr.count("\n") == 1 and "latest.pt" in result.last_error_line, result.stderr
    assert checkpoint(result)["step"] == 3 and not list(result.run_dir.glob("*.tmp"))
