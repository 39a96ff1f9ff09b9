"""One run: a config in, the path of a record out. How its processes start is the engine's, where they run the
host's."""

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
from bench.errors import RunFailed, UserError
from bench.launch import supervise
from bench.launch.devices import choose_device, weakest
from bench.launch.elastic import Survival
from bench.launch.hosts import HOSTS, remote
from bench.launch.node import Node
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
        return remote.resources(config)
    device = choose_device(config)
    return device, usable_cores(), *(weakest(config) if device == "cuda" else (None, None))


def launch(config: RunConfig, watch=None) -> Path:
    """Run a resolved config in fresh processes and return the path of its record.

    watch: called a few times a second with the heartbeat of every rank (None where a rank has none yet), and the rows
    of the epochs that have ended. Raises UserError when the run cannot start, RunFailed when it does not end well; then
    its record says so, and the error has its folder (``run_dir``).
    """
    started = steady.now()
    require_validator()
    if not config.hosts:
        choose_device(config)  # a suite may ask for more GPUs than the config it was made from
    run_dir = make_run_dir(config)
    nodes, rendezvous = [], []  # a file:// one, once it is known to be ours
    survival = Survival(config, run_dir, started) if config.elastic else None
    attempt = config
    try:
        while True:
            try:
                go(attempt, run_dir, started, watch, survival, nodes, rendezvous)
                break
            except RunFailed as error:
                answering = functools.partial(remote.answering, config)
                remaining = survival.remaining(nodes, error.failure, answering) if survival else None
                if remaining is None:
                    raise
                attempt = remaining
        if not (run_dir / config.leaves).exists():
            raise supervise.failed("launcher", None, "every process ended well, but there is no record", run_dir)
        if survival:
            add_survival(run_dir, config, survival.told)
    except UserError as error:
        failure = error.failure or trained_before(survival, error)
        if failure and run_dir.is_dir():  # it met an image that cannot be read, say
            fail(run_dir, config, started, failure, survival)
            error.run_dir, error.args = run_dir, (f"{error}; see {run_dir}",)
        else:
            shutil.rmtree(run_dir, ignore_errors=True)  # nothing had begun
        raise
    except RunFailed as error:
        if survival:
            survival.gave_up(error)
        fail(run_dir, config, started, error.failure, survival)
        error.run_dir = run_dir
        raise
    except KeyboardInterrupt:  # outside of ``supervise.run``, which makes a RunFailed of it: between two attempts, say
        failure = supervise.failed("interrupted", None, "interrupted", run_dir).failure
        fail(run_dir, config, started, failure, survival)
        raise
    finally:
        for node in nodes:
            node.close()
        tidy(run_dir, rendezvous)
    return run_dir / config.leaves


def trained_before(survival: Survival | None, error: UserError) -> dict | None:
    """ELASTIC: the failure of a run that cannot continue, where an attempt before this one trained; else None."""
    if survival and survival.starts:
        return {"rank": None, "kind": "raised", "message": str(error), "traceback": ""}
    return None


def go(
    config: RunConfig, run_dir: Path, started: float, watch, survival: Survival | None, nodes: list[Node],
    rendezvous: list[Path],
) -> None:  # fmt: skip
    """Start the ranks and watch them to their end. nodes, rendezvous: what is to be closed and removed then, as far as
    it goes."""
    (run_dir / "config.json").write_text(json.dumps(to_dict(config)))
    nodes[:] = HOSTS["remote" if config.hosts else "local"].nodes(config, run_dir)
    commands = [node.command(config, started) for node in nodes]
    if (config.dist_url or "").startswith("file://"):
        rendezvous.append(Path(config.dist_url.removeprefix("file://")))

    def start(node: Node) -> None:
        node.start(*commands[node.placement.number])

    supervise.run(nodes, start, run_dir, config.timeout, watch, survival)


def tidy(run_dir: Path, rendezvous: list[Path]) -> None:
    """Remove what a run needed only while it went on."""
    leftovers = [
        *run_dir.glob(".rank*"),
        *run_dir.glob("*.tmp"),
        run_dir / ".rendezvous",
        wanted_path(run_dir),
        run_dir / "config.json",
    ]
    for leftover in [*leftovers, *rendezvous]:
        leftover.unlink(missing_ok=True)
    for folder in (".torchrun", ".libraries"):
        shutil.rmtree(run_dir / folder, ignore_errors=True)


def fail(
    run_dir: Path, config: RunConfig, started: float, failure: dict, survival: Survival | None = None,
    machine: dict | None = None,
) -> None:  # fmt: skip
    """Leave a record that says how the run failed, where the disk lets us. machine: what ``collect_machine`` has found
    already, where there is no time for it."""
    with uninterrupted(), contextlib.suppress(OSError):
        failure = failure | {"after_s": round(steady.now() - started, 3)}
        write_failure(run_dir, config, started, machine or collect_machine(), failure, survival and survival.told())


def make_run_dir(config: RunConfig) -> Path:
    """A new folder for this run. Raises UserError when it cannot be made or written to."""
    words = [
        time.strftime("%Y%m%d-%H%M%S"),
        config.mode,
        f"{config.num_devices}x{config.probe_kind or nameable(config.model)}",
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
