"""A command and everything it starts: started, limited in time, read line by line, and ended as a whole.

Every process of a tree inherits the tree's token in BENCH_TREE, behind the tokens of the trees around it: a notebook
cell runs `bench time`, which runs torchrun. So a process is found even if it has left its parent and its session, and
the end of an outer tree ends the inner ones too. One that has cleared its environment is found as a descendant of the
command, or by its session.

Nothing is imported before it is needed but the standard library: bench/install runs commands on a bare Python. Without
psutil, only the command's process group can be ended.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.process.ending import signals_as_interrupt, uninterrupted

MARK = "BENCH_TREE"  # in the environment of every process of a tree: the tokens of this tree and of those around it
GRACE_S = 5.0  # from SIGTERM to SIGKILL
ROUNDS = 10  # of ending: a process may start another one while it is being ended
TICK_S = 0.02  # between two looks at a process that is waited for
WATCHER = (  # without the caller's folder, which may hold a secrets.py
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from bench.process.tree import watch; watch(sys.argv[2])"
)


class Output(NamedTuple):
    """What a command printed. code: as ``run`` returns it."""

    code: int | None
    out: str
    err: str


def run(argv: list[str], limit_s: float | None = None, on_line=None, alone_s: float = 0.0, **how) -> int | None:
    """Run a command to its end. Returns its exit code, -N where signal N ended it, or None where it was ended after
    ``limit_s`` seconds.

    on_line: called with each line of its standard output and standard error. alone_s: see Tree. how: see Tree.start.
    However this returns or raises, no process of the command is left. SIGTERM and SIGHUP raise KeyboardInterrupt, as
    Ctrl-C does.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if on_line else {}
    with signals_as_interrupt(), Tree(alone_s) as tree:
        tree.start(argv, **pipes, **how)
        return tree.read_lines(on_line, limit_s) if on_line else tree.wait(limit_s)


def capture(argv: list[str], limit_s: float | None = None, text: str = "", **how) -> Output:
    """As ``run``, and return what the command printed. text: its standard input.

    Through files: a process that is left behind would hold a pipe open."""
    import tempfile

    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(text.encode())
        given.seek(0)
        code = run(argv, limit_s, stdin=given, stdout=out, stderr=err, **how)
        for file in (out, err):
            file.seek(0)
        return Output(code, *(file.read().decode(errors="replace") for file in (out, err)))


