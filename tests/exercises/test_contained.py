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
    lines = [(p.pid, p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [pid for pid, line in lines if "import time; time.sleep(600)" in line]


@pytest.mark.skipif(not LINUX, reason="the limit is Linux's")
def test_a_file_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(contained, "MOST_FILE_BYTES", 100_000)
    program = GROWING.format(path=str(tmp_path / "large"))
    assert contained.run([sys.executable, "-c", program], 60, dict(os.environ), tmp_path / "log") == 1
    assert (tmp_path / "large").stat().st_size == 100_000


def test_what_a_command_leaves_is_ended_and_children_of_others_are_left_alone(tmp_path):
    """Also where the command is late."""
    before, started = sleepers(), time.monotonic()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for seconds, limit_s, code in ((0.5, 60, 0), (600, 2, None)):
            command = [sys.executable, "-c", STRAYS, str(seconds)]
            assert contained.run(command, limit_s, dict(os.environ), tmp_path / "log") == code
            assert sleepers() == before and time.monotonic() - started < 60
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

    def changed() -> list[str]:
        return contained.changed_code(before, contained.code_state([tmp_path / "site"], [beside]))

    before = contained.code_state([tmp_path / "site"], [beside])
    (package / "__pycache__" / "b.pyc").write_bytes(b"compiled for the first time")
    (package / "data.bin").write_bytes(b"no code")
    (beside / "notes.txt").touch()
    assert not changed()
    time.sleep(0.05)  # a file system's clock ticks slowly
    times = (package / "a.py").stat()
    (package / "a.py").write_bytes(b"x = 2")
    os.utime(package / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns))  # as one who hides it would
    (package / "b.py").unlink()
    (beside / "nbgrader").mkdir()
    for name in ("c.pth", "__pycache__/a.pyc"):
        (package / name).write_bytes(b"y = 1")
    for name in ("json.py", "nbgrader/__init__.py"):
        (beside / name).touch()
    expected = [package / name for name in ("__pycache__/a.pyc", "a.py", "b.py", "c.pth")]
    assert changed() == [str(path) for path in (*expected, beside / "json.py", beside / "nbgrader" / "__init__.py")]
    assert contained.code_state()  # of this Python
