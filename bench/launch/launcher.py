"""One run: a config in, the path of a record out. How its processes start is the engine's; those of several machines
are started by hosts.py."""

import contextlib
import functools
import json
import os
import re
import secrets
import shutil
import time
from pathlib import Path

from bench.config.options import RunConfig, to_dict
from bench.config.resolve import resolve
from bench.config.tasks import TRAIN
from bench.errors import RunFailed, UserError
from bench.files import SHARED
from bench.launch import hosts, supervise
from bench.launch.devices import choose_device, require_memory, weakest
from bench.launch.elastic import Survival
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.launch.seat import seat_of
from bench.measure import steady
from bench.measure.environment import collect_machine, usable_cores
from bench.process.ending import uninterrupted
from bench.process.guard import wanted_path
from bench.record.schema import require_validator
from bench.record.write import add_survival, write_failure


def resolve_here(config: RunConfig) -> RunConfig:
    """Fill in the options that depend on this machine. Raises UserError when it cannot do what is asked, and inside of
    a launcher that is not ours: each of its processes would start a whole benchmark."""
    if seat := seat_of(os.environ):
        raise UserError(
            f"{seat.launcher} has started {seat.world_size} processes ({seat.size_variable}), and this command starts "
            f"its own: start it once, with HOSTS for several machines (`bench run` alone joins what {seat.launcher} "
            f"has started); if {seat.size_variable} is left over from something else, unset it"
        )
    started = steady.now()
    try:
        return resolve(config, *resources(config))
    except RunFailed as error:  # one of HOSTS
        likely = resolve(config, "cpu" if config.device == "auto" else config.device, usable_cores())
        error.run_dir = make_run_dir(likely)
        fail(error.run_dir, likely, started, error.failure)
        tidy(error.run_dir, [])
        raise


def resources(config: RunConfig) -> tuple:
    """What a run gets, as ``resolve`` takes it: "cuda" or "cpu", CPU cores over all its machines, the weakest GPU's
    compute capability and memory. Raises UserError, and RunFailed for one of HOSTS, where what is asked for is not
    there."""
    if config.hosts:
        return hosts.resources(config)
    device = choose_device(config)
    return device, usable_cores(), *(weakest(config) if device == "cuda" else (None, None))


def launch(config: RunConfig, watch=None) -> Path:
    """Run a resolved config in fresh processes and return the path of its record.

    watch: called a few times a second with the heartbeat of every rank (None where a rank has none yet), and the rows
    of the epochs that have ended. Raises UserError when the run cannot start, RunFailed when it does not end well; then
    its record says so, and the error has its folder (``run_dir``).
    """
    if config.elastic:
        return launch_elastic(config, watch)
    with Launch(config) as run:
        run.start_and_watch(config, watch)
    return run.dir / config.leaves


class Launch:
    """The folder of one run, while it goes on. When it ends, what it needed only then is removed; where it does not
    end well, it leaves the record of a run that failed, or nothing where nothing had begun."""

    def __init__(self, config: RunConfig):
        self.started = steady.now()
        require_validator()
        if not config.hosts:
            choose_device(config)  # a suite may ask for more GPUs than the config it was made from
            require_memory(config)
        self.config, self.dir = config, make_run_dir(config)
        self.nodes: list[Node] = []
        self.rendezvous: list[Path] = []  # a file:// one, once it is known to be ours

    def start_and_watch(self, config: RunConfig, watch, survival=None) -> None:
        """Start the ranks and watch them to their end. config: of this attempt. survival: with ELASTIC."""
        (self.dir / "config.json").write_text(json.dumps(to_dict(config)))
        if config.hosts and not hosts.only_here(config):
            hosts.run(self.nodes, self.dir, config, self.started, watch, survival)
        else:
            self.start_here(config, watch, survival)
        if not (self.dir / config.leaves).exists():
            raise supervise.failed("launcher", None, "every process ended well, but there is no record", self.dir)

    def start_here(self, config: RunConfig, watch, survival) -> None:
        """All ranks on this machine."""
        self.nodes[:] = [local_node(config, self.dir)]
        command = self.nodes[0].command(config, self.started)
        if (config.dist_url or "").startswith("file://"):
            self.rendezvous.append(Path(config.dist_url.removeprefix("file://")))
        supervise.run(self.nodes, lambda node: node.start(*command), self.dir, config.timeout, watch, survival)

    def survived(self) -> dict | None:
        """With ELASTIC, what the run had survived when it failed."""
        return None

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            self.leave(error)
        finally:
            for node in self.nodes:
                node.close()
            tidy(self.dir, self.rendezvous)

    def leave(self, error: BaseException | None) -> None:
        """The record of a run that failed."""
        failure = getattr(error, "failure", None)
        if isinstance(error, KeyboardInterrupt):  # outside of ``supervise.run``, which makes a RunFailed of it
            failure = supervise.failed("interrupted", None, "interrupted", self.dir).failure
        if isinstance(error, UserError) and not failure:
            shutil.rmtree(self.dir, ignore_errors=True)  # nothing had begun
        elif failure and self.dir.is_dir():
            fail(self.dir, self.config, self.started, failure, self.survived())
        if isinstance(error, RunFailed) or (isinstance(error, UserError) and failure):
            error.run_dir = self.dir
        if isinstance(error, UserError) and failure:  # it met an image that cannot be read, say
            error.args = (f"{error}; see {self.dir}",)


