"""One run: a config in, the path of a record out. How its processes start is the engine's, where they run the
host's."""

import contextlib
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
from bench.files import PROJECT
from bench.launch import supervise
from bench.launch.devices import choose_device, device_variables
from bench.launch.engines import ENGINES
from bench.launch.hosts import HOSTS
from bench.launch.node import Node
from bench.measure import steady
from bench.measure.environment import collect_machine, usable_cores
from bench.process.ending import uninterrupted
from bench.process.guard import wanted_path
from bench.record.write import write_failure

# What an engine tells its ranks, and a rank of ours must hear from its own engine alone.
OF_ENGINES = re.compile(
    "(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|NODE_RANK|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|PMI|PMIX)_.*"
    "|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|GLOO_RENDEZVOUS_.*|RENDEZVOUS_.*|HOSTNAME|ELASTIC)"
)
# Launchers that are not ours: how many processes each has started, as it tells them.
FOREIGN = {"torchrun": "WORLD_SIZE", "horovodrun": "HOROVOD_SIZE", "mpirun": "OMPI_COMM_WORLD_SIZE",
           "srun": "SLURM_STEP_NUM_TASKS"}  # fmt: skip


def resolve_here(config: RunConfig) -> RunConfig:
    """Fill in the options that depend on this machine. Raises UserError when it cannot do what is asked, and inside of
    a launcher that is not ours: each of its processes would start a whole benchmark."""
    for name, variable in FOREIGN.items():
        if os.environ.get(variable, "1") not in ("0", "1"):
            raise UserError(
                f"{name} has started {os.environ[variable]} processes ({variable}), and `bench` starts its own: run it "
                f"once, without {name}; if {variable} is left over from something else, unset it"
            )
    return resolve(config, choose_device(config), usable_cores())


def launch(config: RunConfig, watch=None) -> Path:
    """Run a resolved config in fresh processes and return the path of its record.

    watch: called a few times a second with the heartbeat of every rank (None where a rank has none yet), and the rows
    of the epochs that have ended. Raises UserError when the run cannot start, RunFailed when it does not end well; then
    its record says so, and the error has its folder (``run_dir``).
    """
    started = steady.now()
    choose_device(config)  # a suite may ask for more GPUs than the config it was made from
    devices = device_variables(config)
    run_dir = make_run_dir(config)
    rendezvous = None  # a file:// one, once it is known to be ours
    try:
        nodes = HOSTS["local"].nodes(config, run_dir)
        commands = [ENGINES[config.launcher].command(config, run_dir, node.placement) for node in nodes]
        if (config.dist_url or "").startswith("file://"):
            rendezvous = Path(config.dist_url.removeprefix("file://"))
        (run_dir / "config.json").write_text(json.dumps(to_dict(config)))

        def start(node: Node) -> None:
            argv, variables = commands[node.placement.number]
            threads = thread_variables(config.threads_per_process)
            inherited = {name: value for name, value in os.environ.items() if not OF_ENGINES.fullmatch(name)}
            node.start(argv, {**inherited, **common_variables(started), **threads, **devices, **variables})

        supervise.run(nodes, start, run_dir, config.timeout, watch)
        if not (run_dir / "record.json").exists():
            raise supervise.failed("launcher", None, "every process ended well, but there is no record", run_dir)
    except UserError as error:
        if any(run_dir.glob("*.pt")):  # it trained, until it met an image that cannot be read, say
            fail(run_dir, config, started, {"rank": None, "kind": "raised", "message": str(error), "traceback": ""})
            error.run_dir = run_dir
        else:
            shutil.rmtree(run_dir, ignore_errors=True)  # nothing ran
        raise
    except RunFailed as error:
        fail(run_dir, config, started, error.failure)
        error.run_dir = run_dir
        raise
    except KeyboardInterrupt:  # a second one
        fail(run_dir, config, started, supervise.failed("interrupted", None, "interrupted", run_dir).failure)
        raise
    finally:
        tidy(run_dir, rendezvous)
    return run_dir / "record.json"


def tidy(run_dir: Path, rendezvous: Path | None) -> None:
    """Remove what a run needed only while it went on."""
    leftovers = [
        *run_dir.glob(".rank*"),
        *run_dir.glob("*.tmp"),
        run_dir / ".rendezvous",
        wanted_path(run_dir),
        run_dir / "config.json",
    ]
    for leftover in [*leftovers, *([rendezvous] if rendezvous else [])]:
        leftover.unlink(missing_ok=True)
    for folder in (".torchrun", ".libraries"):
        shutil.rmtree(run_dir / folder, ignore_errors=True)


def fail(run_dir: Path, config: RunConfig, started: float, failure: dict) -> None:
    """Leave a record that says how the run failed, where the disk lets us."""
    os.environ["BENCH_STARTED_AT"] = str(started)
    with uninterrupted(), contextlib.suppress(OSError):
        write_failure(run_dir, config, collect_machine(), failure | {"after_s": round(steady.now() - started, 3)})


def make_run_dir(config: RunConfig) -> Path:
    """A new folder for this run. Raises UserError when it cannot be made or written to."""
    words = [
        time.strftime("%Y%m%d-%H%M%S"),
        config.mode,
        f"{config.num_devices}x{re.sub(r'[^A-Za-z0-9_.]', '_', config.model)[:40].lstrip('.')}",
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


def thread_variables(threads: int) -> dict[str, str]:
    """The number of OpenMP threads of a process, set for all modes in one place: a launcher's own default (torchrun
    sets 1, horovodrun none) would give one mode more threads than another."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def common_variables(started: float) -> dict[str, str]:
    """What every engine's processes get: when the command began, its clock, and where this code is."""
    return {
        "BENCH_STARTED_AT": str(started),
        **steady.variables(),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
