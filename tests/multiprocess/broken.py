"""What the tests of broken runs share: every engine with its options, and what each failed run must leave."""

import os

import pytest

from tests.runs import left_behind, needs_horovod, needs_mpi

ENGINES = {
    "ddp by torchrun": {"mode": "ddp", "gpus": 2, "launcher": "torchrun"},
    "ddp by spawn": {"mode": "ddp", "gpus": 2, "launcher": "spawn"},
    "horovod": {"mode": "horovod", "gpus": 2},
    "horovod by mpirun": {"mode": "horovod", "gpus": 2, "launcher": "mpirun"},
    "dp": {"mode": "dp", "gpus": 2},
}
# A run that continues until somebody ends it, and leaves the cores to other tests: its steps wait for their images.
ENDLESS = {"steps": 100_000, "storage_ms": 10}
GONE_WITHIN = 30.0  # seconds in which the last process of a broken run must have ended; left alone it would continue
NEEDS = {"horovod": needs_horovod, "horovod by mpirun": needs_mpi}


def engine(name: str, *marks):
    """An engine as a parameter of a test; skipped where what it needs is not installed."""
    return pytest.param(name, id=name, marks=[*([NEEDS[name]] if name in NEEDS else []), *marks])


def bad_rank(name: str) -> int:
    """The rank that is broken: the last."""
    return 0 if ENGINES[name]["mode"] == "dp" else 1


def failure_of(result, code: int = 1) -> dict:
    """A failed run's record, after what every failed run must keep: one line, a code, a record, no rest."""
    one_line(result, code)
    failed = result.loaded
    assert failed.status == "failed" and failed.samples == []
    left = {path.name for path in result.run_dir.iterdir()}
    assert {name for name in left if not name.endswith(".log")} == {"record.json"}, left
    return failed.failure


def refused(result, *values: str) -> None:
    """The request cannot be met: one line that names these values, and no run folder."""
    one_line(result, 2)
    assert all(value in result.stderr for value in values), result.stderr
    assert result.out is None or result.run_dirs == []


def one_line(result, code: int) -> None:
    assert result.code == code, result.stderr
    assert result.stderr.startswith("bench: ") and result.stderr.count("\n") == 1, result.stderr
    assert result.pid == os.getpid() or left_behind(result.pid, within=GONE_WITHIN) == []
