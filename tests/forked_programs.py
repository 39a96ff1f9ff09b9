"""Programs that begin with torch imported: `Programs.python` stands in for sys.executable (tests/forked_python.py)."""

import contextlib
import multiprocessing
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.files import LINUX
from bench.measure.nvml import visible_gpus
from tests import forked_python
from tests.runs import ROOT

FOR_RANKS = "tests.preloaded"


class Programs:
    """A server that forks programs, while this context lasts. It imports ``more`` and, with ``torch``, what ranks need;
    with GPUs only torch, because an import may touch one. variables: while it imports. python: its ``python``."""

    def __init__(self, *more: str, torch: bool = True, **variables: str):
        self.modules = [*more, *([FOR_RANKS] if torch else [])]
        # A process without threads is forked. The last belongs to the allocator in pyarrow, which pandas imports.
        self.variables = {**variables, "OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

    def __enter__(self) -> "Programs":
        self.folder = Path(tempfile.mkdtemp(prefix="forked-"))  # the path of a socket must be short
        self.python, door = str(self.folder / "python"), str(self.folder / "door")
        words = [sys.executable, "-S", "-E", forked_python.__file__, sys.executable, door]
        script = f'#!/bin/sh\nexec {shlex.join([*words, forked_python.user_namespace()])} "$@"\n'
        Path(self.python).write_text(script)
        Path(self.python).chmod(0o700)
        for beside in Path(sys.executable).parent.iterdir():  # programs that are looked for beside Python, as torchrun
            copy, real = self.folder / beside.name, f"#!{sys.executable}\n".encode()
            if beside.is_file() and (script := beside.read_bytes()).startswith(real):
                copy.write_bytes(script.replace(real, f"#!{self.python}\n".encode(), 1))
                copy.chmod(0o700)
            elif not beside.name.startswith("python"):
                copy.symlink_to(beside)
        modules = ["torch.distributed"] if FOR_RANKS in self.modules and visible_gpus() else self.modules
        # Some modules read the first while they are imported; the second is left out as by bench/course/chapters.py.
        first = f"import sys; sys.executable = {self.python!r}; sys.modules['rfc3987_syntax'] = None"
        command = [sys.executable, "-c", f"{first}; from tests.fork_server import serve; serve({modules})"]
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(door)
            listening.listen()
            self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | self.variables, stdin=listening,
                                            start_new_session=True)  # fmt: skip
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


# For a whole session of pytest, by the variable with its ``python``. COURSE_QUICK and MPLBACKEND are read by imports.
SERVERS = {
    "TESTS_PYTHON": Programs(),
    "TESTS_PYTHON_OF_CHAPTERS": Programs(
        "bench.course.chapters", "nbclient", "bench.course", "ipykernel.kernelapp", "ipykernel.ipkernel",
        "matplotlib.pyplot", "matplotlib_inline.backend_inline", "pandas", "sklearn.datasets", "scipy.stats",
        "nbgrader.apps",
        COURSE_QUICK="1", MPLBACKEND="module://matplotlib_inline.backend_inline",
    ),
}  # fmt: skip


def pytest_configure(config) -> None:
    """They are not children of a process that runs tests, because grading ends all that its process has started. The
    workers of pytest are such programs themselves, in which sys.executable is Python again."""
    if LINUX and not hasattr(config, "workerinput"):
        servers = contextlib.ExitStack()
        config.add_cleanup(servers.close)
        os.environ |= {name: servers.enter_context(programs).python for name, programs in SERVERS.items()}
        os.environ["TESTS_REAL_PYTHON"], copy = sys.executable, f"popen//python={os.environ['TESTS_PYTHON']}"
        config.option.tx = [{"popen": copy}.get(worker, worker) for worker in getattr(config.option, "tx", ())]
    elif LINUX:
        sys.executable = os.environ["TESTS_REAL_PYTHON"]
        multiprocessing.set_executable(sys.executable)


@pytest.fixture(scope="session")
def forked_programs():
    """``forked_programs.python`` begins with torch. None where a fork is not safe: a program is a new process there."""
    return SimpleNamespace(python=os.environ["TESTS_PYTHON"]) if LINUX else None


@pytest.fixture
def copied_python(forked_programs, monkeypatch):
    """What the test starts as sys.executable begins with torch; where a fork is not safe, it is a new process."""
    if forked_programs:
        monkeypatch.setattr(sys, "executable", forked_programs.python)


@contextlib.contextmanager
def copied_chapters():
    """What is started as sys.executable, kernels and ranks too, begins with what chapters import."""
    with pytest.MonkeyPatch.context() as patch:
        if LINUX:
            patch.setattr(sys, "executable", os.environ["TESTS_PYTHON_OF_CHAPTERS"])
        yield
