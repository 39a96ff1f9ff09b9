"""Memory by what it is for, in real processes: what was predicted is what the CPU's allocator gives.

Kernels' workspaces, which depend on the CPU, are in no prediction."""

import pytest

from tests.runs import needs_horovod
from tests.validation.predicted_memory import ALIKE, ROWS, compared, off_by

WITHIN = 0.02


def named(row: dict):
    marks = needs_horovod if row["mode"] == "horovod" else ()
    again = "checkpointed" if "activation_checkpointing" in row else row.get("optimizer", "sgd")
    return pytest.param(row, id=f"{row['mode']}-{row['model']}-{again}", marks=marks)


@pytest.mark.parametrize("row", [named(row) for row in ROWS[:8]])
def test_the_prediction_is_what_is_measured(ranks, tmp_path, row):
    result = ranks.run(tmp_path, **ALIKE | row)
    assert result.code == 0, result.stderr
    pairs = compared(result.loaded)
    assert len(pairs) == (1 if row["mode"] in ("single", "dp") else 2)
    for predicted, measured in pairs:
        assert off_by((predicted, measured)) < WITHIN
        for kind in ("weights", "optimizer state", "buckets", "replicas"):  # what is there all the time is exact
            assert predicted.get(kind, 0) == pytest.approx(measured.get(kind, 0), abs=2**14)
        transient = [
            sum(parts.get(kind, 0) for kind in ("gradients", "activations", "gathered"))
            for parts in (predicted, measured)
        ]
        assert transient[0] == pytest.approx(transient[1], rel=WITHIN)
        assert predicted.get("gathered", 0) == pytest.approx(measured.get("gathered", 0), rel=WITHIN)
    record = result.loaded
    assert len(record.samples[0].step_time_s) == record.config.timed_steps  # it is not among those that are timed
