"""The ``python`` that stands in for sys.executable in other tests does what Python does (tests/forked_python.py)."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from bench.files import LINUX
from tests.forked_programs import Programs
from tests.runs import wait_for

pytestmark = pytest.mark.skipif(not LINUX, reason="a fork is safe only on Linux")

PROGRAM = """
import multiprocessing, other, sys

def double(number):
    return 2 * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(__file__, sys.argv, sys.path[0], pool.map(double, [1]))
"""
WHERE = """
import json, os, sys
kinds = ("net", "uts", "mnt", "pid")
print(json.dumps({"ns": [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds], "cores": [*os.sched_getaffinity(0)],
                  "pid": os.getpid(), "copy": "wave" in sys.modules}))
"""


@pytest.fixture(scope="module")
def copies():
    with Programs("wave", torch=False) as programs:
        yield programs


def test_it_prints_and_ends_as_python_does(copies, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "other.py").write_text("print('imported from', __file__)\n")
    for words in (
        ["-u", "-c", "import os, sys; print(sys.argv, sys.stdin.read(), sorted(os.environ), os.getcwd())", "a", "-b"],
        ["-c", "import atexit; atexit.register(print, 'at the end'); print('first'); 1 / 0"],
        ["-c", "import sys; sys.stderr.reconfigure(errors='replace'); raise SystemExit('a reason')"],
        ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
        ["-m", "json.tool", "--compact"],
        ["-Xfaulthandler", "-c", "import faulthandler, sys; sys.exit(3 * faulthandler.is_enabled())"],
        ["-S", "-c", "import sys; print(sys.flags.no_site)"],
        ["program.py", "a"],
    ):
        ends = []
        for python in (sys.executable, copies.python):
            done = subprocess.run([python, *words], cwd=tmp_path, input="{}", capture_output=True, text=True)
            last = (done.stderr.strip().splitlines() or [""])[-1].replace(copies.python, sys.executable)
            ends.append((done.returncode, done.stdout, last))
        assert ends[0] == ends[1], words


def test_on_a_node_of_a_cluster_the_copy_is_there_too(copies):
    """In its network, with its files, cores and processes."""
    node = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "taskset", "-c"]
    core, both = str(min(os.sched_getaffinity(0))), f'{sys.executable} -c "$CODE"; {copies.python} -c "$CODE"; :'
    done = subprocess.run([*node, core, "sh", "-c", both], env=os.environ | {"CODE": WHERE}, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    if "unshare failed" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    real, copy = map(json.loads, done.stdout.splitlines())
    assert not real.pop("copy") and copy.pop("copy"), done.stderr
    assert max(real.pop("pid"), copy.pop("pid")) < 50 and real == copy


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_by_a_signal_with_its_copy(number, copies):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([copies.python, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            pid = int(process.stdout.readline())
            assert pid != process.pid and psutil.pid_exists(pid)
            process.send_signal(number)
            assert process.wait(60) == -number
        finally:
            process.kill()
    wait_for(lambda: not psutil.pid_exists(pid), "the end of the copy", within=60)
