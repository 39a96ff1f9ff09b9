"""A limit on memory by a control group, as a container or a batch system sets it: a rank that the kernel kills for it
is named with the limit. In a real group, where this process may make one."""

import contextlib
import os
import re
import subprocess
import sys

import pytest

from bench.launch.node import Node, Placement
from bench.measure import cgroup
from tests import runs
from tests.multiprocess.broken import ENDLESS, ENGINES, failure_of
from tests.runs import ROOT, finish, start_run

LIMIT_GIB = 3  # more than two ranks of a small model take

# Rank 1 of a run takes memory without end once it steps: a leak, as Python's own start-up file of the test.
LEAK = """
import os, sys, threading, time
from pathlib import Path

def leak(kept=[]):
    from bench.process.heartbeat import read_status
    while not ((beat := read_status(Path(sys.argv[1]), 1)) and beat.step > 2):
        time.sleep(0.1)
    while True:
        kept.append(b"x" * (64 << 20))

if os.environ.get("RANK") == "1" and "BENCH_TREE" in os.environ:
    threading.Timer(3, leak).start()
"""


@pytest.fixture
def group():
    """A control group of its own with that limit, below this process's."""
    parents = [folder for folder in cgroup.groups("memory") if (folder / "cgroup.procs").exists()]
    made = None
    for parent in parents:
        with contextlib.suppress(OSError):
            made = parent / f"bench-test-{os.getpid()}"
            made.mkdir()
            name = "memory.max" if (made / "memory.max").exists() else "memory.limit_in_bytes"
            (made / name).write_text(str(LIMIT_GIB * 2**30))
            break
    else:
        if made and made.is_dir():
            made.rmdir()
        pytest.skip("a control group with a limit needs the right to make one: run as root, outside of a sandbox")
    yield made
    runs.wait_for(lambda: not (made / "cgroup.procs").read_text(), "the group is empty", 60)
    made.rmdir()


def test_a_rank_that_is_killed_for_want_of_memory(group, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LEAK)
    options = ENGINES["ddp by torchrun"] | ENDLESS
    process = start_run(tmp_path / "out", env={"PYTHONPATH": str(tmp_path)}, **options)
    (group / "cgroup.procs").write_text(str(process.pid))  # and with it the ranks that it will start
    failure = failure_of(finish(process, tmp_path / "out", timeout=240))
    assert (failure["rank"], failure["kind"]) == (1, "killed")
    said = rf"rank 1 was killed \(signal 9\): out of memory in its cgroup's limit of {LIMIT_GIB}\.00 GiB; at step \d+ "
    assert re.match(said, failure["message"])


DOCTOR = """
input()
from bench.cli.actions.doctor import collect_machine, memory_words
print(memory_words(collect_machine()["machine"]))
"""


def test_the_doctor_names_the_limit(group):
    process = subprocess.Popen(
        [sys.executable, "-c", DOCTOR], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    (group / "cgroup.procs").write_text(str(process.pid))
    said, _ = process.communicate("go on\n", timeout=120)
    assert said.endswith(f", of which its control group allows {LIMIT_GIB}.0\n")


def test_a_rank_that_somebody_killed_was_not_out_of_memory(tmp_path):
    assert Node(Placement(range(2)), tmp_path).out_of_memory() == ""
