"""Programs that begin with torch imported: copies of one process that has done it, for tests that start many of them.

``Programs`` keeps that process and ``start`` asks it, from any process that has its place in PLACE; what is started by
``Programs.python`` in the place of sys.executable asks it, too (tests/forked_python.py). A copy has the variables, the
folder and the arguments of its call, and has started no thread before.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import io
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from pathlib import Path

import pytest
from filelock import FileLock

from bench.course.ranks import Call
from bench.course.start import preload
from bench.files import LINUX
from bench.measure.nvml import visible_gpus
from bench.predict.emulation.rank import leave_cores
from bench.process.guard import alive
from tests import forked_python
from tests.meeting import Meeting
from tests.runs import ROOT

PLACE = "TESTS_FORKED_PROGRAMS"  # in the environment: where the process listens
NAMESPACES = ("pid", "net", "uts", "mnt")  # that of files comes last: /proc is among them
MODULES = ("torch.distributed", "torch._dynamo", "torchvision", "horovod.torch", "bench.worker")


class Programs:
    """The process. Use as a context manager. more: modules that it imports besides torch and what the worker needs.
    owner: the process for which it is there; this one. folder: removed in the end; place: where it listens; python:
    what runs a copy in the place of sys.executable, which it is in every copy."""

    def __init__(self, *more: str, torch: bool = True, owner: int | None = None):
        found = (*MODULES, *more) if torch else more
        self.modules = ["torch.distributed"] if torch and visible_gpus() else found  # as in bench/course/ranks.py
        self.owner = owner or os.getpid()

    def in_folder(self, folder: Path) -> "Programs":
        """The process that has this folder."""
        self.folder, self.place, self.python = folder, str(folder / "door"), str(folder / "python")
        return self

    def __enter__(self) -> "Programs":
        self.in_folder(Path(tempfile.mkdtemp(prefix="forked-")))  # the path of a socket must be short
        words = [sys.executable, "-S", "-E", forked_python.__file__, sys.executable, self.place]
        words += [forked_python.users()]
        Path(self.python).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        Path(self.python).chmod(0o700)
        for beside in Path(sys.executable).parent.iterdir():  # programs that are looked for beside Python
            if not beside.name.startswith("python"):
                (self.folder / beside.name).symlink_to(beside)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # no thread before a copy is there
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(self.place)
            door.listen()
            first = f"import sys; sys.executable = {self.python!r}"  # some modules read it while they are imported
            call = f"{first}; from {__name__} import serve; serve({list(self.modules)}, {self.owner})"
            command = [sys.executable, "-c", call]
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=door, start_new_session=True)
        if self.owner != os.getpid() and self.process.wait(60):  # without an error, its child is there now
            raise RuntimeError("the process of which tests run copies did not start")
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def shared(root: Path, name: str, *more: str):
    """``Programs(*more)`` for all processes of this run of pytest: the first that asks starts it, and it is there until
    the run ends, as nobody's child: grading in one process ends all that it has started since, and copies of others
    would be among them. root: the asking process's own folder for temporary files."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Programs(*more) as programs:
            yield programs
        return
    programs, note = Programs(*more, owner=os.getppid()), root.parent / f"{name}.folder"
    with FileLock(note.with_suffix(".lock")):
        if note.exists():
            programs.in_folder(Path(note.read_text()))
        else:
            note.write_text(str(programs.__enter__().folder))
    yield programs


@pytest.fixture(scope="session")
def forked_programs(tmp_path_factory):
    """For all tests. None where a fork is not safe: programs start afresh there."""
    if not LINUX:
        yield None
        return
    with shared(tmp_path_factory.getbasetemp(), "torch") as programs, pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLACE, programs.place)
        yield programs


@pytest.fixture
def copied_python(forked_programs, monkeypatch):
    """While a test lasts, what it starts as sys.executable begins with torch; where a fork is not safe, afresh."""
    if forked_programs:
        monkeypatch.setattr(sys, "executable", forked_programs.python)


def start(module: str, argv: list[str], environment: dict, log: Path, own: tuple[dict, ...] = ({},)) -> Call:
    """Start ``python -m module *argv`` once per entry of ``own``, each with these variables more; all are to be waited
    for as one. When one fails the others are ended."""
    call = {"module": module, "argv": argv, "environment": environment, "log": str(log), "own": own, "cwd": os.getcwd()}
    door = socket.socket(socket.AF_UNIX)
    door.connect(os.environ[PLACE])
    door.sendall(json.dumps(call).encode())
    door.shutdown(socket.SHUT_WR)
    return Call(door.detach())


def start_ranks(module: str, argv: list[str], num_ranks: int, environment: dict, log: Path, meeting: Meeting | None):
    """``start`` as every rank of a run. meeting: where Horovod's ranks find each other."""
    names = ["RANK", "LOCAL_RANK", *(["HOROVOD_RANK", "HOROVOD_LOCAL_RANK"] if meeting else [])]
    environment = {**environment, "WORLD_SIZE": str(num_ranks), **(meeting.variables() if meeting else {})}
    own = tuple(dict.fromkeys(names, str(rank)) for rank in range(num_ranks))
    return start(module, argv, environment, log, own)


