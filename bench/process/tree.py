"""A command with all its processes: started, limited in time, read line by line, and ended together. Each inherits the
tree's token in BENCH_TREE, so it is found even outside its parent and session; without its environment, as a
descendant or by its session. bench/install runs this on a bare Python: without psutil only the process group is
ended."""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
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

MARK = "BENCH_TREE"  # in the environment of every process of a tree: the tokens of this tree and of outer ones
GRACE_S = 5.0  # from SIGTERM to SIGKILL
ROUNDS = 10  # of termination: a process may start another one meanwhile
TICK_S = 0.02  # between two polls of a process
LONG_S = 1.0  # the same where the kernel tells its end
WATCHER = (  # without the caller's folder, which may contain a secrets.py
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "from bench.process.tree import watch; watch(sys.argv[2])"
)


class Output(NamedTuple):
    code: int | None
    out: str
    err: str


def run(argv: list[str], limit_s: float | None = None, on_line=None, alone_s: float = 0.0, **how) -> int | None:
    """Run a command. Returns its exit code, -N if signal N ended it, or None after ``limit_s`` seconds. on_line: gets
    each line of its output. alone_s: see Tree. how: see Tree.start. None of its processes is left; SIGTERM and SIGHUP
    raise KeyboardInterrupt."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if on_line else {}
    with signals_as_interrupt(), Tree(alone_s) as tree:
        tree.start(argv, **pipes, **how)
        return tree.read_lines(on_line, limit_s) if on_line else tree.wait(limit_s)


def capture(argv: list[str], limit_s: float | None = None, text: str = "", **how) -> Output:
    """``run`` with its output. text: its standard input. Through files: a leftover process would hold a pipe open."""
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
    """One command with its descendants, ended on exit. alone_s: time to end them itself before all get SIGTERM.
    grace_s: from SIGTERM to SIGKILL."""

    def __init__(self, alone_s: float = 0.0, grace_s: float | None = None):
        self.token, self.process, self.watcher = os.urandom(8).hex(), None, None
        self.alone_s, self.grace_s = alone_s, GRACE_S if grace_s is None else grace_s
        self.leads_group, self.lock = False, threading.Lock()
        self.pidfd = None  # readable when the command has ended: Linux 5.3 or newer

    @property
    def mark(self) -> dict[str, str]:
        """The variable that marks every process of this tree."""
        return {MARK: " ".join([*os.environ.get(MARK, "").split(), self.token])}

    def start(self, argv: list[str], env=None, tied: bool = False, **options) -> None:
        """Start the command, by default without standard input and in a new session. tied: the tree ends when this
        process is gone, even by SIGKILL. options: of subprocess.Popen."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        environment = {**(os.environ if env is None else env), **self.mark}
        self.leads_group = options["start_new_session"]
        with uninterrupted():  # an interrupt in between would leave a process running
            if tied:
                watcher = [sys.executable, "-c", WATCHER, str(Path(__file__).parents[2]), self.token]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                self.watcher = subprocess.Popen(watcher, stdin=subprocess.PIPE, start_new_session=True, **quiet)
            self.process = subprocess.Popen(argv, env=environment, **options)
            with contextlib.suppress(AttributeError, OSError):
                self.pidfd = os.pidfd_open(self.process.pid)

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code, or None after ``seconds``. Not by ``Popen.wait``: Ctrl-C in it may lose its lock, and then no
        later wait would see the end."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            with uninterrupted():
                code = self.process.poll()
            left = until - time.monotonic()
            if code is not None or left <= 0:
                return code
            self.pause(left, [])

    def pause(self, most_s: float, pipes: list) -> list:
        """Wait until the command may have ended, or one of these pipes can be read: those that can."""
        if (pidfd := self.pidfd) is None:
            return select.select(pipes, [], [], min(most_s, TICK_S))[0]
        poll = select.poll()  # select takes no file above number 1023
        for file in (*pipes, pidfd):
            poll.register(file, select.POLLIN)
        ready = {number for number, _ in poll.poll(1000 * min(most_s, LONG_S))}
        return [pipe for pipe in pipes if pipe.fileno() in ready]

    def read_lines(self, on_line: Callable[[str], object], seconds: float | None = None) -> int | None:
        """As ``wait``, while ``on_line`` gets every line of the pipe. A leftover process may hold the pipe open, so at
        the command's end the rest of the tree is ended."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        pipe, text, code, ending = self.process.stdout, "", None, None
        while True:
            left = max(0.0, until - time.monotonic())
            if pipe in (select.select([pipe], [], [], TICK_S)[0] if ending else self.pause(left, [pipe])):
                chunk = os.read(pipe.fileno(), 2**16)
                *lines, text = (text + decoder.decode(chunk, final=not chunk)).split("\n")
                for line in lines:
                    on_line(f"{line}\n")
                if not chunk:
                    break
            elif ending and not ending.is_alive():
                break
            if ending is None and ((code := self.wait(0)) is not None or time.monotonic() >= until):
                ending = threading.Thread(target=self.end, daemon=True)  # a full pipe must not block its last output
                ending.start()
        if text:
            on_line(text)
        return code if ending else self.wait(until - time.monotonic())

    def send(self, number: int) -> None:
        """Signal the command, or its process group if it leads one."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.leads_group:
                os.killpg(self.process.pid, number)
            elif self.wait(0) is None:
                os.kill(self.process.pid, number)

    def members(self) -> list:
        """Every process of the tree except this one, as psutil.Process."""
        import psutil

        pid = self.process and self.process.pid
        running = bool(pid) and self.wait(0) is None
        session = pid if pid and (running or not psutil.pid_exists(pid)) else None  # the number may be reused
        found = [each for each in with_descendants(pid) if is_running(each)] if running else []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                mine = os.getsid(process.pid) == session or self.token in environment(process).get(MARK, "").split()
                if mine and process.pid != os.getpid() and process not in found and is_running(process):
                    found.append(process)
        return found

    def end(self) -> None:
        """End every process of the tree. Signals are delayed until then."""
        with uninterrupted(), self.lock:
            bare = importlib.util.find_spec("psutil") is None  # before pip installs it
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
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None
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
            with contextlib.suppress(OSError):  # unwritten output has no reader
                pipe.close()


def watch(token: str) -> None:
    """End the tree with this token when standard input closes. Twice: a command may get the token a moment later."""
    sys.stdin.buffer.read()
    tree = Tree()
    tree.token = token
    for pause_s in (0.0, 1.0):
        time.sleep(pause_s)
        tree.end()


def with_descendants(pid: int) -> list:
    """A process and its descendants; empty if it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def environment(process) -> dict[str, str]:
    """Of a psutil.Process. While a program starts, the kernel shows neither variables nor arguments: then again, and
    once more after the arguments are there, because the program may have come between the two looks."""
    settled = False
    for _ in range(ROUNDS):
        found = process.environ()
        if found or settled:
            break
        settled = bool(process.cmdline() or not process.exe())  # a thread of the kernel has none of these
        if not settled:
            time.sleep(TICK_S)
    return found


def is_running(process) -> bool:
    """Whether a psutil.Process runs; a zombie does not."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def terminate(processes: list, grace_s: float = GRACE_S) -> None:
    """SIGTERM, then SIGKILL after ``grace_s`` seconds. Parents keep the exit codes."""
    import psutil

    for action, seconds in (("terminate", grace_s), ("kill", GRACE_S)):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                getattr(process, action)()
        until = time.monotonic() + seconds
        while (processes := [each for each in processes if is_running(each)]) and time.monotonic() < until:
            time.sleep(TICK_S)
