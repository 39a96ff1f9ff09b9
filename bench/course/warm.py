"""Ranks that start in a fraction of a second: a notebook keeps one process that has imported torch, and forks them.

That process (``stay`` in bench/course/start.py) has no threads, touches no device and never runs a cell's code. It is
replaced when the environment or the working folder has changed, because libraries read some variables at import. It
ends with the kernel, or after ten idle minutes. multiprocessing's forkserver cannot be replaced in this way, and gives
a call no session and no mark by which its processes are found and ended.
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

# Variables that may differ between calls: no import reads them. torch sets the last one in the kernel when it makes the
# first optimizer.
OF_A_CALL = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", steady.STARTED_AT, steady.ANCHOR, GLOO_TIMEOUT, LAUNCHER_PID,
             "TORCHINDUCTOR_CACHE_DIR")  # fmt: skip
MARGIN_S = 60.0  # before the end of its idle time it is not used any more


class Starter:
    """The preloaded process, with the variables and the folder it was started with."""

    def __init__(self, variables: dict[str, str]):
        self.variables, self.folder, self.kernel = variables, os.getcwd(), os.getpid()
        self.used = time.monotonic()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.tree, command = Tree(grace_s=0.0), [sys.executable, "-m", "bench.course.start"]
        with theirs:
            self.tree.start(command, variables, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def fits(self, variables: dict[str, str]) -> bool:
        """Whether it runs, and suits a call with these variables."""
        fresh = time.monotonic() - self.used < IDLE_S - MARGIN_S
        same = self.variables == variables and self.folder == os.getcwd() and self.kernel == os.getpid()
        return fresh and same and self.tree.wait(0) is None

    def call(self, call: dict) -> "Call":
        """Request a call's ranks; does not wait for them."""
        self.used = time.monotonic()
        reading, writing = os.pipe()
        with contextlib.suppress(OSError):  # it is gone: the pipe ends without an answer
            socket.send_fds(self.channel, [json.dumps(call).encode()], [writing])
        os.close(writing)
        return Call(reading)

    def stop(self) -> None:
        self.channel.close()
        if self.kernel == os.getpid():  # not in a copy of the kernel
            self.tree.end()


class Call:
    """The process that serves a call, with the interface of ``subprocess.Popen``."""

    def __init__(self, answer: int):
        self.answer, self.received, self.returncode = answer, b"", None

    @property
    def pid(self) -> int | None:
        """None while it is not known yet."""
        self.poll()
        return int(self.received.split()[0]) if b"\n" in self.received else None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; -9 if it ended without one. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.answer], [], [], left)[0]:
                raise subprocess.TimeoutExpired("the ranks", timeout)
            more = os.read(self.answer, 100)
            self.received += more
            if not more:
                os.close(self.answer)
                codes = self.received.split()[1:]
                self.returncode = int(codes[0]) if codes else -signal.SIGKILL
        return self.returncode


class WarmNode(Node):
    """A node whose ranks are forked from the preloaded process. Use one at a time, under ``free``.

    modules: imported by that process before the fork, besides torch.
    """

    def __init__(self, placement: Placement, run_dir: Path, modules: tuple[str, ...] = ()):
        super().__init__(placement, run_dir)
        self.modules = ["torch._dynamo", *modules]  # the first optimizer imports it, which takes as long as torch

    def start(self, argv: list[str], environment: dict) -> None:
        """Request the ranks. argv: a launcher to be started beside them, or empty."""
        variables = {name: value for name, value in environment.items() if name not in OF_A_CALL}
        own = {name: environment[name] for name in OF_A_CALL if name in environment}
        own |= {LAUNCHER_PID: str(os.getpid()), **self.tree.mark}
        call = {"run_dir": str(self.run_dir), "num_ranks": len(self.placement.ranks), "variables": own, "mark": MARK}
        # With GPUs an import might touch one, which a copy could not use then.
        call |= {"command": argv, "modules": [] if visible_gpus() else self.modules}
        if kept and not kept[0].fits(variables):
            kept.pop().stop()
        if not kept:
            kept.append(Starter(variables))
        self.starter = kept[0]
        self.tree.process = self.starter.call(call)

    def end(self) -> None:
        if self.tree.process.pid is None:  # it is about to start the ranks
            self.starter.stop()
        super().end()


kept: list[Starter] = []  # the preloaded process, if there is one
free = threading.Lock()  # a second call at the same time starts its ranks as new programs


def wanted() -> bool:
    """Whether to keep a preloaded process: in a notebook on Linux."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return LINUX and shell is not None
