"""``python`` whose programs begin with torch imported: what stands in the place of sys.executable in some tests.

It asks a process that has torch (tests/forked_programs.py) for a copy that runs the program, with this one's arguments,
variables, folder, open files and namespaces; it passes signals on, and ends as the copy does. A copy whose caller is
killed is ended. What is no program, what asks for a Python without packages (-S), what is the first process of its
namespace, which is the parent of all that lose theirs, and what is another user's is the real one's.
"""

import json
import os
import select
import signal
import socket
import sys

STACKS = "-Xfaulthandler"
FLAGS = ("-u", "-B", STACKS)  # that a copy knows
PASSED_ON = [getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "USR1", "USR2", "CONT", "ABRT")]


def program_of(argv: list[str]) -> tuple[str, str, list[str], list[str]] | None:
    """("m" | "c" | "file", which, its arguments, Python's own flags) of Python's command line; None of any other.

    >>> program_of(["-u", "-m", "bench", "run"])
    ('m', 'bench', ['run'], ['-u'])
    """
    for place, word in enumerate(argv):
        if word in ("-m", "-c"):
            return word[1], argv[place + 1], argv[place + 2 :], argv[:place]
        if not word.startswith("-"):
            return "file", word, argv[place + 1 :], argv[:place]
        if word not in FLAGS:
            return None
    return None


def users() -> str:
    """The namespace of users that this process is in."""
    return os.readlink("/proc/self/ns/user")


def open_files(caller: socket.socket) -> list[int]:
    """The numbers of the files that are open here, but for the connection."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return sorted(number for number in found if number != caller.fileno() and os.path.exists(f"/proc/self/fd/{number}"))


def ask(caller: socket.socket, door: str, argv: list[str]) -> None:
    """Ask for the copy, and keep none of the files open that it has now."""
    caller.connect(door)
    files = open_files(caller)
    call = {"python": argv, "files": files, "environment": dict(os.environ), "cwd": os.getcwd(), "own": [{}]}
    message = json.dumps(call).encode()
    caller.sendall(message[socket.send_fds(caller, [message], files) :])
    caller.shutdown(socket.SHUT_WR)
    null = os.open(os.devnull, os.O_RDWR)
    for number in files:
        os.dup2(null, number) if number <= 2 else os.close(number)


def pass_on_signals(caller: socket.socket, pid: int) -> None:
    """Send the copy every signal that comes, until it is said how the copy has ended. A signal writes a byte, for which
    this waits as well: a handler of Python's would not run where one comes just before a system call that waits."""
    came, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in PASSED_ON:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while caller not in (ready := select.select([caller, came], [], [])[0]):
        for number in os.read(ready[0], 100):
            os.kill(pid, number)


def main(real: str, door: str, around: str, argv: list[str]) -> None:
    """around: the namespace of users that copies are in. Never returns."""
    if not program_of(argv) or os.getpid() == 1 or users() != around:
        os.execv(real, [real, *argv])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with socket.socket(socket.AF_UNIX) as caller:
        ask(caller, door, argv)
        said = caller.makefile("r")
        pid = int(said.readline())
        pass_on_signals(caller, pid)
        code = int(said.readline() or -signal.SIGKILL)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
