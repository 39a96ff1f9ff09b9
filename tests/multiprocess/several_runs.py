"""Real runs one after the other in the same processes: starting those takes most of a short run's time.

Both sides are here. ``Ranks`` stands in the place of this machine among the hosts of bench/launch: what is launched, by
`bench run` or by a study, goes through the launcher as ever, but for its processes, which are there already. As a
program this is a rank: it lives the worker's life once per run, from the config to the record, and joins and leaves the
group of each. What depends on how processes start has its own: ``has_own_launch`` here. How they end, and are ended, is
tested with `tests.runs.run`.
"""

import contextlib
import gc
import io
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from gc import freeze
from pathlib import Path
from unittest import mock

import psutil

from bench import __main__ as cli
from bench import worker
from bench.config.options import RunConfig, from_dict
from bench.errors import UserError
from bench.launch import launcher
from bench.launch.command import common_variables, thread_variables
from bench.launch.launcher import local_node
from bench.launch.node import Node, Placement
from bench.measure import memory, steady
from bench.process import tree
from bench.process.guard import LAUNCHER_PID, Guard, error_path
from bench.process.heartbeat import StatusWriter
from tests import forked_programs
from tests.meeting import Meeting
from tests.runs import ENGINE_PREFIXES, PATIENT, ROOT, SMALL, Result, flags

TICK_S = 0.02
MOST_BYTES = 2 * 2**30  # of a rank's memory, which grows with each run: then others take its place


class Ranks:
    """Processes that take runs one after the other, of as many ranks as each has; a rank starts when it is needed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes, self.place, self.lives, self.orders = [], None, 0, 0

    def run(self, out: Path, **options) -> Result:
        """``bench run`` with SMALL's options and these, from start to end: as `tests.runs.run`."""
        return self.bench("run", *flags(**SMALL | options), "--out", out, out=out)

    def bench(self, *arguments, out: Path | None = None) -> Result:
        """One command of `bench`, in this process; what it launches is run by these ranks."""
        said, complaints = io.StringIO(), io.StringIO()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ENGINE_PREFIXES)}
        with (
            mock.patch.object(launcher, "local_node", self.node),
            mock.patch.dict(os.environ, environment | PATIENT, clear=True),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(complaints),
        ):
            try:
                code = cli.main([str(argument) for argument in arguments])
            except SystemExit as end:
                code = end.code
        return Result(code, said.getvalue(), complaints.getvalue(), os.getpid(), out and Path(out))

    def node(self, config: RunConfig, run_dir: Path) -> Node:
        """As ``launcher.local_node`` gives it."""
        if self.has_own_launch(config):
            return local_node(config, run_dir)
        return Lasting(self, config, run_dir)

    def has_own_launch(self, config: RunConfig) -> bool:
        """Whether a run depends on how its processes were started. One that ends them is followed by others."""
        return config.launcher == "spawn" or bool(config.dist_url)

    def order(self, run_dir: Path, num_ranks: int, environment: dict) -> None:
        """Let the first ``num_ranks`` of them live a run."""
        if self.alive and any(process.memory_info().rss > MOST_BYTES for process in self.tree()):
            self.close()
        if not self.processes:
            self.place, self.lives, self.orders = self.folder / f"ranks{self.lives}", self.lives + 1, 0
            self.place.mkdir()
        while len(self.processes) < num_ranks:
            self.start(len(self.processes))
        variables = {k: v for k, v in environment.items() if k.startswith(("BENCH_", "HOROVOD_", "AWS_"))}
        order = {"run_dir": str(run_dir.resolve()), "num_ranks": num_ranks, "variables": variables}
        path = self.place / f"{self.orders}.json"
        path.with_suffix(".new").write_text(json.dumps(order))
        path.with_suffix(".new").rename(path)
        self.orders += 1

    def start(self, rank: int) -> None:
        """Start one of them: the next order is its first. It is forked where that can be (tests/forked_programs.py)."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ENGINE_PREFIXES)} | PATIENT
        environment |= thread_variables(2) | common_variables(steady.now()) | {LAUNCHER_PID: str(os.getpid())}
        argv, log = [str(self.place), str(rank), str(self.orders)], self.place / f"rank{rank}.log"
        if forked_programs.PLACE in os.environ:
            process = forked_programs.start(__spec__.name, argv, environment, log)
            while process.pid is None and process.poll() is None:
                time.sleep(TICK_S)
        else:
            command = [sys.executable, "-m", __spec__.name, *argv]
            with log.open("ab") as file:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                )
        self.processes.append(process)

    @property
    def alive(self) -> bool:
        """Whether all that were started are still there."""
        return bool(self.processes) and all(process.poll() is None for process in self.processes)

    def tree(self) -> list[psutil.Process]:
        """Every process of those that are still there."""
        running = [process.pid for process in self.processes if process.poll() is None]
        return [each for pid in running for each in tree.with_descendants(pid)]

    def close(self) -> None:
        """End them."""
        tree.terminate(self.tree())
        for process in self.processes:
            process.wait()
        self.processes = []


class Lasting(Node):
    """A node whose ranks are there before the run and after it."""

    def __init__(self, owner: Ranks, config: RunConfig, run_dir: Path):
        super().__init__(Placement(ranks=range(config.num_processes)), run_dir)
        self.owner, self.meeting = owner, Meeting(config.num_processes) if config.mode == "horovod" else None

    def start(self, argv: list[str], environment: dict) -> None:
        (self.run_dir / "launcher.log").touch()
        environment = environment | (self.meeting.variables() if self.meeting else {})
        self.owner.order(self.run_dir, len(self.placement.ranks), environment)

    def wait(self, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while True:
            codes = [self.code(rank) for rank in self.placement.ranks]
            if None not in codes:
                return max(codes)
            if not self.owner.alive:
                return 1
            if time.monotonic() >= until:
                return None
            time.sleep(TICK_S)

    def code(self, rank: int) -> int | None:
        """How a rank's life in this run ended; None before that."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(end_path(self.run_dir, rank).read_text())
        return None

    def end(self) -> None:
        if self.wait(0) is None or not self.owner.alive:
            self.owner.close()  # one of them waits for another that will not come
        if self.meeting:
            self.meeting.close()


