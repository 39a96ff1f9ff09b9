"""One run: a config in, the path of a record out. engines/ build the command; hosts.py runs it on several machines."""

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import time
from pathlib import Path

from bench.config.options import GRID, RunConfig, to_dict
from bench.config.resolve import resolve
from bench.config.sections import TRACKERS
from bench.config.tasks import TRAIN
from bench.errors import RunFailed, UserError
from bench.files import SHARED, new_folder
from bench.launch import hosts, supervise
from bench.launch.devices import choose_device, least_capable, require_memory
from bench.launch.elastic import Survival
from bench.launch.machine import own_address
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.launch.seat import LAUNCHERS, seat_of
from bench.measure import steady
from bench.measure.environment import collect_machine, usable_cores
from bench.process.ending import uninterrupted
from bench.process.guard import wanted_path
from bench.record.schema import require_validator
from bench.record.write import add_survival, writable, write_failure


def resolve_here(config: RunConfig) -> RunConfig:
    """Fill in the options that depend on this machine. Raises UserError, also inside an external launcher, where each
    process would start its own benchmark."""
    if seat := seat_of(os.environ):
        raise UserError(
            f"{seat.launcher} has started {seat.world_size} processes: start this command once, with HOSTS for several "
            f"machines (only `bench run` joins them), or unset {LAUNCHERS[seat.launcher].size} if it is a leftover"
        )
    require_tracker(config)
    started = steady.now()
    try:
        return resolve(config, *resources(config))
    except RunFailed as error:  # one of HOSTS
        likely = resolve(config, "cpu" if config.device == "auto" else config.device, usable_cores())
        error.run_dir = make_run_dir(likely)
        fail(error.run_dir, likely, started, error.failure)
        clean_up(error.run_dir, [])
        raise


def require_tracker(config: RunConfig) -> None:
    """Raise UserError if TRACK needs a package that is not installed. A folder of its name, such as the ``wandb`` that
    wandb leaves in the working folder, has no origin."""
    specs = {package: importlib.util.find_spec(package) for package in TRACKERS[config.track] if not config.hosts}
    if missing := " ".join(package for package, spec in specs.items() if not (spec and spec.origin)):
        raise UserError(f"TRACK={config.track} needs a package that is not installed: pip install {missing}")


def resources(config: RunConfig) -> tuple:
    """Device ("cuda" or "cpu"), CPU cores over all machines, the weakest GPU's compute capability and memory. Raises
    UserError, and RunFailed for one of HOSTS."""
    if config.hosts:
        return hosts.resources(config)
    device = choose_device(config)
    return device, usable_cores(), *(least_capable(config) if device == "cuda" else (None, None))


def launch(config: RunConfig, watch=None) -> Path:
    """Run a resolved config in fresh processes and return the path of its record. watch: called a few times a second
    with every rank's heartbeat (or None) and the rows of finished epochs. Raises UserError if the run cannot start,
    RunFailed (with ``run_dir``, the folder of its record) if it fails."""
    if config.elastic:
        return launch_elastic(config, watch)
    with Launch(config) as run:
        run.start_and_watch(config, watch)
    return run.dir / config.leaves


def launch_elastic(config: RunConfig, watch=None) -> Path:
    """``launch`` with MIN_DEVICES: after a failure the run continues on its remaining machines."""
    with Launch(config) as run:
        attempt = config
        while attempt:
            try:
                run.start_and_watch(attempt, watch)
                break
            except RunFailed as error:
                answering = functools.partial(hosts.find_answering_hosts, config)
                attempt = run.survival.remaining(run.nodes, error.failure, answering)
                if attempt is None:
                    raise
        add_survival(run.dir, config, run.survival.summary)
    return run.dir / config.leaves


