"""A run beside other work says so: in its record, under its table, and so does a suite."""

import contextlib
import subprocess
import sys

import psutil
import pytest

from bench.record.disturbance import THRESHOLDS, disturbed
from tests.runs import bench

BUSY = "while True: pass"


@contextlib.contextmanager
def busy():
    """A process on every core that does nothing useful."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(psutil.cpu_count())]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("mode", "gpus"), [("single", 1), ("ddp", 2)])
def test_a_run_beside_busy_loops(mode, gpus, tmp_path, ranks):
    ranks.run(tmp_path / "before", mode=mode, gpus=gpus)  # the ranks are there when the loops begin
    with busy():
        result = ranks.run(tmp_path / "beside", mode=mode, gpus=gpus, image_size=16, steps=8)
    assert result.code == 0, result.stderr
    record = result.loaded
    share = record["summary"]["others_cpu_share"]
    assert THRESHOLDS["others_cpu_share"].above < share <= 1
    loads = [part.load for part in record.samples]
    assert all(load["own_cpu_s"] > 0 and load["involuntary_switches"] > 0 for load in loads)
    said = f"{mode} was disturbed: other processes took {100 * share:.0f} % of the CPU during its timed steps"
    assert said in " ".join(result.stdout.split()) and disturbed([record]) == [said]


def test_own_workers_are_no_others(tmp_path, ranks):
    """A loader's workers are the run's own: what they take is known, whatever else this machine does."""
    result = ranks.run(tmp_path, mode="single", image_size=64, batch=64, workers=2, steps=6)
    (part,) = result.loaded.samples
    assert part.load["own_cpu_s"] <= part.load["machine_cpu_s"] + 0.5
    assert result.loaded["provenance"]["others_cpu_share"]


def test_the_doctor_sees_them_beforehand():
    with busy():
        result = bench("doctor")
    assert result.code == 0 and "of the CPU now: what is measured now is disturbed" in " ".join(result.stdout.split())