def end_path(run_dir: Path, rank: int) -> Path:
    """Where a rank says how a run ended for it; the launcher removes it."""
    return run_dir / f".rank{rank}.ended"


# --- A rank ---------------------------------------------------------------------------------------------------------


def main() -> None:
    """A rank's life: many runs. Their memory is told as RSS: to add up the PSS of a process that has torch, whose pages
    many copies share, takes the kernel longer than a step of these runs."""
    place, rank, first = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    freeze()
    with (
        Guard(place, rank),
        mock.patch.object(gc, "freeze"),  # what a run freezes would stay when it is over
        mock.patch.object(memory, "read_pss", memory.read_rss),
    ):
        for number in itertools.count(first):
            path = place / f"{number}.json"
            while not path.exists():
                time.sleep(TICK_S)
            order = json.loads(path.read_text())
            if rank < order["num_ranks"]:
                live(Path(order["run_dir"]), rank, order["num_ranks"], order["variables"])


def live(run_dir: Path, rank: int, num_ranks: int, variables: dict) -> None:
    """One run, as ``bench.worker`` lives it, with the variables and the log that its engine would give it."""
    config = from_dict(json.loads((run_dir / "config.json").read_text()))
    variables |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    variables |= {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)} if config.mode == "horovod" else {}
    variables |= {"BENCH_INIT_METHOD": f"file://{run_dir}/.rendezvous"}
    with mock.patch.dict(os.environ, variables), logged(run_dir / f"rank{rank}.log"):
        status, code = StatusWriter(run_dir, rank), 0
        try:
            worker.run_task(config, run_dir, status)
        except Exception as error:
            code = 2 if isinstance(error, UserError) else 1
            words = str(error) if code == 2 else f"{type(error).__name__}: {error}"
            report = {"rank": rank, "time": steady.now(), "user_error": code == 2, "message": words,
                      "traceback": traceback.format_exc(), "phase": status.current}  # fmt: skip
            status.phase("raised")
            error_path(run_dir, rank).write_text(json.dumps(report))
            leave_group()
    gc.collect()
    freeze()  # what the run has imported
    end_path(run_dir, rank).write_text(str(code))


def leave_group() -> None:
    """What a mode's ``close`` has not come to."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if "horovod.torch" in sys.modules:
        sys.modules["horovod.torch"].shutdown()


@contextlib.contextmanager
def logged(path: Path):
    """All output of this process goes to a file."""
    kept = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(file)


if __name__ == "__main__":
    main()
