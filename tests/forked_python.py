"""A ``python`` whose programs begin with torch imported. Importing torch takes most of the time of a short process.

``Programs`` of tests/forked_programs.py makes that ``python``: it asks a server (tests/fork_server.py) for a fork that
runs the program with this process's arguments, variables, folder, open files and namespaces, passes signals on, and
ends as the fork does. Other command lines, the first process of a PID namespace, and processes in another user
namespace run the real Python. It is started a thousand times, so it imports only what is built in.
"""

import _signal
import _socket
import _thread
import itertools
import marshal
import os
import sys

FLAGS = ("-u", "-B", "-Xfaulthandler")
PASSED_ON = {getattr(_signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "USR1", "USR2", "CONT", "ABRT")}


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
    _signal.pthread_sigmask(_signal.SIG_BLOCK, PASSED_ON)
    caller = _socket.socket(_socket.AF_UNIX)
    caller.connect(door)
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = sorted(file for file in files if file != caller.fileno() and os.path.exists(f"/proc/self/fd/{file}"))
    call = marshal.dumps({"argv": argv, "files": files, "variables": dict(os.environ), "folder": os.getcwd()})
    sent = b"".join(file.to_bytes(4, sys.byteorder) for file in files)
    caller.sendmsg([len(call).to_bytes(8, sys.byteorder)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, sent)])
    caller.sendall(call)
    null = os.open(os.devnull, os.O_RDWR)
    for file in files:  # only the fork keeps them open
        os.dup2(null, file) if file <= 2 else os.close(file)
    answers = open(caller.fileno(), "rb", closefd=False)  # noqa: SIM115
    pid = int(answers.readline())
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _thread.start_new_thread(end_as, (answers,))
    while True:
        number = _signal.sigwait(PASSED_ON)
        try:  # noqa: SIM105  contextlib is not built in
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def end_as(answers) -> None:
    """End this process as the fork has ended."""
    code = int(answers.readline() or -_signal.SIGKILL)
    if code < 0:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, PASSED_ON)
        _signal.raise_signal(-code)
    os._exit(code)


if __name__ == "__main__":
    client(*sys.argv[1:])
