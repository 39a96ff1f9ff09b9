"""Memory by what it is for, in real processes: what was predicted is what the CPU's allocator gives. Kernels'
workspaces, which depend on the CPU, are in no prediction."""

import signal

import pytest

from tests import runs
from tests.multiprocess.broken import one_line
from tests.runs import needs_horovod
from tests.validation.predicted_memory import ROWS, compared, off_by, smaller

WITHIN = 0.02


def named(row: dict):
    marks = [needs_horovod] * (row["mode"] == "horovod") + [pytest.mark.wide] * (row["model"] == "resnet50")
    again = "checkpointed" if "activation_checkpointing" in row else row.get("optimizer", "sgd")
    return pytest.param(row, id=f"{row['mode']}-{row['model']}-{again}", marks=marks)


@pytest.mark.parametrize("row", [named(row) for row in (*ROWS[:5], ROWS[5] | ROWS[7], ROWS[6])])
def test_the_prediction_is_what_is_measured(ranks, tmp_path, row):
    result = ranks.run(tmp_path, **smaller(row)).ok()
    pairs = compared(result.loaded)
    assert len(pairs) == (1 if row["mode"] in ("single", "dp") else 2)
    for predicted, measured in pairs:
        assert off_by((predicted, measured)) < WITHIN
        for kind in ("weights", "optimizer state", "buckets", "replicas"):  # what is there all the time is exact
            assert predicted.get(kind, 0) == pytest.approx(measured.get(kind, 0), abs=2**14)
        kinds = ("gradients", "activations", "gathered")
        transient = [sum(parts.get(kind, 0) for kind in kinds) for parts in (predicted, measured)]
        assert transient[0] == pytest.approx(transient[1], rel=WITHIN)
        assert predicted.get("gathered", 0) == pytest.approx(measured.get("gathered", 0), rel=WITHIN)
    record = result.loaded
    assert len(record.samples[0].step_time_s) == record.config.timed_steps  # it is not among those that are timed


SEARCHED = {"mode": "ddp", "gpus": 2, "batch": "max"}


def test_the_largest_batch_is_tried_and_then_run_as_if_given(ranks, tmp_path):
    """As many images as the data have fit."""
    result = ranks.run(tmp_path, **SEARCHED, memory_gib=2).ok()
    record, most = result.loaded, 1437 // 2
    assert record.config.per_device_batch == most and f"BATCH={most}" in record.data["command"]
    (tried,) = record.data["batch_search"]
    assert (tried["program"], tried["batch"], tried["fitted"]) == ("ddp", most, True) and 0.1 < tried["peak_gib"] < 2
    assert f"BATCH={most}" in result.stdout.splitlines()[0]


def test_not_even_one_example_fits(ranks, tmp_path):
    """Each rank has ended its try by the error that torch raises on a GPU; nothing of the try is left."""
    result = ranks.run(tmp_path, **SEARCHED, memory_gib=0.05)
    one_line(result, 3)
    assert "BATCH=1" in result.stderr and "MEMORY_GIB=0.05" in result.stderr and list(tmp_path.iterdir()) == []


def test_an_interrupted_search_leaves_nothing(tmp_path, copied_python):
    process = runs.start_run(tmp_path, **SEARCHED, memory_gib=2, storage_ms=100)
    runs.wait_for(lambda: list(tmp_path.glob("batch-*/*/rank*.log")), "a try has begun", 120)
    process.send_signal(signal.SIGINT)
    one_line(result := runs.finish(process, tmp_path), 130)
    assert result.stdout == "" and list(tmp_path.iterdir()) == []
