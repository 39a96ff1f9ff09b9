"""A command is ended with all that it has started, wherever that went."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from bench.course.exercises import contained
from bench.files import LINUX

STRAYS = """\
import os, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeper)                              # a child
subprocess.Popen(sleeper, start_new_session=True)      # one in a session of its own
if os.fork() == 0:                                     # one whose parent is gone
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, sleeper, {})         # and that knows nothing of us
    os._exit(0)
time.sleep(float(sys.argv[1]))
"""

GROWING = """\
import resource, time
while resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000:  # it is set when this has begun
    time.sleep(0.05)
file = open({path!r}, "wb", 0)
for _ in range(1000):
    file.write(b"x" * 1000)
"""


def sleepers() -> list[int]:
    """The processes that STRAYS starts."""
    return [
        p.pid for p in psutil.process_iter(["cmdline"]) if "import time; time.sleep(600)" in (p.info["cmdline"] or [])
    ]


def run(tmp_path, seconds: float, limit_s: float) -> int | None:
    """Run STRAYS."""
    return contained.run([sys.executable, "-c", STRAYS, str(seconds)], limit_s, dict(os.environ), tmp_path / "log")


def test_what_a_command_leaves_is_ended(tmp_path):
    before = sleepers()
    assert run(tmp_path, seconds=0.5, limit_s=60) == 0
    assert sleepers() == before


def test_a_command_that_is_late_is_ended_with_its_children(tmp_path):
    before, started = sleepers(), time.monotonic()
    assert run(tmp_path, seconds=600, limit_s=2) is None
    assert sleepers() == before and time.monotonic() - started < 60


@pytest.mark.skipif(not LINUX, reason="the limit is Linux's")
def test_a_file_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(contained, "MOST_FILE_BYTES", 100_000)
    program = GROWING.format(path=str(tmp_path / "large"))
    assert contained.run([sys.executable, "-c", program], 60, dict(os.environ), tmp_path / "log") == 1
    assert (tmp_path / "large").stat().st_size == 100_000


def test_children_of_others_are_left_alone(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run(tmp_path, seconds=0, limit_s=60)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(not LINUX, reason="Linux's own")
def test_where_memory_runs_out_a_command_is_ended_before_what_else_runs(tmp_path):
    score = "/proc/self/oom_score_adj"
    program = f"while read score < {score}; test $score != 1000; do sleep 0.05; done; (cat {score})"
    assert contained.run(["sh", "-c", program], 30, dict(os.environ), tmp_path / "log") == 0
    assert (tmp_path / "log").read_text() == "1000\n"


def test_code_that_an_answer_has_changed_is_noticed(tmp_path):
    package, beside = tmp_path / "site" / "package", tmp_path / "work"
    (package / "__pycache__").mkdir(parents=True)
    beside.mkdir()
    for name in ("a.py", "b.py", "data.bin", "__pycache__/a.pyc"):
        (package / name).write_bytes(b"x = 1")
    where = [tmp_path / "site"], [beside]
    before = contained.code_state(*where)
    assert not contained.changed_code(before, contained.code_state(*where))
    (package / "__pycache__" / "b.pyc").write_bytes(b"compiled for the first time")
    (package / "data.bin").write_bytes(b"no code")
    (beside / "notes.txt").touch()
    assert not contained.changed_code(before, contained.code_state(*where))
    time.sleep(0.05)  # a file system's clock ticks slowly
    times = (package / "a.py").stat()
    (package / "a.py").write_bytes(b"x = 2")
    os.utime(package / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns))  # as one who hides it would
    (package / "b.py").unlink()
    (package / "c.pth").touch()
    (package / "__pycache__" / "a.pyc").write_bytes(b"y = 1")
    (beside / "json.py").touch()
    (beside / "nbgrader").mkdir()
    (beside / "nbgrader" / "__init__.py").touch()
    changed = contained.changed_code(before, contained.code_state(*where))
    names = ["__pycache__/a.pyc", "a.py", "b.py", "c.pth"]
    assert changed == [*(str(package / name) for name in names), str(beside / "json.py"),
                       str(beside / "nbgrader" / "__init__.py")]  # fmt: skip
    assert contained.code_state()  # of this Python
