"""Programs that begin with torch imported: copies of one process that has done it, for tests that start many of them.

``Programs`` keeps that process and ``start`` asks it, from any process that has its variables. A copy has the
variables, the folder and the arguments of its call, and has started no thread before.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bench.course.start import preload
from bench.course.warm import Call
from bench.files import LINUX
from bench.measure.nvml import visible_gpus
from tests.runs import ROOT

PLACE = "TESTS_FORKED_PROGRAMS"  # in the environment: where the process listens
MODULES = ("torch._dynamo", "torchvision", "horovod.torch", "bench.worker")


class Programs:
    """The process. Use as a context manager. folder: removed in the end; variables: for those who call."""

    def __enter__(self) -> "Programs":
        self.temporary = tempfile.TemporaryDirectory(prefix="forked-")  # the path of a socket must be short
        self.folder = Path(self.temporary.name)
        self.variables = {PLACE: str(self.folder / "door")}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # no thread before a copy is there
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(self.variables[PLACE])
            door.listen()
            modules = ["torch.distributed", *(() if visible_gpus() else MODULES)]  # as in bench/course/warm.py
            command = [sys.executable, "-c", f"from {__name__} import serve; serve({modules})"]
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=door, start_new_session=True)
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        self.temporary.cleanup()


@pytest.fixture(scope="session")
def forked_programs():
    """For all tests that this process of pytest runs. None where a fork is not safe: programs start afresh there."""
    if not LINUX:
        yield None
        return
    with Programs() as programs:
        yield programs


def start(module: str, argv: list[str], environment: dict, log: Path, own: tuple[dict, ...] = ({},)) -> Call:
    """Start ``python -m module *argv`` once per entry of ``own``, each with these variables more; all are to be waited
    for as one. When one fails the others are ended."""
    call = {"module": module, "argv": argv, "environment": environment, "log": str(log), "own": own, "cwd": os.getcwd()}
    door = socket.socket(socket.AF_UNIX)
    door.connect(os.environ[PLACE])
    door.sendall(json.dumps(call).encode())
    door.shutdown(socket.SHUT_WR)
    return Call(door.detach())


def serve(modules: list[str]) -> None:
    """Import these; answer every call at standard input, a listening socket, while the parent is there."""
    parent, door = os.getppid(), socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    preload(modules)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while os.getppid() == parent:
        if select.select([door], [], [], 1.0)[0]:
            caller = door.accept()[0]
            if os.fork() == 0:
                door.close()
                answer(caller)
            caller.close()


def answer(caller: socket.socket) -> None:
    """One call: start the copies, say our process id, wait, say the exit code. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        call = json.loads(b"".join(iter(lambda: caller.recv(2**16), b"")))
        os.environ.clear()
        os.environ.update(call["environment"])
        os.chdir(call["cwd"])
        log = os.open(call["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        caller.sendall(f"{os.getpid()}\n".encode())
        code = wait({copy(call, variables, caller) for variables in call["own"]})
    finally:
        with contextlib.suppress(OSError):
            caller.sendall(f"{code}\n".encode())
        os.killpg(0, signal.SIGKILL)


def wait(copies: set[int]) -> int:
    """1 as soon as one has failed, and the others have had a moment to notice; 0 when all have ended well."""
    while copies:
        pid, status = os.wait()
        copies.discard(pid)
        if status:
            time.sleep(0.5)
            return 1
    return 0


def copy(call: dict, variables: dict, caller: socket.socket) -> int:
    """Run the program in a copy of this process. Returns its process id; never returns in the copy."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            caller.close()
            os.environ.update(variables)
            sys.argv = [call["module"], *call["argv"]]
            sys.modules.pop(call["module"], None)  # it is run afresh, as __main__
            runpy.run_module(call["module"], run_name="__main__", alter_sys=True)
            code = 0
        finally:
            os._exit(code)
    return pid
