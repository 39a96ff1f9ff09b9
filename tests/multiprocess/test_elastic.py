"""MIN_DEVICES with real ranks: a run goes on when one is killed, and says what that cost. (Machines that are lost:
test_several_machines.py.)"""

import pytest

from bench.launch.engines.horovod_elastic import FIRST_WAIT_S
from tests.runs import LASTING, left_behind, needs_horovod, run

# 12 steps of 120 of 1437 images. They take so long that the training goes on when a rank's end is seen.
TRAINING = LASTING | {"gpus": 2, "batch": 60, "epochs": 1, "checkpoint_steps": 3}
EVERY_IMAGE = {"epoch": 1, "once": 1437, "more": 0, "never": 0}
FILES = {"best.pt", "latest.pt", "launcher.log", "rank0.log", "rank1.log", "record.json"}


def test_ddp_starts_all_ranks_again_from_the_last_checkpoint(ranks, tmp_path, forked_programs):
    """Its weights are, bit by bit, those of a run that nobody has interrupted."""
    result = run(tmp_path / "killed", copies=forked_programs, **TRAINING, mode="ddp", elastic=1, fault="kill:1:5")
    assert result.code == 0, result.stderr
    whole = ranks.run(tmp_path / "whole", **TRAINING, mode="ddp")
    assert whole.code == 0, whole.stderr
    found, uninterrupted = (
        [part["final_weights_sha256"] for part in each.record["samples"]] for each in (result, whole)
    )
    assert found == uninterrupted
    (row,) = result.record["elastic"]["interruptions"]
    seconds = row.pop("seconds_lost")
    assert row.pop("when_s") > 0 and 0 < seconds < 200
    assert row == {
        "rank": 1, "host": None, "kind": "killed", "steps_repeated": 2, "devices_before": 2, "devices_after": 2
    }  # fmt: skip
    assert result.record["elastic"]["epochs"] == [EVERY_IMAGE]
    assert [epoch["images_seen"] for epoch in result.record["accuracy"]["epochs"]] == [1440]
    assert f"(rank 1 was killed): {seconds:.1f} s lost, 2 steps repeated" in result.stdout
    assert "ddp, interrupted 1 ×" in result.stdout and result.stdout.count("\nepoch 1: ") == 1
    assert {path.name for path in result.run_dir.iterdir()} == FILES
    assert left_behind(result.pid) == []


@needs_horovod
def test_horovod_goes_on_with_the_ranks_that_are_left(tmp_path):
    """Also when the first of them is killed: the other one, which keeps its process, is rank 0 then."""
    result = run(tmp_path, **TRAINING, mode="horovod", elastic=1, fault="kill:0:5")
    assert result.code == 0, result.stderr
    record = result.record
    (row,) = record["elastic"]["interruptions"]
    assert (row["rank"], row["kind"], row["steps_repeated"]) == (0, "killed", 2)
    assert (row["devices_before"], row["devices_after"]) == (2, 1)
    assert record["elastic"]["epochs"] == [EVERY_IMAGE]
    assert (record["topology"]["world_size"], record["topology"]["global_batch"], record["config"]["lr_batch"]) == (
        1, 60, 120
    )  # fmt: skip
    assert record["accuracy"]["epochs"][0]["lr"] == pytest.approx(0.05 / 2)  # with the global batch
    assert "from 2 devices to 1" in result.stdout and "GPUS=2" in record["command"]
    assert "building the model" not in (result.run_dir / "rank1.log").read_text()
    assert {path.name for path in result.run_dir.iterdir()} == FILES
    assert left_behind(result.pid) == []


@pytest.mark.wide
@needs_horovod
def test_a_lost_rank_of_horovod_joins_again(tmp_path):
    """After the time that Horovod leaves it alone, at the next commit; here it must come back: two ranks are the
    least."""
    slow = {"storage_ms": 30, "epochs": 3, "timeout": 120}  # ms an image
    result = run(tmp_path / "joins", **TRAINING | slow, mode="horovod", elastic=1, fault="kill:1:5")
    assert result.code == 0, result.stderr
    killed, joined = result.record["elastic"]["interruptions"]
    assert (killed["kind"], killed["devices_after"]) == ("killed", 1)
    assert (joined["kind"], joined["rank"], joined["devices_after"], joined["steps_repeated"]) == ("joined", None, 2, 0)
    assert joined["when_s"] - killed["when_s"] >= FIRST_WAIT_S
    assert all(epoch["more"] == epoch["never"] == 0 for epoch in result.record["elastic"]["epochs"])
    assert len({part["final_weights_sha256"] for part in result.record["samples"]}) == 1
    result = run(tmp_path / "least", **TRAINING, mode="horovod", elastic=2, fault="kill:1:5")
    assert result.code == 0, result.stderr
    (row,) = result.record["elastic"]["interruptions"]
    assert (row["devices_before"], row["devices_after"]) == (2, 2)
    assert len({part["final_weights_sha256"] for part in result.record["samples"]}) == 1


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["ddp", pytest.param("horovod", marks=needs_horovod)])
def test_a_rank_that_fails_again_and_again_ends_the_run(mode, tmp_path):
    result = run(tmp_path, **TRAINING, mode=mode, elastic=2, restarts=1, fault="raise:1:5")
    failure = failed(result, interruptions=1)
    assert (failure["rank"], failure["kind"]) == (1, "raised")
    assert "broken on purpose" in result.last_error_line
    assert "MIN_DEVICES survived 1 interruptions before (RESTARTS=1)" in result.last_error_line


@pytest.mark.wide
def test_a_rank_that_hangs_ends_the_run(tmp_path):
    result = run(tmp_path, **TRAINING | {"timeout": 20}, mode="ddp", elastic=1, fault="hang:1:5")
    assert failed(result)["kind"] == "hung" and "rank 1 hangs" in result.last_error_line


def failed(result, interruptions: int = 0) -> dict:
    """What the record of a failed run says, after what is there: one line, the checkpoint so far, and no process."""
    assert result.code == 1 and result.stderr.count("\n") == 1, result.stderr
    assert left_behind(result.pid) == []
    assert len(result.loaded.interruptions) == interruptions
    assert result.loaded.status == "failed" and (result.run_dir / "latest.pt").exists()
    return result.loaded.failure
