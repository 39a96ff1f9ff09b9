"""One machine of a run: everything that needs a process id is done here, on the machine where the process is.

It starts the engine's command, reads the heartbeats of its ranks, collects their stacks, and ends the process tree.
``supervise`` asks it by rank and never sees a process. Between a node and its ranks there are only files in the run's
folder.
"""

import contextlib
import json
import os
from pathlib import Path

import psutil

from bench.config.options import RunConfig
from bench.launch import stacks
from bench.launch.command import command_of
from bench.launch.placement import Placement
from bench.measure import cgroup
from bench.process.guard import LAUNCHER_PID, alive
from bench.process.heartbeat import Heartbeat, epochs_path, read_status
from bench.process.tree import Tree

ENDED = ("done", "raised", "terminated")  # the phases in which a rank has said how it ended


class Node:
    """One machine of a run. On another one it lives in bench/launch/on_machine.py, which bench/launch/hosts.py asks."""

    def __init__(self, placement: Placement, run_dir: Path):
        self.placement, self.run_dir = placement, run_dir
        self.tree, self.oom_kills = Tree(), cgroup.oom_kills()

    def command(self, config: RunConfig, started: float) -> tuple[list[str], dict]:
        """What ``start`` takes, for this machine. Raises UserError when the engine cannot start this config here."""
        return command_of(config, self.run_dir, self.placement, started)

    def start(self, argv: list[str], environment: dict) -> None:
        """Start the engine's command, with its output in the placement's log. Ranks end themselves when this process
        is gone."""
        environment = {**environment, LAUNCHER_PID: str(os.getpid())}
        with (self.run_dir / self.placement.log).open("ab") as log:
            self.tree.start(argv, environment, stdout=log, stderr=log)

    def wait(self, seconds: float) -> int | None:
        """The command's exit code as soon as it has ended; None after ``seconds``."""
        return self.tree.wait(seconds)

    def lost(self) -> str:
        """Why this machine can be asked no more; "" while it can, as this one always can."""
        return ""

    def unreachable(self) -> str:
        """Which of the other machines it does not reach now; "" where it reaches all, or there are none."""
        return ""

    def heartbeats(self) -> list[Heartbeat | None]:
        """What each of its ranks last said of itself; None where it has not begun to write."""
        return [read_status(self.run_dir, rank) for rank in self.placement.ranks]

    def epochs(self) -> list[dict]:
        """The rows of the epochs that have ended, as far as rank 0 is here."""
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return [json.loads(row) for row in epochs_path(self.run_dir).read_text().splitlines()]
        return []

    def gone(self) -> list[bool]:
        """Which of its ranks have ended without having said why: killed, or crashed."""
        return [bool(beat) and not alive(beat.pid) and beat.phase not in ENDED for beat in self.heartbeats()]

    def out_of_memory(self) -> str:
        """What to say of ranks that are gone, where the kernel has killed processes of this group for want of memory
        since the run began; empty otherwise."""
        if cgroup.oom_kills() <= self.oom_kills:
            return ""
        limit = cgroup.memory_limit()
        return "out of memory" + (f" in its cgroup's limit of {limit / 2**30:.2f} GiB" if limit else "")

    def stopped(self) -> list[bool]:
        """Which of its ranks somebody has stopped: by SIGSTOP, or in a debugger."""
        return [bool(beat) and is_stopped(beat.pid) for beat in self.heartbeats()]

    def places(self) -> list[dict | None]:
        """Where the main thread of each of its ranks is now, as ``stacks.collect`` gives it; None of one that is
        stopped, and could not say it."""
        ranks = zip(self.placement.ranks, self.heartbeats(), self.stopped(), strict=True)
        pids = {rank: beat.pid if beat and not stopped else None for rank, beat, stopped in ranks}
        return stacks.collect(pids, self.run_dir)

    def end(self) -> None:
        """End the command, and all that it has started and is still there: ranks, and the workers of their loaders."""
        self.tree.end()

    def close(self) -> None:
        """Nothing is asked any more."""


def is_stopped(pid: int) -> bool:
    """Whether a process is there and does not run until it is continued."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False
