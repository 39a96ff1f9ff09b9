"""What stands in the place of Python in other tests does as Python does (tests/forked_python.py)."""

import json
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from bench.files import LINUX
from tests.forked_programs import Programs
from tests.runs import wait_for

pytestmark = pytest.mark.skipif(not LINUX, reason="a fork is safe on Linux alone")

SPAWNS = """
import multiprocessing, os

def put(queue, x):
    queue.put((x, os.environ["OF_THIS_TEST"]))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=put, args=(queue, x)) for x in range(2)]
    for child in children:
        child.start()
    print(sorted(queue.get() for _ in children), [child.join() or child.exitcode for child in children])
"""


@pytest.fixture(scope="module")
def copies():
    with Programs("wave", torch=False) as programs:
        yield programs


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import sys; print(sys.argv, sys.path[0]); print('to stderr', file=sys.stderr)", "a", "-b"],
        ["-u", "-c", "import sys; print(sys.stdin.read().upper(), end='')"],
        ["-c", "import sys; sys.exit(3)"],
        ["-c", "raise SystemExit('a reason')"],
        ["-c", "import atexit; atexit.register(print, 'at the end'); print('first'); 1 / 0"],
        ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
        ["-c", "import os; print(sorted(os.environ)); print(os.getcwd())"],
        ["-m", "json.tool", "--compact"],
        ["-B", "-c", "import sys; print(sys.dont_write_bytecode)"],
        ["-Xfaulthandler", "-c", "import faulthandler; print(faulthandler.is_enabled())"],
        ["-S", "-c", "import sys; print(sys.flags.no_site)"],
        ["program.py", "a"],
    ],
    ids=" ".join,
)
def test_it_prints_and_ends_as_python_does(words, copies, tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(__file__, __name__, sys.argv, sys.path[0]); import other\n")
    (tmp_path / "other.py").write_text("print('imported from', __file__)\n")
    ends = []
    for python in (sys.executable, copies.python):
        done = subprocess.run(
            [python, *words], cwd=tmp_path, input='{"a": 1}', capture_output=True, text=True, timeout=60
        )
        last = (done.stderr.strip().splitlines() or [""])[-1].replace(copies.python, sys.executable)
        ends.append((done.returncode, done.stdout, last))
    assert ends[0] == ends[1]


def test_it_can_spawn(copies, tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THIS_TEST", "said")
    (tmp_path / "program.py").write_text(SPAWNS)
    done = subprocess.run([copies.python, tmp_path / "program.py"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[(0, 'said'), (1, 'said')] [0, 0]\n", "")


NODE = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
WHERE = """
import json, os, sys
kinds = ("net", "uts", "mnt", "pid")
print(json.dumps({"ns": [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds], "cores": [*os.sched_getaffinity(0)],
                  "pid": [os.getpid(), int(os.readlink("/proc/self"))], "copy": "wave" in sys.modules}))
"""


def test_on_a_node_of_a_cluster_the_copy_is_there_too(copies):
    """In its network, with its files, cores and processes: what it changes is not the machine's own."""
    core = str(min(os.sched_getaffinity(0)))
    command = [*NODE, "taskset", "-c", core, "sh", "-c", 'for each in "$@"; do $each -c "$CODE"; done', "sh"]
    done = subprocess.run([*command, sys.executable, copies.python], env=os.environ | {"CODE": WHERE},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    if "unshare failed" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    real, copy = map(json.loads, done.stdout.splitlines())
    assert (real["copy"], copy["copy"]) == (False, True), done.stderr
    assert copy["ns"] == real["ns"] and copy["cores"] == real["cores"] == [int(core)]
    assert copy["pid"][0] == copy["pid"][1] < 50  # as its own processes call it


def test_in_a_namespace_of_users_of_its_own_it_stays_there(copies):
    """A copy would have the rights that its caller has given away."""
    program = "import os; print(os.readlink('/proc/self/ns/uts'))"
    apart = subprocess.run(["unshare", "--user", "--uts", copies.python, "-c", program], capture_output=True, text=True)
    if apart.returncode:
        pytest.skip(f"no namespaces here: {apart.stderr.strip()}")
    assert apart.stdout.strip() != os.readlink("/proc/self/ns/uts")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_it_ends_by_a_signal_with_its_copy(number, code, copies):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen([copies.python, "-c", program], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            pid = int(process.stdout.readline())
            assert pid != process.pid and psutil.pid_exists(pid)
            process.send_signal(number)
            assert process.wait(60) == code
        finally:
            process.kill()
        wait_for(lambda: not psutil.pid_exists(pid), "the end of the copy", within=60)


def test_for_another_process_it_is_no_child_of_the_one_that_began_it():
    """As for all processes of a run of pytest: grading in one of them ends all that this has started since."""
    ours = psutil.Process().children(recursive=True)
    programs = Programs("wave", torch=False, owner=os.getppid()).__enter__()
    words = [programs.python, "-c", "import os; print(os.getppid()); import time; time.sleep(600)"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            original = psutil.Process(int(process.stdout.readline())).parent()
            began = {child.pid for child in psutil.Process().children(recursive=True)} - {child.pid for child in ours}
            original.kill()
            assert began == {process.pid}
        finally:
            process.kill()
            shutil.rmtree(programs.folder)
