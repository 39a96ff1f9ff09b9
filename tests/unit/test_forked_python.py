"""The ``python`` that stands in for sys.executable in other tests does what Python does (tests/forked_python.py)."""

import subprocess
import sys

import pytest

from bench.files import LINUX
from tests.forked_programs import Programs

pytestmark = pytest.mark.skipif(not LINUX, reason="a fork is safe only on Linux")

PROGRAM = """
import multiprocessing, other, sys

def double(number):
    return 2 * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(__file__, sys.argv, sys.path[0], pool.map(double, [1]))
"""


def test_it_prints_and_ends_as_python_does(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "other.py").write_text("print('imported from', __file__)\n")
    calls = (
        ["-u", "-c", "import os, sys; print(sys.argv, sys.stdin.read(), sorted(os.environ), os.getcwd())", "a", "-b"],
        ["-c", "import atexit; atexit.register(print, 'at the end'); print('first'); 1 / 0"],
        ["-c", "import sys; sys.stderr.reconfigure(errors='replace'); raise SystemExit('a reason')"],
        ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
        ["-c", "import os; os.setsid(); print(os.getsid(0) == os.getpid())"],
        ["-m", "json.tool", "--compact"],
        ["-Xfaulthandler", "-c", "import faulthandler, sys; sys.exit(3 * faulthandler.is_enabled())"],
        ["-S", "-c", "import sys; print(sys.flags.no_site)"],
        ["program.py", "a"],
    )
    with Programs(torch=False) as copies:
        for words in calls:
            ends = []
            for python in (sys.executable, copies.python):
                done = subprocess.run([python, *words], cwd=tmp_path, input="{}", capture_output=True, text=True)
                last = (done.stderr.strip().splitlines() or [""])[-1].replace(copies.python, sys.executable)
                ends.append((done.returncode, done.stdout, last))
            assert ends[0] == ends[1], words
