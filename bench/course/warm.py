"""Ranks that start in a fraction of a second: a notebook keeps one process that has imported torch, and forks them.

The process (``stay`` of bench/course/start.py) has started no thread and touched no device, and never runs a cell's
code: each call's ranks are fresh copies of it. It is replaced when the environment or the working folder has changed,
for libraries read some variables only while they are loaded. It ends when the kernel does, or after ten idle minutes.

multiprocessing's forkserver would take over the fork and no more: it cannot be replaced when a variable has changed,
and gives a call no session and no mark by which the processes that it has left are found and ended.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench.course.start import IDLE_S
from bench.files import LINUX
from bench.launch.engines.horovodrun import GLOO_TIMEOUT
from bench.launch.node import Node, Placement
from bench.measure import steady
from bench.measure.nvml import visible_gpus
from bench.process.guard import LAUNCHER_PID
from bench.process.tree import MARK, Tree

# Variables that may differ from call to call: nothing that the process has imported has read them. The last is set by
# torch itself, in the kernel, when it makes the first optimizer.
OF_A_CALL = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", steady.STARTED_AT, steady.ANCHOR, GLOO_TIMEOUT, LAUNCHER_PID,
             "TORCHINDUCTOR_CACHE_DIR")  # fmt: skip
SOON_S = 60.0  # before its time is over it is not called any more


class Starter:
    """The process, and the variables and the folder that it was started with."""

    def __init__(self, variables: dict[str, str]):
        self.variables, self.folder, self.kernel = variables, os.getcwd(), os.getpid()
        self.used = time.monotonic()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.tree, command = Tree(grace_s=0.0), [sys.executable, "-m", "bench.course.start"]
        with theirs:
            self.tree.start(command, variables, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def fits(self, variables: dict[str, str]) -> bool:
        """Whether it is there, and is what a call with these variables needs."""
        fresh = time.monotonic() - self.used < IDLE_S - SOON_S
        same = self.variables == variables and self.folder == os.getcwd() and self.kernel == os.getpid()
        return fresh and same and self.tree.wait(0) is None

    def call(self, call: dict) -> "Call":
        """Ask for a call's ranks; returns at once."""
        self.used = time.monotonic()
        reading, writing = os.pipe()
        try:
            socket.send_fds(self.channel, [json.dumps(call).encode()], [writing])
        except OSError:
            pass  # it is gone: the answer is its end
        finally:
            os.close(writing)
        return Call(reading)

    def stop(self) -> None:
        """End it, and what it is about to start."""
        self.channel.close()
        if self.kernel != os.getpid():
            return  # not ours: this process is a copy of the one whose it is
        self.tree.end()


class Call:
    """The process that serves a call, to be asked as a ``subprocess.Popen`` is."""

    def __init__(self, answer: int):
        self.answer, self.said, self.returncode = answer, b"", None

    @property
    def pid(self) -> int | None:
        """None while it is not known yet."""
        self.poll()
        return int(self.said.split()[0]) if b"\n" in self.said else None

    def poll(self) -> int | None:
        """The exit code; -9 where it has ended without one. None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.answer], [], [], left)[0]:
                raise subprocess.TimeoutExpired("the ranks", timeout)
            more = os.read(self.answer, 100)
            self.said += more
            if not more:
                os.close(self.answer)
                codes = self.said.split()[1:]
                self.returncode = int(codes[0]) if codes else -signal.SIGKILL
        return self.returncode


class WarmNode(Node):
    """A node whose ranks are forked from the process that stays. Use one at a time, under ``free``. modules: what that
    process imports first, beside torch."""

    def __init__(self, placement: Placement, run_dir: Path, modules: tuple[str, ...] = ()):
        super().__init__(placement, run_dir)
        self.modules = ["torch._dynamo", *modules]  # it comes with the first optimizer, and takes as long as torch

    def start(self, argv: list[str], environment: dict) -> None:
        """Ask for the ranks. argv: a launcher to be started beside them, or nothing."""
        variables = {name: value for name, value in environment.items() if name not in OF_A_CALL}
        own = {name: environment[name] for name in OF_A_CALL if name in environment}
        own |= {LAUNCHER_PID: str(os.getpid()), **self.tree.mark}
        call = {"run_dir": str(self.run_dir), "num_ranks": len(self.placement.ranks), "variables": own, "mark": MARK}
        self.starter = starter_for(variables)
        # Where there are GPUs an import might touch one, which a copy could not use then.
        modules = [] if visible_gpus() else self.modules
        self.tree.process = self.starter.call(call | {"command": argv, "modules": modules})

    def end(self) -> None:
        """End the ranks of the call."""
        if self.tree.process.pid is None:  # it is about to start them
            self.starter.stop()
        super().end()


kept: list[Starter] = []  # the one that stays
free = threading.Lock()  # a second call at the same time starts its ranks in the other way


def starter_for(variables: dict[str, str]) -> Starter:
    """The process that stays, started where there is none that fits."""
    if kept and not kept[0].fits(variables):
        kept.pop().stop()
    if not kept:
        kept.append(Starter(variables))
    return kept[0]


def wanted() -> bool:
    """Whether a later call is to be expected, and a process that stays can be had: in a notebook, on Linux."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return LINUX and shell is not None