class Launch:
    """A run's folder while it runs. On exit temporary files are removed, and a failed run leaves a record."""

    def __init__(self, config: RunConfig):
        self.started = steady.now()
        require_validator()
        if not config.hosts:
            choose_device(config)  # a suite may need more GPUs than its base config
            require_memory(config)
        self.config, self.dir = config, make_run_dir(config)
        self.nodes: list[Node] = []
        self.rendezvous: list[Path] = []  # a file:// rendezvous, once it is known to be ours
        self.survival = Survival(config, self.dir, self.started) if config.elastic else None

    def start_and_watch(self, config: RunConfig, watch) -> None:
        """One attempt: start the ranks, and watch them until they end."""
        (self.dir / "config.json").write_text(json.dumps(to_dict(config)))
        only_here = len(config.machines) == 1 and own_address(config.machines[0].name) if config.hosts else True
        if not only_here:
            hosts.run(self.nodes, self.dir, config, self.started, watch, self.survival)
        else:
            self.nodes[:] = [local_node(config, self.dir)]
            start = self.nodes[0].command(config, self.started)
            if (config.dist_url or "").startswith("file://"):
                self.rendezvous.append(Path(config.dist_url.removeprefix("file://")))
            supervise.run(self.nodes, lambda node: node.start(*start), self.dir, config.timeout, watch, self.survival)
        if not (self.dir / config.leaves).exists():
            raise supervise.failed("launcher", None, "all processes succeeded, but there is no record", self.dir)

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, kind, error, trace) -> None:
        with uninterrupted():  # a second Ctrl-C loses no record and leaves no temporary file
            try:
                self.leave(error)
            finally:
                for node in self.nodes:
                    node.close()
                clean_up(self.dir, self.rendezvous)

    def leave(self, error: BaseException | None) -> None:
        if self.survival and isinstance(error, RunFailed):
            self.survival.add_interruptions_to(error)
        failure = getattr(error, "failure", None)
        if isinstance(error, KeyboardInterrupt):  # outside of ``supervise.run``, which makes a RunFailed of it
            failure = supervise.failed("interrupted", None, "interrupted", self.dir).failure
        kept = (self.survival and self.survival.starts) or self.config.label.variant == GRID
        if kept and isinstance(error, UserError) and not failure:
            failure = {"rank": None, "kind": "raised", "message": str(error), "traceback": ""}
            error.failure = failure  # an earlier attempt has trained, or it is a cell's result
        if isinstance(error, UserError) and not failure:
            shutil.rmtree(self.dir, ignore_errors=True)  # nothing had begun
        elif failure and self.dir.is_dir():
            fail(self.dir, self.config, self.started, failure, self.survival and self.survival.summary())
        if isinstance(error, RunFailed) or (isinstance(error, UserError) and failure):
            error.run_dir = self.dir
        if isinstance(error, UserError) and failure:  # e.g. an image that cannot be read
            error.args = (f"{error}; see {self.dir}",)


def local_node(config: RunConfig, run_dir: Path) -> Node:
    host = config.machines[0].name if config.hosts else ""
    return Node(Placement(range(config.num_processes), host=host), run_dir)


def clean_up(run_dir: Path, rendezvous: list[Path]) -> None:
    temporary = (".rank*", "*.tmp", ".rendezvous", SHARED, wanted_path(run_dir).name, "config.json")
    for path in [*rendezvous, *(path for pattern in temporary for path in run_dir.glob(pattern))]:
        path.unlink(missing_ok=True)
    for folder in (".torchrun", ".libraries"):
        shutil.rmtree(run_dir / folder, ignore_errors=True)


def fail(
    run_dir: Path, config: RunConfig, started: float, failure: dict, survived: dict | None = None,
    machine: dict | None = None,
) -> None:  # fmt: skip
    """Write the record of a failed run, as far as the disk allows. machine: from ``collect_machine``, if known."""
    with uninterrupted(), contextlib.suppress(OSError):
        failure = failure | {"after_s": round(steady.now() - started, 3)}
        write_failure(run_dir, config, started, machine or collect_machine(), failure, survived)


def make_run_dir(config: RunConfig) -> Path:
    """A new folder for this run. Raises UserError if OUT cannot be written to."""
    model = re.sub(r"[^A-Za-z0-9_.]", "_", config.model or "")[:40].lstrip(".")
    work = f"{config.num_devices}x{model if config.task == TRAIN else config.task}"
    with writable(config.out):
        run_dir = new_folder(Path(config.out) / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.mode}-{work}")
        try:
            (run_dir / "config.json").write_text("{}")
        except OSError:
            shutil.rmtree(run_dir, ignore_errors=True)
            raise
    return run_dir
