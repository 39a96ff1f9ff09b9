"""Forks the programs of tests/forked_python.py. Only the standard library is imported before the first call."""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import io
import marshal
import os
import runpy
import select
import signal
import site
import socket
import struct
import sys
import threading
import types

from tests.forked_python import program_of

NAMESPACES = ("pid", "net", "uts", "mnt")  # the last one holds /proc


def serve(modules: list[str]) -> None:
    """Answer calls at standard input, a listening socket, until the parent is gone. The first call imports these."""
    parent, door = os.getppid(), socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    files, calls, imported = select.poll(), {}, False
    files.register(door, select.POLLIN)  # the first, so that no number that an ended call frees is taken in its round
    while os.getppid() == parent:
        for file, _ in files.poll(1000):
            if file in calls:
                end(*calls[file], calls, files)
            if file != door.fileno():  # also one of a call that has just been ended
                continue
            if not imported:
                from bench.course.start import preload
                from bench.predict.emulation.rank import leave_cores

                gc.disable()
                preload(modules)
                gc.freeze()  # no fork looks for garbage among what was imported, nor gets its own pages by that
                gc.enable()
                leave_cores()  # tests share their cores
                imported = True
            caller = door.accept()[0]
            # A group whose leader has ended: a leader could not begin a session, as Horovod's launcher does.
            group = os.posix_spawn("/bin/true", ["true"], {}, setpgroup=0)
            if (pid := os.fork()) == 0:
                os.setpgid(0, group)
                for other in (door.detach(), *calls):
                    os.close(other)
                answer(caller)
            ended = os.pidfd_open(pid)
            calls[ended] = calls[caller.fileno()] = caller, ended, pid, group
            files.register(ended, select.POLLIN)
            files.register(caller, 0)  # the end of the caller


def end(caller: socket.socket, ended: int, pid: int, group: int, calls: dict, files: select.poll) -> None:
    """Tell the caller how the program has ended, and end all that it leaves. If the caller is gone, end it."""
    for file in (ended, caller.fileno()):
        files.unregister(file)
        del calls[file]
    os.kill(pid, signal.SIGKILL)
    os.killpg(group, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.waitpid(group, 0)
    with contextlib.suppress(OSError):
        caller.sendall(b"%d\n" % code)
    caller.close()
    os.close(ended)


def answer(caller: socket.socket) -> None:
    """Run the program that the caller sends. Never returns."""
    try:
        length, files, _, _ = socket.recv_fds(caller, 8, 250)
        call = marshal.loads(caller.makefile("rb").read(*struct.unpack("q", length)))
        enter_namespaces(struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        caller.sendall(b"%d\n" % os.getpid())  # its number in its own namespace
        caller.close()
        run(call, files)
    finally:
        os._exit(1)


def enter_namespaces(pid: int) -> None:
    """Those of a process, and its cores: it may be on a node of a cluster. Where its processes have other numbers, it
    returns in a child, for which this process waits. Raises OSError."""
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    theirs = {kind: f"/proc/{pid}/ns/{kind}" for kind in NAMESPACES}
    other = [path for kind, path in theirs.items() if os.readlink(path) != os.readlink(f"/proc/self/ns/{kind}")]
    for namespace in [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in other]:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):  # os.setns needs Python 3.12
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)
    if theirs["pid"] in other and (child := os.fork()):
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            with contextlib.suppress(OSError):  # SIGKILL has no other handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def run(call: dict, files: list[int]) -> None:
    """Run the program in this fork, from its open files to its end. Never returns."""
    code = 1
    try:
        high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500) for file in files]
        for file in files:
            os.close(file)
        for file, number in zip(high, call["files"], strict=True):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(call["variables"])
        os.chdir(call["folder"])
        execute(*program_of(call["argv"]))
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        sys.last_value = error  # as an interpreter leaves it
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code & 0xFF)


def execute(flags: set[str], kind: str, which: str, arguments: list[str]) -> None:
    unbuffered = "-u" in flags or bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout, sys.stderr = output(1, "strict", unbuffered), output(2, "backslashreplace", unbuffered)
    sys.dont_write_bytecode = "-B" in flags or bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if "-Xfaulthandler" in flags:
        faulthandler.enable()
    first = {"file": os.path.dirname(os.path.abspath(which)), "-m": os.getcwd(), "-c": ""}[kind]
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *filter(None, sys.path)]
    sys.modules.pop("sitecustomize", None)  # theirs may be another one
    site.execsitecustomize()
    sys.path.insert(0, first)
    sys.argv = [which if kind == "file" else kind, *arguments]
    if kind == "-m":
        sys.modules.pop(which, None)
        runpy.run_module(which, run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if kind == "file":
        main.__file__ = os.path.abspath(which)
        with open(which, "rb") as file:
            which = file.read()
    exec(compile(which, getattr(main, "__file__", "<string>"), "exec"), main.__dict__)


def output(number: int, errors: str, unbuffered: bool) -> io.TextIOWrapper:
    file = io.FileIO(number, "wb", closefd=False)
    if not unbuffered:
        file = io.BufferedWriter(file)
    return io.TextIOWrapper(file, "utf-8", errors, line_buffering=number == 2, write_through=unbuffered)
