"""A ``python`` whose programs begin with torch imported. Importing torch takes most of the time of a short process.

``client`` is that ``python`` (``Programs`` of tests/forked_programs.py makes it): it asks a server (fork_server.py) for
a fork that runs the program with this process's arguments, variables, folder, open files and namespaces, passes signals
on, and ends as the fork does. Other command lines, the first process of a PID namespace, and processes in another user
namespace run the real Python.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import sys
import threading

FLAGS = ("-u", "-B", "-Xfaulthandler")
PASSED_ON = {getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "USR1", "USR2", "CONT", "ABRT")}


def program_of(argv: list[str]) -> tuple[set[str], str, str, list[str]] | None:
    """Python's flags, "-m", "-c" or "file", which, its arguments; None where the real Python is needed."""
    flags = list(itertools.takewhile(FLAGS.__contains__, argv))
    match argv[len(flags) :]:
        case ["-m" | "-c" as kind, which, *arguments]:
            return {*flags}, kind, which, arguments
        case [which, *arguments] if not which.startswith("-"):
            return {*flags}, "file", which, arguments


def user_namespace() -> str:
    return os.readlink("/proc/self/ns/user")


def client(real: str, door: str, namespace: str, *argv: str) -> None:
    if not program_of(argv) or os.getpid() == 1 or user_namespace() != namespace:
        os.execv(real, [real, *argv])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    caller = socket.socket(socket.AF_UNIX)
    caller.connect(door)
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = sorted(file for file in files if file != caller.fileno() and os.path.exists(f"/proc/self/fd/{file}"))
    call = json.dumps({"argv": argv, "files": files, "variables": dict(os.environ), "folder": os.getcwd()}).encode()
    socket.send_fds(caller, [struct.pack("q", len(call))], files)
    caller.sendall(call)
    null = os.open(os.devnull, os.O_RDWR)
    for file in files:  # only the fork keeps them open
        os.dup2(null, file) if file <= 2 else os.close(file)
    answers = caller.makefile()
    pid = int(answers.readline())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_as, args=(answers,)).start()
    while True:
        number = signal.sigwait(PASSED_ON)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_as(answers) -> None:
    """End this process as the fork has ended."""
    code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        signal.raise_signal(-code)
    os._exit(code)


if __name__ == "__main__":
    client(*sys.argv[1:])