class Tree:
    """One command with its descendants. As a context manager it ends them on the way out.

    alone_s: the command's time to end what it has started by itself, before SIGTERM goes to every process. grace_s:
    from SIGTERM to SIGKILL.
    """

    def __init__(self, alone_s: float = 0.0, grace_s: float | None = None):
        self.token, self.process, self.watcher = os.urandom(8).hex(), None, None
        self.alone_s, self.grace_s = alone_s, GRACE_S if grace_s is None else grace_s
        self.leads_group, self.lock = False, threading.Lock()

    @property
    def mark(self) -> dict[str, str]:
        """The variable that every process of this tree inherits."""
        return {MARK: " ".join([*os.environ.get(MARK, "").split(), self.token])}

    def start(self, argv: list[str], env=None, tied: bool = False, **options) -> None:
        """Start the command, without standard input and in its own session where options do not say otherwise.

        tied: the tree ends when this process is gone, even by SIGKILL. options: of subprocess.Popen.
        """
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        environment = {**(os.environ if env is None else env), **self.mark}
        self.leads_group = options["start_new_session"]
        with uninterrupted():  # an interrupt in between would leave a process that nobody ends
            if tied:
                self.watcher = subprocess.Popen(
                    [sys.executable, "-c", WATCHER, str(Path(__file__).parents[2]), self.token],
                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            self.process = subprocess.Popen(argv, env=environment, **options)

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code as soon as the command has ended; None if it has not after ``seconds``.

        Ctrl-C is a KeyboardInterrupt between two looks. One inside of ``Popen.wait`` may come where its lock is taken
        and not yet sure to be given back: no later wait would see the end.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            with uninterrupted():
                code = self.process.poll()
            left = until - time.monotonic()
            if code is not None or left <= 0:
                return code
            time.sleep(min(left, TICK_S))

    def read_lines(self, on_line: Callable[[str], object], seconds: float | None = None) -> int | None:
        """As ``wait``, while ``on_line`` gets every line that the command writes to its pipe. When the command has
        ended, or its time is over, the rest of the tree is ended: what is left behind may hold the pipe open."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        pipe, text, code, ending = self.process.stdout, "", None, None
        while True:
            if select.select([pipe], [], [], TICK_S)[0]:
                chunk = os.read(pipe.fileno(), 2**16)
                *lines, text = (text + decoder.decode(chunk, final=not chunk)).split("\n")
                for line in lines:
                    on_line(f"{line}\n")
                if not chunk:
                    break
            elif ending and not ending.is_alive():
                break
            if ending is None and ((code := self.wait(0)) is not None or time.monotonic() >= until):
                ending = threading.Thread(target=self.end, daemon=True)  # a full pipe must not hold up its last words
                ending.start()
        if text:
            on_line(text)
        return code if ending else self.wait(until - time.monotonic())

    def send(self, number: int) -> None:
        """Send a signal to the command, and to its process group where it has its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.leads_group:
                os.killpg(self.process.pid, number)
            elif self.wait(0) is None:
                os.kill(self.process.pid, number)

    def members(self) -> list:
        """Every process of the tree but this one, as psutil.Process."""
        import psutil

        pid = self.process and self.process.pid
        running = bool(pid) and self.wait(0) is None
        session = pid if pid and (running or not psutil.pid_exists(pid)) else None  # it may be another's number by now
        found = [each for each in with_descendants(pid) if is_running(each)] if running else []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                mine = os.getsid(process.pid) == session or self.token in process.environ().get(MARK, "").split()
                if mine and process.pid != os.getpid() and process not in found and is_running(process):
                    found.append(process)
        return found

    def end(self) -> None:
        """End every process of the tree that is still there. Ctrl-C and SIGTERM wait until this is done."""
        with uninterrupted(), self.lock:
            bare = not has_psutil()
            alone_s = self.alone_s or (self.grace_s if bare else 0.0)
            if alone_s and self.process and self.wait(0) is None:
                self.send(signal.SIGTERM)
                self.wait(alone_s)
            if bare and self.process:
                self.send(signal.SIGKILL)
            for _ in range(0 if bare else ROUNDS):
                if not (left := self.members()):
                    break
                terminate(left, self.grace_s)
            if self.process:
                self.wait(GRACE_S)
            if self.watcher:
                self.watcher.kill()
                self.watcher.wait()
                self.watcher.stdin.close()
                self.watcher = None

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_) -> None:
        self.end()
        for pipe in filter(None, (getattr(self.process, name, None) for name in ("stdin", "stdout", "stderr"))):
            with contextlib.suppress(OSError):  # what is not written yet has no reader
                pipe.close()


def watch(token: str) -> None:
    """End the tree with this token when standard input ends: the process at its other end is gone. The command that it
    had just started may have the token only a moment later, so there is a second look."""
    sys.stdin.buffer.read()
    tree = Tree()
    tree.token = token
    for pause_s in (0.0, 1.0):
        time.sleep(pause_s)
        tree.end()


def has_psutil() -> bool:
    """Whether psutil can be imported: pip may be about to install it."""
    try:
        import psutil  # noqa: F401
    except ImportError:
        return False
    return True


def with_descendants(pid: int) -> list:
    """A process and all its descendants, as psutil.Process; empty where it has ended."""
    import psutil

    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [psutil.Process(pid)]
        found += found[0].children(recursive=True)
    return found


def is_running(process) -> bool:
    """Whether a psutil.Process is there. One that has ended, and whose parent has not taken note yet, is not."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def terminate(processes: list, grace_s: float = GRACE_S) -> None:
    """Send SIGTERM to processes, and SIGKILL to those that are still there after ``grace_s`` seconds. They are not
    waited for: their exit codes stay their parents'."""
    import psutil

    for action, seconds in (("terminate", grace_s), ("kill", GRACE_S)):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                getattr(process, action)()
        until = time.monotonic() + seconds
        while (processes := [each for each in processes if is_running(each)]) and time.monotonic() < until:
            time.sleep(TICK_S)
