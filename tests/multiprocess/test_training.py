"""Training by epochs: checkpoints, resume, the load/save matrix, faults, guards, freezing.

What needs no launch of its own shares its processes (several_runs.py).
"""

import functools
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests import small_resnets
from tests.runs import DROPOUT, NARROW, needs_horovod, run

# Six steps an epoch of 1437 digits; a checkpoint in the middle of each. The kill comes after the one at step 8.
EPOCHS = {"epochs": 2, "checkpoint_steps": 4, "image_size": 8, "warmup": 1, "lr": 0.02, "schedule": "cosine",
          "lr_warmup_steps": 2, "weight_decay": 1e-4, "seed": 3, "track": "none", "target": 0.05}  # fmt: skip
MODES = {
    "single": {"mode": "single", "gpus": 1, "batch": 240},
    "dp": {"mode": "dp", "gpus": 2, "batch": 120},
    "ddp": {"mode": "ddp", "gpus": 2, "batch": 120},
    "horovod": {"mode": "horovod", "gpus": 2, "batch": 120},
    "zero1": {"mode": "zero1", "gpus": 2, "batch": 120},
    "fsdp": {"mode": "fsdp", "gpus": 2, "batch": 120},
    "local": {"mode": "local", "gpus": 2, "batch": 120},
}
# mode -> devices where it reads what others have saved
LOADING = {"single": 1, "dp": 3, "ddp": 3, "horovod": 2, "zero1": 3, "fsdp": 3, "local": 3}
# A ResNet: of a smaller network without norms whole layers stand still in so few steps.
STEPS = NARROW | {"norm": "none", "warmup": 1, "steps": 3, "seed": 3, "threads": 2, "momentum": 0,
                  "lr": 0.05}  # fmt: skip
WITHOUT_NORMS = EPOCHS | {"norm": "none", "checkpoint_steps": None, "schedule": "constant", "lr_warmup_steps": 0}
DROPPING = DROPOUT | {"image_size": 8, "seed": 3, "lr": 0.01}
ASTRAY = {"epochs": 1, "lr": 1e30, "norm": "none"}
AVERAGED = {"image_size": 8, "lr": 0.02, "seed": 3, "ema": 0.8, "swa": 2, "warmup": 1,
            "snapshots": ",".join(map(str, range(1, 10)))}  # fmt: skip
TIMES = ("elapsed_s", "validate_s")
WITH_AVERAGES = [pytest.param(name, marks=needs_horovod if name == "horovod" else ())
                 for name in ("single", "dp", "ddp", "horovod")]  # fmt: skip
SHARDED = [pytest.param(name, marks=pytest.mark.wide) for name in ("zero1", "fsdp")]
LOCAL = [pytest.param("local", marks=pytest.mark.wide)]
EVERY_MODE = WITH_AVERAGES + SHARDED
SEVERAL = [pytest.param(name, marks=needs_horovod if name == "horovod" else ()) for name in ("ddp", "horovod")]
SEVERAL += SHARDED
# Who saves and who loads: of the first four, each mode what it has saved itself and what the one before it has; wide:
# all modes all.
FOUR = ("single", "dp", "ddp", "horovod")
RING = {(FOUR[n - back], mode) for n, mode in enumerate(FOUR) for back in (0, 1)}
PAIRS = [
    pytest.param(
        *pair, marks=[*([needs_horovod] if "horovod" in pair else []), *([] if pair in RING else [pytest.mark.wide])]
    )
    for pair in itertools.product(MODES, MODES)
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ranks):
    """``runs(mode, name)``: a run that ended as it should, made when it is first asked for."""
    done = {}

    def get(mode: str, name: str):
        if (mode, name) not in done:
            options = MODES[mode] | options_of(mode, name, lambda *which: get(*which).run_dir)
            done[mode, name] = ranks.run(tmp_path_factory.mktemp(mode), **options)
        result = done[mode, name]
        assert result.code == (1 if name == "killed" else 0), result.stderr
        return result

    return get