def serve(modules: list[str], owner: int) -> None:
    """Import these; answer every call at standard input, a listening socket, while the owner is there. For an owner
    that is not the parent, which nobody ends: in a child, whose parent ends at once; the folder is removed in the end.
    """
    if owner != os.getppid() and os.fork():
        os._exit(0)
    door = socket.socket(fileno=os.dup(0))
    folder = Path(door.getsockname()).parent
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    gc.disable()
    preload(modules)
    gc.freeze()  # no copy looks for garbage among what was imported here, nor gets pages of its own by that
    gc.enable()
    leave_cores()  # tests share their cores
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while alive(owner):
        if select.select([door], [], [], 1.0)[0]:
            caller = door.accept()[0]
            if os.fork() == 0:
                door.close()
                answer(caller)
            caller.close()
    shutil.rmtree(folder, ignore_errors=True)


def answer(caller: socket.socket) -> None:
    """One call: start the copies, say the process id, wait, say the exit code. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        first, files, _, _ = socket.recv_fds(caller, 2**16, 250)
        call = json.loads(first + b"".join(iter(lambda: caller.recv(2**16), b"")))
        os.environ.clear()
        os.environ.update(call["environment"])
        stand_beside(caller)
        os.chdir(call["cwd"])
        if "python" not in call:
            files, call["files"] = [os.open(call["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)] * 2, [1, 2]
            caller.sendall(f"{os.getpid()}\n".encode())
        copies = {copy(call, files, variables, caller) for variables in call["own"]}
        for file in set(files):
            os.close(file)
        code = wait(copies, caller)
    finally:
        with contextlib.suppress(OSError):
            caller.sendall(f"{code}\n".encode())
        os.killpg(0, signal.SIGKILL)


def stand_beside(caller: socket.socket) -> None:
    """Take the caller's cores, and go into its namespaces, on a node of a cluster for example; so do the copies. Raises
    OSError."""
    pid = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    theirs, own = ({kind: f"/proc/{who}/ns/{kind}" for kind in NAMESPACES} for who in (pid, "self"))
    other = [kind for kind in NAMESPACES if os.readlink(theirs[kind]) != os.readlink(own[kind])]
    for namespace in [os.open(theirs[kind], os.O_RDONLY | os.O_CLOEXEC) for kind in other]:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):  # os.setns is of Python 3.12
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)


def wait(copies: set[int], caller: socket.socket) -> int:
    """How the first has ended that has not ended well, as soon as the others have had a moment to notice; 0 when all
    have. Ends them when the caller is gone."""
    gone = select.poll()
    gone.register(caller, 0)  # that it is gone is told in any case
    while copies:
        pid, status = os.waitpid(-1, os.WNOHANG)
        copies.discard(pid)
        if status:
            time.sleep(0.5 if copies else 0)
            return os.waitstatus_to_exitcode(status)
        if not pid and gone.poll(30):
            for left in copies:
                os.kill(left, signal.SIGKILL)
    return 0


def copy(call: dict, files: list[int], variables: dict, caller: socket.socket) -> int:
    """Run the program in a copy of this process. files: those that are open in it, under the numbers that the call
    names. Returns its process id; never returns in the copy."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if "python" in call:
                caller.sendall(f"{os.getpid()}\n".encode())  # as it is called where it runs
            caller.close()
            take(files, call["files"])
            os.environ.update(variables)
            code = ended(python if "python" in call else module, call)
        finally:
            os._exit(code)
    return pid


def take(files: list[int], numbers: list[int]) -> None:
    """Give open files the numbers by which the program knows them."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500) for file in files]
    for file in set(files):
        os.close(file)
    for file, number in zip(high, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def ended(program, call: dict) -> int:
    """Run it to its end, as Python does. A module's own exit handlers are left out: those of a rank that has failed may
    wait for the others. Returns the exit code."""
    code = 0
    try:
        program(call)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    if "python" in call:
        threading._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code & 0xFF


def module(call: dict) -> None:
    """Run a module of this project."""
    sys.argv = [call["module"], *call["argv"]]
    sys.modules.pop(call["module"], None)  # it is run afresh, as __main__
    runpy.run_module(call["module"], run_name="__main__", alter_sys=True)


def python(call: dict) -> None:
    """Run what Python's command line names."""
    kind, which, arguments, flags = forked_python.program_of(call["python"])
    unbuffered = "-u" in flags or bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.dont_write_bytecode = "-B" in flags or bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = sys.__stdout__ = standard(1, unbuffered)
    sys.stderr = sys.__stderr__ = standard(2, unbuffered)
    if forked_python.STACKS in flags:
        faulthandler.enable()
    first = os.path.dirname(os.path.abspath(which)) if kind == "file" else os.getcwd() if kind == "m" else ""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, paths), *(path for path in sys.path if path)]
    sys.argv = [which, *arguments]
    if kind == "m":
        module({"module": which, "argv": arguments})
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    text, place = which, "<string>"
    if kind == "file":
        text, place = Path(which).read_bytes(), os.path.abspath(which)
        main.__file__ = place
    else:
        sys.argv[0] = "-c"
    exec(compile(text, place, "exec"), main.__dict__)


def standard(number: int, unbuffered: bool) -> io.TextIOWrapper:
    """Standard output or error of a program that begins."""
    file, by_line = io.FileIO(number, "wb", closefd=False), number == 2 or os.isatty(number)
    errors = "backslashreplace" if number == 2 else "strict"
    return io.TextIOWrapper(file if unbuffered else io.BufferedWriter(file), "utf-8", errors, None, by_line, unbuffered)