# --- ELASTIC: the run goes on when ranks or machines are lost ---------------------------------------------------------


def launch_elastic(config: RunConfig, watch=None) -> Path:
    """``launch``, once or more often: of what is left of the machines."""
    with ElasticLaunch(config) as run:
        attempt = config
        while attempt:
            try:
                run.start_and_watch(attempt, watch, run.survival)
                break
            except RunFailed as error:
                answering = functools.partial(hosts.answering, config)
                attempt = run.survival.remaining(run.nodes, error.failure, answering)
                if attempt is None:
                    raise
        add_survival(run.dir, config, run.survival.told)
    return run.dir / config.leaves


class ElasticLaunch(Launch):
    """A run whose failure says what it had survived before."""

    def __init__(self, config: RunConfig):
        super().__init__(config)
        self.survival = Survival(config, self.dir, self.started)

    def survived(self) -> dict:
        return self.survival.told()

    def leave(self, error: BaseException | None) -> None:
        if isinstance(error, UserError) and self.survival.starts and not error.failure:  # an attempt before trained
            error.failure = {"rank": None, "kind": "raised", "message": str(error), "traceback": ""}
        if isinstance(error, RunFailed):
            self.survival.gave_up(error)
        super().leave(error)


def local_node(config: RunConfig, run_dir: Path) -> Node:
    """All ranks on this machine."""
    host = config.machines[0].name if config.hosts else ""
    return Node(Placement(range(config.num_processes), host=host), run_dir)


# --- the run's folder -------------------------------------------------------------------------------------------------


def tidy(run_dir: Path, rendezvous: list[Path]) -> None:
    """Remove what a run needed only while it went on."""
    leftovers = [
        *run_dir.glob(".rank*"),
        *run_dir.glob("*.tmp"),
        run_dir / ".rendezvous",
        run_dir / SHARED,
        wanted_path(run_dir),
        run_dir / "config.json",
    ]
    for leftover in [*leftovers, *rendezvous]:
        leftover.unlink(missing_ok=True)
    for folder in (".torchrun", ".libraries"):
        shutil.rmtree(run_dir / folder, ignore_errors=True)


def fail(
    run_dir: Path, config: RunConfig, started: float, failure: dict, survived: dict | None = None,
    machine: dict | None = None,
) -> None:  # fmt: skip
    """Leave a record that says how the run failed, where the disk lets us. machine: what ``collect_machine`` has found
    already, where there is no time for it."""
    with uninterrupted(), contextlib.suppress(OSError):
        failure = failure | {"after_s": round(steady.now() - started, 3)}
        write_failure(run_dir, config, started, machine or collect_machine(), failure, survived)


def make_run_dir(config: RunConfig) -> Path:
    """A new folder for this run. Raises UserError when it cannot be made or written to."""
    words = [
        time.strftime("%Y%m%d-%H%M%S"),
        config.mode,
        f"{config.num_devices}x{nameable(config.model) if config.task == TRAIN else config.task}",
        secrets.token_hex(2),
    ]
    run_dir = Path(config.out) / "-".join(words)
    try:
        run_dir.mkdir(parents=True)
        (run_dir / "config.json").write_text("{}")
    except OSError as error:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise UserError(f"OUT={config.out} cannot be written to ({error.strerror}): choose another folder") from None
    return run_dir


def nameable(model: str) -> str:
    """A model's name as a part of a folder's."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", model)[:40].lstrip(".")
