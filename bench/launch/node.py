"""One machine of a run. Everything that needs a process id happens here; ``supervise`` asks by rank. A node and its
ranks share only files in the run's folder."""

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

ENDED = ("done", "raised", "terminated")  # phases of a rank that has reported how it ended
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Node:
    """One machine of a run. Remote machines have one in machine.py, which hosts.py asks."""

    def __init__(self, placement: Placement, run_dir: Path):
        self.placement, self.run_dir = placement, run_dir
        self.tree, self.oom_kills = Tree(), cgroup.oom_kills()

    def command(self, config: RunConfig, started: float) -> tuple[list[str], dict]:
        """The arguments of ``start``. Raises UserError if the launcher cannot start this config here."""
        return command_of(config, self.run_dir, self.placement, started)

    def start(self, argv: list[str], environment: dict) -> None:
        """Start the launcher's command with its output in the placement's log. Ranks end when this process is gone."""
        environment = {**environment, LAUNCHER_PID: str(os.getpid())}
        with (self.run_dir / self.placement.log).open("ab") as log:
            self.tree.start(argv, environment, stdout=log, stderr=log)

    def wait(self, seconds: float) -> int | None:
        return self.tree.wait(seconds)

    def lost_reason(self) -> str:
        """Why this machine no longer answers; "" while it does."""
        return ""

    def unreachable(self) -> str:
        """Which other machines it cannot reach now."""
        return ""

    def heartbeats(self) -> list[Heartbeat | None]:
        return [read_status(self.run_dir, rank) for rank in self.placement.ranks]

    def epochs(self) -> list[dict]:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return [json.loads(row) for row in epochs_path(self.run_dir).read_text().splitlines()]
        return []

    def crashed_ranks(self) -> list[bool]:
        """Which ranks have ended without a report: killed, or crashed."""
        return [bool(beat) and not alive(beat.pid) and beat.phase not in ENDED for beat in self.heartbeats()]

    def out_of_memory(self) -> str:
        """The message if the kernel has killed processes of this cgroup since the run began; else ""."""
        if cgroup.oom_kills() <= self.oom_kills:
            return ""
        limit = cgroup.memory_limit()
        return "out of memory" + (f" in its cgroup's limit of {limit / 2**30:.2f} GiB" if limit else "")

    def stopped(self) -> list[bool]:
        """Which ranks are stopped by SIGSTOP or a debugger."""
        return [bool(beat) and process_status(beat.pid) in STOPPED for beat in self.heartbeats()]

    def places(self) -> list[dict | None]:
        """``stacks.collect`` for its ranks; None for a stopped one, which cannot answer."""
        ranks = zip(self.placement.ranks, self.heartbeats(), self.stopped(), strict=True)
        pids = {rank: beat.pid if beat and not stopped else None for rank, beat, stopped in ranks}
        return stacks.collect(pids, self.run_dir)

    def end(self) -> None:
        self.tree.end()

    def close(self) -> None:
        pass


def process_status(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status()
    return ""
