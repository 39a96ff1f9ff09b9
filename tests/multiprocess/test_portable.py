"""Without what only Linux has: /proc and CPU affinity are taken away from real processes, as on macOS."""

import os
import subprocess
import sys
import textwrap

import pytest

from bench.process.guard import alive
from tests.multiprocess.broken import GONE_WITHIN
from tests.runs import left_behind, run


@pytest.fixture
def no_linux(tmp_path):
    """An environment whose Python has neither. psutil, which has its own way on every system, keeps its /proc."""
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.sched_getaffinity, os.sched_setaffinity\n")
    return {"BENCH_PROC": "/nowhere", "PYTHONPATH": str(tmp_path)}


def test_a_run_measures_what_can_be_measured(no_linux, tmp_path):
    result = run(tmp_path / "out", env=no_linux, mode="single")
    assert result.code == 0, result.stderr
    record = result.loaded
    assert all(0.05 < peak["uss"] < peak["rss_hwm"] < 50 and "pss" not in peak for peak in record.peak_memory)
    assert "pss: this system has none; uss is used in its place." in record["samples"][0]["devices"][0]["notes"]
    assert record["samples"][0]["load"]["pressure_s"] is None and record["samples"][0]["load"]["machine_cpu_s"] > 0
    assert record["environment"]["machine"]["usable_cores"] == os.cpu_count()
    assert left_behind(result.pid, within=GONE_WITHIN) == []


def test_a_killed_rank_is_found(no_linux, tmp_path):
    result = run(tmp_path / "out", env=no_linux, mode="ddp", gpus=2, fault="kill:1:1")
    assert result.code == 1 and "rank 1 was killed" in result.last_error_line, result.stderr
    assert left_behind(result.pid, within=GONE_WITHIN) == []


def test_a_process_that_has_ended_and_was_not_waited_for_is_not_alive():
    code = textwrap.dedent("""
        import os
        from bench.process import guard
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        print(guard.alive(child), guard.alive(os.getpid()))
        os.waitpid(child, 0)
        print(guard.alive(child))
    """)
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "True", "False"]
    assert alive(1)
