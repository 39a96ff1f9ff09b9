"""`bench` in this process, and ranks from a fork server that has imported torch: two fresh ranks take ten seconds of a
core to start.

A run goes through the launcher up to the engine's command; in its place the server forks one ``bench.worker`` per rank.
What engines do with their ranks is tested with `tests.runs.run`, and so is a run that depends on its own launch.
"""

import contextlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import connection
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
from tests.meeting import Meeting
from tests.runs import ENGINE_PREFIXES, PATIENT, SMALL, Result, flags

SERVER = multiprocessing.get_context("forkserver" if LINUX else "spawn")
MODULES = (
    "torch.distributed.fsdp", "torch.distributed.optim", "torch._dynamo", "torch.profiler", "torchvision",
    "horovod.torch", "bench.training.task", "bench.training.build", "bench.training.measuring",
    "bench.training.observer", "bench.modes.ddp", "bench.modes.fsdp", "bench.modes.zero1", "bench.modes.dp",
    "bench.workload.images.digits", "bench.workload.own_code", "bench.record.definition", "msgspec.json", __name__,
    "tests.multiprocess.preloaded",
)  # fmt: skip
NOTICE_S = 0.5  # after a rank has failed, for the others to report that they have noticed


class Ranks:
    """Processes that run ``function(*arguments)``, one for each rank. variables: their whole environment but for what
    an engine tells each rank. horovod: they join by a rendezvous server of Horovod."""

    def __init__(self, count: int, function: Callable, arguments: tuple, variables: dict, horovod: bool = False):
        if LINUX:
            SERVER.set_forkserver_preload(list(MODULES))
        self.meeting = Meeting(count) if horovod else None
        variables = {**variables, "WORLD_SIZE": str(count), **(self.meeting.variables() if horovod else {})}
        names = ["RANK", "LOCAL_RANK", *(["HOROVOD_RANK", "HOROVOD_LOCAL_RANK"] if horovod else [])]
        self.processes = []
        for rank in range(count):
            theirs = variables | dict.fromkeys(names, str(rank))
            call = (function, arguments, theirs, multiprocessing.get_start_method())
            self.processes.append(SERVER.Process(target=live, args=call))
            self.processes[-1].start()

    def wait(self, seconds: float) -> int | None:
        """0 when all have ended well, another code soon after one has not, None when neither comes in time."""
        running = [process.sentinel for process in self.processes if process.exitcode is None]
        connection.wait(running, seconds)
        if code := self.failed():
            connection.wait([process.sentinel for process in self.processes if process.exitcode is None], NOTICE_S)
        return code or (0 if all(process.exitcode == 0 for process in self.processes) else None)

    def failed(self) -> int | None:
        return next((process.exitcode for process in self.processes if process.exitcode), None)

    def end(self) -> None:
        running = [process.pid for process in self.processes if process.exitcode is None]
        tree.terminate([each for pid in running for each in tree.with_descendants(pid)])
        for process in self.processes:
            process.join()
        if self.meeting:
            self.meeting.close()
            self.meeting = None


def live(function: Callable, arguments: tuple, variables: dict, method: str) -> None:
    """A rank's life. method: by which it starts processes."""
    multiprocessing.set_start_method(method, force=True)
    os.environ.clear()
    os.environ.update(variables)
    function(*arguments)


def work(run_dir: str) -> None:
    sys.argv = [worker.__name__, run_dir]
    worker.main()


class ForkedNode(Node):
    """A node whose ranks no engine starts."""

    def start(self, argv: list[str], environment: dict) -> None:
        (self.run_dir / self.placement.log).touch()
        horovod = "horovod.runner.launch" in argv
        environment = environment | {LAUNCHER_PID: str(os.getpid())}
        environment |= {"BENCH_INIT_METHOD": f"file://{self.run_dir.resolve()}/.rendezvous"}
        self.ranks = Ranks(len(self.placement.ranks), work, (str(self.run_dir),), environment, horovod)

    def wait(self, seconds: float) -> int | None:
        return self.ranks.wait(seconds)

    def end(self) -> None:
        self.ranks.end()


def node(config: RunConfig, run_dir: Path) -> Node:
    """Replaces ``launcher.local_node``."""
    own = config.launcher in ("spawn", "mpirun") or config.dist_url or config.elastic or not LINUX
    usual = local_node(config, run_dir)
    return usual if own else ForkedNode(usual.placement, run_dir)


def bench(*arguments, out: Path | None = None) -> Result:
    """One command."""
    said, complaints = io.StringIO(), io.StringIO()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENGINE_PREFIXES)}
    with (
        mock.patch.object(launcher, "local_node", node),
        mock.patch.dict(os.environ, environment | PATIENT, clear=True),
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
    """One field of every rank's samples."""
    return [part[key] for part in result.record["samples"]]


def equal_replicas(result: Result) -> bool:
    return len(set(each(result, "final_weights_sha256"))) == 1


def weights(result: Result, step: int) -> dict[str, np.ndarray]:
    """The parameters after a step, as rank 0 saved them (SNAPSHOTS)."""
    return dict(np.load(result.run_dir / f"rank0-step{step}.npz"))


def norm(tensors: dict[str, np.ndarray]) -> float:
    """The length of all of them as one vector."""
    return float(np.linalg.norm([np.linalg.norm(tensor) for tensor in tensors.values()]))


def apart(a: dict, b: dict) -> dict[str, np.ndarray]:
    """The absolute differences of all parameters."""
    assert a.keys() == b.keys() and a
    return {name: np.abs(a[name] - b[name]) for name in a}


def largest(differences: dict[str, np.ndarray]) -> float:
    return max(float(difference.max()) for difference in differences.values())
