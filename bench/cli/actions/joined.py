"""`bench run` inside of torchrun, srun, horovodrun or mpirun: each of their processes becomes a rank of one run.

Nothing is started here: this process is the rank. It watches itself, with a limit on every wait, and reports how it
ends (bench/launch/joining.py). Rank 0 makes the folder, shows progress, writes the record and prints the table; it
receives the logs of other machines at the end.
"""

import dataclasses
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.analysis import tables
from bench.cli.actions.batch_search import MAX
from bench.cli.actions.joined_rank import JoinedRank, wait_for_rank0
from bench.cli.actions.run_output import announce
from bench.config.command_line import from_arguments
from bench.config.fields import variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, RunConfig
from bench.config.resolve import tuned_options
from bench.config.sections import Extras
from bench.errors import BenchError, UserError, printable
from bench.launch import joining, machine
from bench.launch.command import hang_variables
from bench.launch.engines import horovodrun
from bench.launch.joining import LOOK_S
from bench.launch.seat import LAUNCHERS, Seat
from bench.measure import node, steady
from bench.process.guard import LAUNCHER_PID
from bench.record.schema import require_validator
from bench.storage import remote

LIBRARIES = "BENCH_DRIVER_LIBRARIES"  # of a restarted process: the folder with the driver's library


def join(args, seat: Seat) -> int:
    """Become a rank, and end with it. Returns the exit code if this process cannot become one."""
    started = steady.now()
    require_validator()
    os.environ |= {steady.STARTED_AT: str(started)} | ({} if seat.node_rank is None else place_of(seat))
    for name in (LAUNCHER_PID, "BENCH_HOSTS", "BENCH_REMOTE", "BENCH_INIT_METHOD"):  # of a `bench` that starts its own
        os.environ.pop(name, None)
    if (iface := os.environ.get("BENCH_IFACE")) and seat.engine == "torchrun":
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, iface)
    asked = read_options(args, seat)
    given = machine.device(asked, seat.local_world_size)
    prepare_engine(asked, seat, given["device"])
    meeting = joining.open_store(seat, asked.timeout)
    try:
        config = joining.resolve_on_all_ranks(meeting, asked, given)
        if config.copy_to:
            remote.Remote(config.copy_to, config.timeout)  # report a wrong address before the training, not after
        run_dir, shared = joining.share_folder(meeting, config)
        if seat.rank == 0:
            announce_run(config, seat, asked)
    except BenchError as error:
        return report_refusal(meeting, error)
    if seat.engine == "horovodrun":
        os.environ |= horovodrun.trace(config, run_dir)  # on every rank, although only rank 0 writes it
    with JoinedRank(run_dir, meeting, config, shared, started) as rank:
        from bench import worker

        worker.run_task(config, run_dir, rank.status)
    return 0  # not reached: a rank ends its process


def place_of(seat: Seat) -> dict[str, str]:
    """The machine of this rank, in the form that a start over HOSTS gives it."""
    return {node.NUMBER: str(seat.node_rank), **({} if node.NAME in os.environ else {node.NAME: node.name()})}


def read_options(args, seat: Seat) -> RunConfig:
    """The options of this process, on one device per process. Raises UserError if an option contradicts the external
    launcher."""
    by = f"{seat.launcher} has started {seat.world_size} processes ({LAUNCHERS[seat.launcher].size})"
    for name in ("hosts", "remote", "dist_url", "launcher", "elastic", "per_device_batch"):
        if (value := getattr(args, name, None)) not in (None, "auto") and (name != "per_device_batch" or value == MAX):
            raise UserError(
                f"{by}: leave {variable_of(FIELDS[name])}={getattr(args, name)} out, because it starts processes itself"
            )
    given = args.num_devices
    if given is not None and given != str(seat.world_size):
        raise UserError(f"{by}, one per device, but GPUS={given}: leave GPUS out")
    if info := MODES.get(args.mode):
        if info.one_process:
            raise UserError(f"{by}, but MODE={args.mode} is one process: use MODE=ddp or horovod, or start it once")
        if seat.engine not in info.launchers:
            able = " or ".join(name for name, each in LAUNCHERS.items() if each.engine in info.launchers)
            fitting = " or ".join(mode for mode, each in MODES.items() if seat.engine in each.launchers)
            raise UserError(f"{by}, but MODE={args.mode} needs {able}: use MODE={fitting}, or start it with {able}")
    args.num_devices = str(seat.world_size)
    asked = from_arguments(args)
    if seat.launcher == "mpirun" and asked.profile:
        raise UserError("PROFILE=1 needs Horovod's timeline, which is not available under mpirun: use horovodrun")
    if seat.launcher != "mpirun" and asked.adasum:
        raise UserError(f"ADASUM=1 needs MPI, but {seat.launcher}'s ranks use Gloo: start bench run with mpirun")
    return asked


def prepare_engine(asked: RunConfig, seat: Seat, device: str) -> None:
    """Set the variables that a backend reads when it starts. Raises UserError if it is not available."""
    config = dataclasses.replace(asked, device=device)
    os.environ |= hang_variables(config)
    if seat.engine == "horovodrun":
        if why := horovodrun.missing() or horovodrun.unavailable_reason(config):
            raise UserError(f"MODE=horovod {why}")
        if device == "cuda":
            find_driver()
        tuned = dataclasses.replace(config, **tuned_options(config, config.mode))
        os.environ |= horovodrun.defaults(tuned) | horovodrun.knobs(tuned)


def find_driver() -> None:
    """Let Horovod find the NVIDIA driver's library if only its numbered name exists (``horovodrun.driver_library``).

    A process reads its library folders when it starts. So this one restarts once, with a folder that has the name; its
    launcher sees the same process.
    """
    if folder := os.environ.pop(LIBRARIES, None):
        horovodrun.loaded("libcuda.so")  # a loaded library needs no folder
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder = tempfile.mkdtemp(prefix="bench-driver-")
    if variables := horovodrun.driver_library(Path(folder)):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | variables | {LIBRARIES: folder})
    os.rmdir(folder)


def announce_run(config: RunConfig, seat: Seat, asked: Extras) -> None:
    console = tables.terminal()
    announce(console, config, f"joined to {seat.launcher}")
    if asked.baselines or (asked.baselines is None and config.device == "cpu" and not config.epochs):
        console.print(
            f"note: the baselines are left out, because they are separate runs and {seat.launcher} started this one"
        )
    sys.stdout.flush()


def report_refusal(meeting: joining.RankStore, error: BenchError) -> int:
    """Nothing has run: rank 0 prints why, or the others if it cannot. Returns the exit code."""
    if not meeting.failures():
        user_error = isinstance(error, UserError)
        meeting.fail(joining.report_of(meeting.seat.rank, "raised", user_error, str(error), ""))
    if meeting.seat.rank == 0 or not wait_for_rank0(meeting):
        print(f"bench: {printable(str(error))}", file=sys.stderr, flush=True)
    if meeting.seat.rank == 0:
        meeting.write("said", True)
        time.sleep(LOOK_S)  # the store may be in this process
    return error.exit_code