def as_good_as(top1: float, run_dir: Path) -> Path:
    """A folder with that run's checkpoints, which say that this was its accuracy; so few steps reach hardly any."""
    to = run_dir.parent.with_name(f"{run_dir.parent.name}-good")
    to.mkdir()
    for path in run_dir.glob("*.pt"):
        state = torch.load(path, map_location="cpu", weights_only=True)
        state["accuracy"] = [row | {"top1": top1} for row in state["accuracy"]]
        torch.save(state, to / path.name)
    return to


def options_of(mode: str, name: str, folder) -> dict:
    """What is asked of a run besides its mode. folder: (mode, name) -> the folder of such a run."""
    gpus = MODES[mode]["gpus"]
    match name.split(" saved by "):
        case ["whole"]:  # two epochs without a break
            return EPOCHS
        case ["killed"]:  # of which SIGKILL left nine steps and what was on the disk by then
            return EPOCHS | {"fault": f"kill:{gpus - 1}:9"}
        case ["resumed"]:
            return EPOCHS | {"resume": folder(mode, "killed")}
        case ["ruined"]:
            return EPOCHS | {"epochs": 3, "lr": 100.0, "clip_norm": 9, "checkpoint_steps": None,
                             "resume": as_good_as(0.9, folder(mode, "whole"))}  # fmt: skip
        case ["evaluated", saver]:
            asked = {"gpus": LOADING[mode], "val_batch": 7, "threads": 3}
            return asked | {"evaluate": 1, "resume": folder(saver, "whole")}
        case ["gone on", saver]:
            return EPOCHS | {"gpus": 3, "batch": 60, "epochs": 3, "resume": folder(saver, "whole")}
        case ["without norms"]:
            return WITHOUT_NORMS | {"epochs": 3}
        case ["one epoch"]:
            return WITHOUT_NORMS | {"epochs": 1}
        case ["gone on without norms", saver, epochs]:
            before = "one epoch" if epochs == "2" else "gone on without norms saved by fsdp saved by 2"
            return WITHOUT_NORMS | {"epochs": int(epochs), "resume": folder(saver, before)}
        case ["frozen", saver]:
            return EPOCHS | {"epochs": 1, "checkpoint_steps": None, "train_only": "fc*,layer2.*",
                             "track": "tensorboard", "pretrained": folder(saver, "whole") / "best.pt"}  # fmt: skip
        case ["norms"]:
            return {"batch": 12, "accumulate": 2, "norm": "sync", "channels_last": 1, "steps": 1, "optimizer": "adamw"}
        case ["at once"]:
            return STEPS | {"batch": 18, "snapshots": "4"}
        case ["thirds"]:
            return STEPS | {"batch": 18 // gpus // 3, "accumulate": 3, "snapshots": "4"}
        case ["clipped"]:
            return STEPS | {"batch": 6, "clip_norm": 0.01, "snapshots": "1,2,3,4"}
        case ["fp16 clipped in thirds" | "bf16 clipped in thirds"]:
            return STEPS | {"batch": 3, "accumulate": 3, "clip_norm": 0.01, "snapshots": "1,4",
                            "precision": name.split()[0], "allow_slow": 1}  # fmt: skip
        case ["fp16"]:
            # One thread: with two, the four modes took two to three times as long on two cores.
            return {"batch": 12, "steps": 12, "precision": "fp16", "allow_slow": 1, "threads": 1}
        case ["guarded"]:
            return {"batch": 96, "epochs": 1, "lr": 1e4, "momentum": 0.0, "loss_guard": 2}
        case ["astray"]:
            return ASTRAY
        case ["astray, guarded"]:
            return ASTRAY | {"loss_guard": 3}
        case ["kept"]:
            return DROPPING | {"batch": 480, "epochs": 3, "keep": 2, "checkpoint_steps": 2}
        case ["gone back"]:
            return DROPPING | {"batch": 480, "epochs": 3, "resume": folder(mode, "kept") / "epoch2.pt"}
        case ["averaged"]:
            return AVERAGED | {"epochs": 3, "batch": 480 // gpus, "keep": 2}
        case ["averaged, resumed"]:  # after the second epoch, which is the first of SWA's
            return options_of(mode, "averaged", folder) | {"resume": folder(mode, "averaged") / "epoch2.pt"}
        case ["averages evaluated"]:
            return {"gpus": LOADING[mode], "val_batch": 7, "threads": 3, "evaluate": 1,
                    "resume": folder("single", "averaged")}  # fmt: skip
        case ["dropout"]:
            return DROPPING | {"batch": 480, "epochs": 2}
        case ["dropout, averaged"]:
            return DROPPING | {"batch": 480, "epochs": 2, "ema": 0.9, "swa": 1}
        case ["dropout, half"]:
            return DROPPING | {"batch": 480, "epochs": 1}
        case ["dropout, resumed"]:
            return DROPPING | {"batch": 480, "epochs": 2, "resume": folder(mode, "dropout, half")}
    raise ValueError(name)


@pytest.fixture(scope="module")
def trained(runs):
    """``trained(mode)``: two epochs without a break."""
    return lambda name: runs(name, "whole")


@pytest.fixture(scope="module")
def resumed(runs):
    """``resumed(mode)``: the same, killed at step 9 and gone on with from what was on the disk."""
    return lambda name: runs(name, "resumed")


def checkpoint(result, name="latest.pt") -> dict:
    """What a run's checkpoint holds; reading it runs no code."""
    return torch.load(result.run_dir / name, map_location="cpu", weights_only=True)


def largest_difference(a: dict, b: dict) -> float:
    """Of two state dicts with the same keys."""
    assert a.keys() == b.keys()
    return max(float((a[key].double() - b[key].double()).abs().max()) for key in a)


def rows(result) -> list[dict]:
    """The epochs of a record without what a clock says."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in result.record["accuracy"]["epochs"]]


# --- Stopped and resumed --------------------------------------------------------------------------------------------


def test_one_process_stopped_and_resumed_is_bit_for_bit_the_unbroken_run(trained, resumed):
    whole, after = trained("single"), resumed("single")
    assert after.record["samples"][0]["final_weights_sha256"] == whole.record["samples"][0]["final_weights_sha256"]
    assert rows(after) == rows(whole)
    assert largest_difference(checkpoint(after)["model"], checkpoint(whole)["model"]) == 0.0


@pytest.mark.parametrize("name", SEVERAL)
def test_ranks_stopped_and_resumed_agree_with_the_unbroken_run(name, trained, resumed):
    whole, after = checkpoint(trained(name)), checkpoint(resumed(name))
    assert largest_difference(after["model"], whole["model"]) < 1e-4
    for mine, theirs in zip(after["ranks"], whole["ranks"], strict=True):
        assert largest_difference(mine["buffers"], theirs["buffers"]) < 1e-4
    assert after["accuracy"][-1]["top1"] == pytest.approx(whole["accuracy"][-1]["top1"], abs=2 / 360)
    assert after["accuracy"][-1]["train_loss"] == pytest.approx(whole["accuracy"][-1]["train_loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["single", *SEVERAL])
def test_a_resumed_run_says_where_it_went_on(name, resumed):
    result = resumed(name)
    assert "resumed after step 8, 483 images into epoch 2" in result.record["topology"]["notes"]
    assert len(result.record["samples"][0]["step_time_s"]) == 3  # 12 steps in all, 8 before, 1 to warm up


def test_the_best_of_the_run_before_is_kept_until_there_is_a_better_one(runs):
    """A learning rate that ruins the weights: no epoch of the resumed run is better."""
    before, result = runs("single", "whole"), runs("single", "ruined")
    assert result.record["accuracy"]["best_top1"] == 0.9 > result.record["accuracy"]["top1"]
    assert checkpoint(result, "best.pt")["step"] == checkpoint(before, "best.pt")["step"]
    assert any(
        "lr 0.02 → 100.0" in note and "clip_norm None → 9.0" in note for note in result.record["topology"]["notes"]
    )


@pytest.mark.parametrize("name", SEVERAL)
def test_norms_over_all_ranks_in_channels_last_and_in_passes(runs, name):
    result = runs(name, "norms")
    parts = result.record["samples"]
    norms = [part for part in small_resnets.two_blocks(10).modules() if isinstance(part, nn.BatchNorm2d)]
    assert {part["facts"]["norm"] for part in parts} == {f"ReducedBatchNorm2d × {len(norms)}"}
    assert all(part["facts"]["memory_format"].startswith("channels_last") for part in parts)
    assert len({part["final_weights_sha256"] for part in parts}) == 1
    assert any("ReducedBatchNorm2d, this bench's own" in note for note in result.record["topology"]["notes"])


def test_random_numbers_go_on_where_they_were(runs):
    """Dropout: with other random numbers the weights would be others."""
    names = ("dropout", "dropout, resumed", "dropout, half")
    whole, after, half = (runs("single", name).record["samples"][0]["final_weights_sha256"] for name in names)
    assert whole == after != half


def test_an_epochs_own_checkpoint_is_one_to_go_back_to(runs):
    """The newest two of three are kept, each as the run was then; the third epoch comes out as it did."""
    kept, again = runs("single", "kept"), runs("single", "gone back")
    names = sorted(path.name for path in kept.run_dir.glob("*.pt"))
    assert names == ["best.pt", "epoch2.pt", "epoch3.pt", "latest.pt"]
    assert [checkpoint(kept, f"epoch{epoch}.pt")["step"] for epoch in (2, 3)] == [6, 9]
    assert rows(again) == rows(kept) and not list(again.run_dir.glob("epoch*.pt"))
    assert largest_difference(checkpoint(again)["model"], checkpoint(kept)["model"]) == 0.0


def test_a_training_goes_on_in_one_mode_after_the_other(runs):
    """An epoch under fsdp, one under zero1, one in one process: weights and momentum are those of a training in one
    process, so each has read all of what the one before had collected."""
    runs("zero1", "gone on without norms saved by fsdp saved by 2")
    result = runs("single", "gone on without norms saved by zero1 saved by 3")
    found, alone = checkpoint(result), checkpoint(runs("single", "without norms"))
    assert found["step"] == alone["step"] == 18
    assert largest_difference(found["model"], alone["model"]) < 1e-4
    states = [state["optimizer"]["state"] for state in (found, alone)]
    momenta = [{str(n): part["momentum_buffer"] for n, part in state.items()} for state in states]
    assert largest_difference(*momenta) < 1e-3 and max(float(m.abs().max()) for m in momenta[1].values()) > 1e-2


@needs_horovod
def test_another_world_size_may_go_on_and_what_changes_is_said(runs, trained):
    result = runs("ddp", "gone on saved by horovod")
    notes = "\n".join(result.record["topology"]["notes"])
    assert "resumed with 3 processes instead of 2" in notes and "global batch is 180 instead of 240" in notes
    assert "mode horovod → ddp" in notes and "epochs 2 → 3" in notes
    assert [row["epoch"] for row in result.record["accuracy"]["epochs"]] == [1, 2, 3]
    assert rows(result)[:2] == rows(trained("horovod"))
    assert rows(result)[2]["images_seen"] == 2880 + 8 * 180  # 12 steps of 240, then up to the 3 × 1437th image


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 2}, "has completed 2 epochs, which EPOCHS=2"),
        ({"epochs": 3, "optimizer": "adamw"}, "OPTIMIZER=sgd, whose state does not match adamw"),
        ({"epochs": 3, "model": "resnet18"}, "does not match this model: missing layer1.0.conv1.weight"),
    ],
)
def test_a_checkpoint_that_cannot_be_resumed_is_refused_in_one_line(tmp_path, ranks, trained, options, words):
    result = ranks.run(tmp_path, **EPOCHS | MODES["single"] | options, resume=trained("single").run_dir)
    assert result.code == 2 and words in result.last_error_line and not result.run_dirs, result.stderr


def test_a_checkpoint_of_which_a_part_does_not_fit_is_refused_in_one_line(tmp_path, ranks, trained):
    """Of the right kind and with the right names: only the run that would go on from it can know."""
    state = checkpoint(trained("single"))
    state["ranks"][0]["buffers"] = dict.fromkeys(state["ranks"][0]["buffers"], torch.ones(7))
    torch.save(state, tmp_path / "odd.pt")
    result = ranks.run(tmp_path / "runs", **EPOCHS | MODES["single"] | {"epochs": 3}, resume=tmp_path / "odd.pt")
    assert result.code == 2 and "odd.pt holds does not fit this run" in result.last_error_line, result.stderr


# --- Every mode by itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY_MODE + LOCAL)
def test_epochs_are_whole_and_recorded(trained, name):
    content = trained(name).record
    found = content["accuracy"]["epochs"]
    assert [(row["epoch"], row["steps"], row["images_seen"]) for row in found] == [(1, 6, 1440), (2, 12, 2880)]
    assert all(row["images"] == 360 and row["train_loss"] > 0 and row["loss"] > 0 for row in found)
    assert found[0]["lr"] > found[1]["lr"] > 0  # a cosine
    assert found[0]["elapsed_s"] < found[1]["elapsed_s"]
    assert content["accuracy"]["best_top1"] == max(row["top1"] for row in found)
    assert content["accuracy"]["top1"] == found[-1]["top1"] <= content["accuracy"]["top5"] == found[-1]["top5"]
    assert content["accuracy"]["time_to_accuracy_s"] == found[0]["elapsed_s"]  # guessing reaches 5 %
    assert len(content["samples"][0]["step_time_s"]) == 11  # one warms up
    assert not list(trained(name).run_dir.glob("*.tmp"))


@pytest.mark.parametrize("name", EVERY_MODE)
def test_a_checkpoint_fits_the_plain_model(trained, name):
    state = checkpoint(trained(name))
    assert not any(key.startswith(("module.", "_orig_mod.")) for key in state["model"])
    assert (state["step"], state["images_seen"], len(state["ranks"])) == (
        12,
        2880,
        MODES[name]["gpus"] if name not in ("single", "dp") else 1,
    )
    best = max(state["accuracy"], key=lambda row: row["top1"])
    assert checkpoint(trained(name), "best.pt")["step"] == best["steps"]


def test_the_modes_train_alike(trained):
    """Same start, images and steps: only batch norm and rounding differ."""
    losses = [rows(trained(name))[0]["train_loss"] for name in ("single", "dp", "ddp")]
    assert max(losses) / min(losses) < 1.1


# --- Saved in one mode, loaded in another ---------------------------------------------------------------------------


def same_accuracy(evaluation: dict, before: dict) -> None:
    """An evaluation found exactly what the run that saved the checkpoint found after its last epoch."""
    found, expected = evaluation["accuracy"]["epochs"][0], before["accuracy"]["epochs"][-1]
    assert evaluation["status"] == "evaluated" and found["images"] == expected["images"] == 360
    assert (found["top1"], found["top5"]) == (expected["top1"], expected["top5"])
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


@pytest.mark.parametrize(("saved", "loaded"), PAIRS)
def test_what_one_mode_saved_another_validates_exactly(runs, trained, saved, loaded):
    """360 images do not divide by two or three ranks of batches of seven: none is counted twice, none left out."""
    same_accuracy(runs(loaded, f"evaluated saved by {saved}").record, trained(saved).record)


def test_a_run_that_only_evaluates(tmp_path, trained, copied_python):
    """As a person asks for it, with a launch of its own."""
    result = run(tmp_path, mode="dp", gpus=3, batch=7, evaluate=1, resume=trained("ddp").run_dir)
    assert result.code == 0, result.stderr
    assert re.search(r"^validation: .*, 360 images in [\d.]+ s \(\d+ images/s\)$", result.stdout, re.MULTILINE)
    assert "step ms" not in result.stdout  # there is none
    same_accuracy(result.record, trained("ddp").record)


# --- Averages of the weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_AVERAGES)
def test_averages_are_those_of_the_weights_of_each_step(runs, name):
    """Computed anew from a snapshot of every step; and every rank has the same: rank 0's are validated and saved."""
    result = runs(name, "averaged")
    kept = checkpoint(result)
    every_step = [dict(np.load(result.run_dir / f"rank0-step{step}.npz")) for step in range(1, 10)]
    for key, tensor in kept["ema"].items():
        key = key.removeprefix("module.")
        if key == "n_averaged" or "running" in key or "num_batches" in key:
            continue
        weights = [saved[key].astype(np.float64) for saved in every_step]
        ema = functools.reduce(lambda average, new: 0.8 * average + 0.2 * new, weights)
        assert np.abs(tensor.numpy() - ema).max() < 1e-5
        mean = (weights[5] + weights[8]) / 2  # after the second epoch and the third
        assert np.abs(kept["swa"][f"module.{key}"].numpy() - mean).max() < 1e-5
    assert kept["ema"]["n_averaged"] == 9 and kept["swa"]["n_averaged"] == 2
    for average in ("ema", "swa"):
        assert len({part["averages_sha256"][average] for part in result.record["samples"]}) == 1
    for row in rows(result):
        assert {"ema_loss", "ema_top1", "ema_top5"} <= row.keys() and ("swa_top1" in row) == (row["epoch"] >= 2)
    assert "EMA top-1" in result.stdout and "SWA top-1" in result.stdout


def test_averages_change_nothing_in_what_is_trained(runs):
    """Dropout draws its numbers while statistics are estimated, too; the training must not notice."""
    plain, averaged = runs("single", "dropout"), runs("single", "dropout, averaged")
    hashes = [result.record["samples"][0]["final_weights_sha256"] for result in (plain, averaged)]
    assert hashes[0] == hashes[1]


def test_averages_go_on_bit_for_bit_where_they_were(runs):
    whole, after = runs("single", "averaged"), runs("single", "averaged, resumed")
    assert rows(after) == rows(whole)
    for average in ("ema", "swa"):
        assert largest_difference(checkpoint(after)[average], checkpoint(whole)[average]) == 0.0
    assert after.record["samples"][0]["averages_sha256"] == whole.record["samples"][0]["averages_sha256"]


def test_ranks_go_on_with_their_averages(runs):
    whole, after = (checkpoint(runs("ddp", f"averaged{more}")) for more in ("", ", resumed"))
    for average in ("ema", "swa"):
        assert largest_difference(after[average], whole[average]) < 1e-4
    for mine, theirs in zip(after["ranks"], whole["ranks"], strict=True):
        assert largest_difference(mine["averages"]["ema"], theirs["averages"]["ema"]) < 1e-4


@pytest.mark.parametrize("name", ["dp", "ddp"])
def test_an_evaluation_judges_the_averages_of_its_checkpoint(runs, name):
    (found,), last = rows(runs(name, "averages evaluated")), rows(runs("single", "averaged"))[-1]
    keys = ("top1", "ema_top1", "ema_top5", "swa_top1", "swa_top5")
    assert [found[key] for key in keys] == [last[key] for key in keys] and found["images"] == 360


# --- A disk that fills up -------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_checkpoint_before_whole(small_disk, copied_python):
    out = small_disk(pages=2100)  # one checkpoint of 5.6 MB and its record, and not a second one beside it
    result = run(out, **NARROW, mode="single", batch=480, epochs=3)
    assert result.code == 1 and "cannot save" in result.last_error_line, result.stderr
    assert "No space left on device" in result.last_error_line and "latest.pt" in result.last_error_line
    assert "earlier one is intact" in result.last_error_line
    assert checkpoint(result)["step"] == 3 and not list(result.run_dir.glob("*.tmp"))


# --- What guards a step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["single", *SEVERAL])
def test_an_exploding_loss_is_skipped_by_all_ranks_and_counted(runs, name):
    """The first step is taken with a mad learning rate; no loss after it is acceptable."""
    result = runs(name, "guarded")
    steps = math.ceil(1437 / 96 / MODES[name]["gpus"])
    assert rows(result)[0]["skipped_steps"] >= steps - 2
    assert len({part["final_weights_sha256"] for part in result.record["samples"]}) == 1
    assert {part["facts"]["loss_guard"] for part in result.record["samples"]} == {2.0}


@pytest.mark.parametrize("name", ["astray", "astray, guarded"])
def test_a_loss_that_is_not_finite_is_recorded_as_none(runs, name):
    """The training has gone astray; its record is whole and says so."""
    result = runs("single", name)
    (row,) = rows(result)
    assert row["loss"] is None and "loss not finite" in " ".join(result.stdout.split())
    if "guarded" in name:
        assert row["skipped_steps"] == 5 and row["train_loss"] > 0  # that of the one step that was taken
        assert any("5 steps were skipped" in note for note in result.record["topology"]["notes"])
    else:
        assert row["train_loss"] is None
    assert not (result.run_dir / "best.pt").exists()


def snapshots(result, *steps: int) -> list[np.ndarray]:
    """All parameters of rank 0 after these steps, as one vector each."""
    files = [np.load(result.run_dir / f"rank0-step{step}.npz") for step in steps]
    return [np.concatenate([file[name].ravel() for name in sorted(file)]) for file in files]


@pytest.mark.parametrize("name", ["single", *SEVERAL])
def test_clipping_bounds_the_update(runs, name):
    vectors = snapshots(runs(name, "clipped"), 1, 2, 3, 4)
    for before, after in itertools.pairwise(vectors):
        assert np.linalg.norm(after - before) == pytest.approx(0.05 * 0.01, rel=1e-3)


@pytest.mark.parametrize("name", EVERY_MODE)
def test_passes_of_a_third_are_one_batch(runs, name):
    """Of one process that takes each batch of 18 at once."""
    (whole,), thirds = snapshots(runs("single", "at once"), 4), runs(name, "thirds")
    assert np.abs(snapshots(thirds, 4)[0] - whole).max() < 1e-5
    assert thirds.record["topology"]["global_batch"] == 18
    assert set(thirds.record["samples"][0]["phase_time_s"]) > {"passes before"}


HALF = ("zero1", "bf16"), ("fsdp", "bf16"), pytest.param("fsdp", "fp16", marks=pytest.mark.wide)  # a CPU's is slow


@pytest.mark.parametrize(("name", "precision"), HALF)
def test_what_is_sharded_is_clipped_scaled_and_in_passes_as_under_ddp(runs, name, precision):
    """The same weights, but for gradients that round the other way in half precision."""
    sharded, whole = (snapshots(runs(mode, f"{precision} clipped in thirds"), 1, 4) for mode in (name, "ddp"))
    way = np.linalg.norm(whole[1] - whole[0])
    assert way == pytest.approx(3 * 0.05 * 0.01, rel=0.5)  # of three steps as long as clipping lets them be
    assert np.linalg.norm(sharded[1] - whole[1]) < 0.05 * way


@pytest.mark.parametrize("name", EVERY_MODE)
def test_fp16_scales_the_loss_and_keeps_replicas_equal(runs, name):
    parts = runs(name, "fp16").record["samples"]
    assert {(p["facts"]["autocast"], p["facts"]["loss_scaling"]) for p in parts} == {("float16", True)}
    assert len({p["final_weights_sha256"] for p in parts}) == 1
    assert parts[0]["final_weights_sha256"] != parts[0]["initial_weights_sha256"]


# --- Fine-tuning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEVERAL)
def test_frozen_parameters_and_their_statistics_stay(runs, name):
    before, result = runs("single", "whole"), runs(name, "frozen saved by single")
    old, new = checkpoint(before, "best.pt")["model"], checkpoint(result)["model"]
    moved = {key for key in old if not torch.equal(old[key], new[key])}
    assert moved and all(key.startswith(("fc.", "layer2.")) for key in moved)
    assert "layer2.bn1.running_mean" in moved and "fc.weight" in moved
    assert any("are frozen" in note for note in result.record["topology"]["notes"])


# --- Trackers -------------------------------------------------------------------------------------------------------


def test_rank_0_alone_tells_the_tracker(runs):
    result = runs("ddp", "frozen saved by single")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = result.run_dir.rglob("events.out.tfevents*")
    events = EventAccumulator(str(file)).Reload()
    top1 = events.Scalars("epoch/top1")
    assert [event.value for event in top1] == pytest.approx([result.record["accuracy"]["top1"]])
    assert json.dumps(result.record)  # and the record is there as ever
