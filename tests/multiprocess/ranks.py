"""`bench` in this process, and ranks from a fork server that has imported torch, which takes seconds.

A run goes through the launcher up to the engine's command; in its place the server forks one ``bench.worker`` per rank.
What engines do with their ranks is tested with `tests.runs.run`, and so is a run that depends on its own launch.
"""

import contextlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import connection, forkserver, spawn
from pathlib import Path
from unittest import mock

import numpy as np

from bench import __main__ as cli
from bench import worker
from bench.config.options import RunConfig
from bench.files import LINUX
from bench.launch import launcher
from bench.launch.launcher import local_node
from bench.launch.node import Node
from bench.process import tree
from bench.process.guard import LAUNCHER_PID
from bench.studies import rounds
from tests.meeting import Meeting
from tests.runs import SMALL, Result, environment, flags

SERVER = multiprocessing.get_context("forkserver" if LINUX else "spawn")
NOTICE_S = 0.5  # after a rank has failed, for the others to report that they have noticed


def live(run_dir: str, variables: dict, method: str) -> None:
    """A rank's life. variables: its whole environment. method: by which it starts processes."""
    multiprocessing.set_start_method(method, force=True)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [worker.__name__, run_dir]
    worker.main()


class ForkedNode(Node):
    """A node whose ranks no engine starts. Horovod's join by a rendezvous server of Horovod."""

    meeting: Meeting | None = None

    def start(self, argv: list[str], environment: dict) -> None:
        (self.run_dir / self.placement.log).touch()
        count = len(self.placement.ranks)
        variables = environment | {LAUNCHER_PID: str(os.getpid()), "WORLD_SIZE": str(count)}
        variables["BENCH_INIT_METHOD"] = f"file://{self.run_dir.resolve()}/.rendezvous"
        names = ["RANK", "LOCAL_RANK"]
        if "horovod.runner.launch" in argv:
            self.meeting = Meeting(count)
            variables |= self.meeting.variables()
            names += ["HOROVOD_RANK", "HOROVOD_LOCAL_RANK"]
        if LINUX:  # the server is a copy of the one that has imported torch for all processes of pytest
            SERVER.set_forkserver_preload([__name__, "tests.preloaded"])
            with mock.patch.object(spawn, "get_executable", lambda: os.environb[b"TESTS_PYTHON"]):
                forkserver.ensure_running()
        self.processes = []
        for rank in range(count):
            theirs = variables | dict.fromkeys(names, str(rank))
            call = (str(self.run_dir), theirs, multiprocessing.get_start_method())
            self.processes.append(SERVER.Process(target=live, args=call))
            self.processes[-1].start()

    def wait(self, seconds: float) -> int | None:
        """0 when all have ended well, another code soon after one has not, None when neither comes in time."""
        connection.wait([process.sentinel for process in self.running()], seconds)
        if code := next((process.exitcode for process in self.processes if process.exitcode), None):
            connection.wait([process.sentinel for process in self.running()], NOTICE_S)
        return code or (None if self.running() else 0)

    def running(self) -> list:
        return [process for process in self.processes if process.exitcode is None]

    def end(self) -> None:
        tree.terminate([each for process in self.running() for each in tree.with_descendants(process.pid)])
        for process in self.processes:
            process.join()
        if self.meeting:
            self.meeting.close()
            self.meeting = None


def node(config: RunConfig, run_dir: Path) -> Node:
    """Replaces ``launcher.local_node``."""
    own = config.launcher in ("spawn", "mpirun") or config.dist_url or config.elastic or not LINUX
    usual = local_node(config, run_dir)
    return usual if own else ForkedNode(usual.placement, run_dir)


def bench(*arguments, out: Path | None = None) -> Result:
    said, complaints = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(launcher, "local_node", node),
        mock.patch.object(rounds, "repeats_of", lambda *_: 0),  # other tests disturb: tests/unit/studies/test_rounds.py
        mock.patch.dict(os.environ, environment(), clear=True),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complaints),
    ):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    return Result(code, said.getvalue(), complaints.getvalue(), os.getpid(), out and Path(out))


def run(out: Path, **options) -> Result:
    """``bench run`` with SMALL's options and these: as `tests.runs.run`."""
    return bench("run", *flags(**SMALL | options), "--out", out, out=out)


class Table:
    """Runs by name, each made when it is first asked for. rows: name -> options; a value that is a function is called
    with this table, and gives what another run has left. start: called with a name and its options."""

    def __init__(self, rows: dict[str, dict], start: Callable[..., Result]):
        self.rows, self.start, self.done = rows, start, {}

    def __call__(self, name: str, code: int = 0) -> Result:
        if name not in self.done:
            options = {key: value(self) if callable(value) else value for key, value in self.rows[name].items()}
            self.done[name] = self.start(name, **options)
        assert self.done[name].code == code, f"{name}: {self.done[name].stderr}"
        return self.done[name]


def each(result: Result, key: str) -> list:
    return [part[key] for part in result.record["samples"]]


def equal_replicas(result: Result) -> bool:
    return len(set(each(result, "final_weights_sha256"))) == 1


def weights(result: Result, step: int) -> dict[str, np.ndarray]:
    """The parameters after a step, as rank 0 saved them (SNAPSHOTS). Those of exact.py are in a ``model``."""
    saved = np.load(result.run_dir / f"rank0-step{step}.npz")
    return {name.removeprefix("model."): saved[name] for name in saved}


def norm(tensors: dict[str, np.ndarray]) -> float:
    return float(np.linalg.norm([np.linalg.norm(tensor) for tensor in tensors.values()]))


def apart(a: dict, b: dict) -> dict[str, np.ndarray]:
    assert a.keys() == b.keys() and a
    return {name: np.abs(a[name] - b[name]) for name in a}


def largest(differences: dict[str, np.ndarray]) -> float:
    return max(float(difference.max()) for difference in differences.values())
