"""MIN_DEVICES with real ranks: a run continues when one is killed, and says what that cost. (Machines that are lost:
test_several_machines.py.)"""

import pytest

from bench.launch.engines.horovod_elastic import FIRST_WAIT_S
from tests.multiprocess.ranks import each, equal_replicas
from tests.runs import LASTING, left_behind, needs_horovod, run

# 12 steps of 120 of 1437 images. They take so long that the training still runs when a rank's end is seen.
TRAINING = LASTING | {"gpus": 2, "batch": 60, "epochs": 1, "checkpoint_steps": 3}
EVERY_IMAGE = {"epoch": 1, "once": 1437, "more": 0, "never": 0}
FILES = {"best.pt", "latest.pt", "launcher.log", "rank0.log", "rank1.log", "record.json"}


def survived(result, **expected) -> None:
    """One interruption with these entries, every image once, and nothing left."""
    (row,) = result.ok().record["elastic"]["interruptions"]
    assert row["when_s"] > 0 and 0 < row["seconds_lost"] < 200
    assert {key: row[key] for key in expected} == expected
    assert f"{row['seconds_lost']:.1f} s" in result.stdout and result.stdout.count("\nepoch 1: ") == 1
    assert result.record["elastic"]["epochs"] == [EVERY_IMAGE]
    assert {path.name for path in result.run_dir.iterdir()} == FILES
    assert left_behind(result.pid) == []


def test_ddp_starts_all_ranks_again_from_the_last_checkpoint(ranks, tmp_path, forked_programs):
    """Its weights are, bit by bit, those of a run that nobody has interrupted."""
    result = run(tmp_path / "killed", copies=forked_programs, **TRAINING, mode="ddp", elastic=1, fault="kill:1:5")
    survived(result, rank=1, host=None, kind="killed", steps_repeated=2, devices_before=2, devices_after=2)
    whole = ranks.run(tmp_path / "whole", **TRAINING, mode="ddp")
    assert each(result, "final_weights_sha256") == each(whole, "final_weights_sha256")
    assert [epoch["images_seen"] for epoch in result.record["accuracy"]["epochs"]] == [1440]


@needs_horovod
def test_horovod_goes_on_with_the_ranks_that_are_left(tmp_path, forked_programs):
    """Also when the first of them is killed: the other one, which keeps its process, is rank 0 then."""
    result = run(tmp_path, copies=forked_programs, **TRAINING, mode="horovod", elastic=1, fault="kill:0:5")
    survived(result, rank=0, kind="killed", steps_repeated=2, devices_before=2, devices_after=1)
    record = result.record
    sizes = (record["topology"]["world_size"], record["topology"]["global_batch"], record["config"]["lr_batch"])
    assert sizes == (1, 60, 120)
    assert record["accuracy"]["epochs"][0]["lr"] == pytest.approx(0.05 / 2)  # with the global batch
    assert "GPUS=2" in record["command"] and "building the model" not in (result.run_dir / "rank1.log").read_text()


@pytest.mark.wide
@needs_horovod
def test_a_lost_rank_of_horovod_joins_again(tmp_path):
    """After the time that Horovod leaves it alone, at the next commit; with a minimum of two it must come back."""
    slow = {"storage_ms": 30, "epochs": 3, "timeout": 120}  # ms an image
    result = run(tmp_path / "joins", **TRAINING | slow, mode="horovod", elastic=1, fault="kill:1:5").ok()
    killed, joined = result.record["elastic"]["interruptions"]
    assert (killed["kind"], killed["devices_after"]) == ("killed", 1)
    assert (joined["kind"], joined["rank"], joined["devices_after"], joined["steps_repeated"]) == ("joined", None, 2, 0)
    assert joined["when_s"] - killed["when_s"] >= FIRST_WAIT_S
    assert all(epoch["more"] == epoch["never"] == 0 for epoch in result.record["elastic"]["epochs"])
    assert equal_replicas(result)
    result = run(tmp_path / "least", **TRAINING, mode="horovod", elastic=2, fault="kill:1:5")
    survived(result, devices_before=2, devices_after=2)
    assert equal_replicas(result)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("mode", "fault", "kind", "interruptions"),
    [
        ("ddp", "raise:1:5", "raised", 1),
        pytest.param("horovod", "raise:1:5", "raised", 1, marks=needs_horovod),
        ("ddp", "hang:1:5", "hung", 0),
    ],
)
def test_a_rank_that_fails_again_and_again_or_hangs_ends_the_run(mode, fault, kind, interruptions, tmp_path):
    limits = {"elastic": 1, "timeout": 20} if kind == "hung" else {"elastic": 2, "restarts": 1}
    result = run(tmp_path, **TRAINING | limits, mode=mode, fault=fault)
    assert result.code == 1 and result.stderr.count("\n") == 1, result.stderr
    assert left_behind(result.pid) == []
    assert len(result.loaded.interruptions) == interruptions and (result.run_dir / "latest.pt").exists()
    assert (result.loaded.failure["rank"], result.loaded.failure["kind"]) == (1, kind)
    assert f"survived {interruptions} interruption" in result.last_error_line or not interruptions
