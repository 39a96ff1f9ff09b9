"""A run beside other work says so: in its record, under its table, and so does a suite."""

import subprocess
import sys

import psutil

from bench.record.disturbance import THRESHOLDS, disturbed


def test_a_run_beside_busy_loops(tmp_path, ranks):
    """The ranks are there when the loops begin: a process on every core that does nothing useful."""
    ranks.run(tmp_path / "before", mode="ddp", gpus=2)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(psutil.cpu_count())]
    try:
        result = ranks.run(tmp_path / "beside", mode="ddp", gpus=2, steps=4)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    record = result.ok().loaded
    share = record["summary"]["others_cpu_share"]
    assert record["provenance"]["others_cpu_share"]
    assert THRESHOLDS["others_cpu_share"].above < share <= 1
    assert all(part.load["own_cpu_s"] > 0 and part.load["involuntary_switches"] > 0 for part in record.samples)
    (said,) = disturbed([record])
    assert f"{100 * share:.0f} %" in said and said in " ".join(result.stdout.split())


def test_own_workers_are_no_others(tmp_path, ranks):
    """A loader's workers are the run's own: what they take is known, whatever else this machine does."""
    result = ranks.run(tmp_path, mode="single", image_size=64, batch=64, workers=2, steps=6)
    (part,) = result.loaded.samples
    assert part.load["own_cpu_s"] <= part.load["machine_cpu_s"] + 0.5
