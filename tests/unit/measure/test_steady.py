"""The wall clock is set while a command runs: no duration, limit or order may change by it."""

import itertools
import re

import pytest

from tests.runs import ROOT, run

# Instead of a person who sets the clock: it is another day each time that somebody looks.
JUMPY = """
import itertools, time
real, days = time.time, itertools.cycle((0, -3, 2, -1, 5))
time.time = lambda: real() + 86400 * next(days)
"""
MAY_LOOK = {"bench/measure/steady.py", "bench/profile/timeline.py"}  # the latter: a first guess, held to what was timed


def test_nothing_else_looks_at_the_wall_clock():
    """A name of a folder and the date on a page may: they are strings."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        if path.relative_to(ROOT).as_posix() not in MAY_LOOK:
            assert not re.search(r"\btime\.time\(", path.read_text()), path


@pytest.mark.slow
def test_a_run_while_the_clock_is_set_back_and_forward(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(JUMPY)
    options = {"mode": "ddp", "gpus": 2, "launcher": "spawn"}
    result = run(tmp_path / "out", env={"PYTHONPATH": str(tmp_path)}, **options)
    assert result.code == 0, result.stderr
    record = result.loaded
    assert 0 < record["summary"]["command_to_first_timed_step_s"] < 300
    for sample in record.samples:
        moments = [sample.moments[name] for name in ("worker_started", "joined", "first_timed_step", "last_timed_step")]
        assert all(0 <= b - a < 300 for a, b in itertools.pairwise(moments))
        assert 0.9 * sum(sample.step_time_s) <= moments[3] - moments[2] + 0.1
