"""What is started on one machine of a run: the engine's command and its environment, made on that machine."""

import os
import re
from pathlib import Path

from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.files import PROJECT
from bench.install.horovod_status import torch_version
from bench.install.torch_build import parts
from bench.launch.devices import device_variables
from bench.launch.engines import ENGINES
from bench.launch.placement import Placement
from bench.measure import steady, waiting
from bench.process.guard import RANK_IN

LATER_S = 300  # after TIMEOUT, by which the launcher has found who hangs
# What an engine tells its ranks, and a rank of ours must hear from its own engine alone.
OF_ENGINES = re.compile(
    "(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|NODE_RANK|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|PMI|PMIX)_.*"
    "|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|GLOO_RENDEZVOUS_.*|RENDEZVOUS_.*|HOSTNAME|ELASTIC)"
    "|OMPI_(?!MCA_).*|OMPI_MCA_(ess|orte|pmix|initial)_?.*"  # other parameters of Open MPI's may be the user's
)


def command_of(config: RunConfig, run_dir: Path, placement: Placement, started: float) -> tuple[list[str], dict]:
    """The engine's command line on this machine, and its whole environment. started: when the run began, by this
    machine's ``steady`` clock. Raises UserError when the engine cannot start this config here."""
    engine = "torchrun" if placement.joins and MODES[config.mode].one_process else config.launcher
    argv, variables = ENGINES[engine].command(config, run_dir, placement)
    inherited = {name: value for name, value in os.environ.items() if not OF_ENGINES.fullmatch(name)}
    threads, devices = thread_variables(config.threads_per_process), device_variables(config)
    ours = {**common_variables(started), **hang_variables(config), **threads, **devices, **placement.variables()}
    return argv, {**inherited, **ours, **variables}


def thread_variables(threads: int) -> dict[str, str]:
    """The number of OpenMP threads of a process and how long they spin while they wait, set for all modes in one place:
    a launcher's own default (torchrun sets 1, horovodrun none) would give one mode more threads than another."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **waiting.variables(os.environ)}


def hang_variables(config: RunConfig) -> dict[str, str]:
    """What lets a hang over NCCL be explained, for every mode alike; empty on CPUs. What the user has set stays.

    torch keeps what each rank has issued last (torch 2.11 and newer by themselves; some microseconds a collective), and
    its own watchdog, which ends a stuck process after 8 minutes without a reason, comes after TIMEOUT.
    """
    if config.device != "cuda":
        return {}
    version = (torch_version() or ["0.0"])[0]
    buffer = "TORCH_FR_BUFFER_SIZE" if parts(version) >= (2, 9) else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    values = {buffer: "2000", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(config.timeout) + LATER_S)}
    return {name: os.environ.get(name, value) for name, value in values.items()}


def common_variables(started: float) -> dict[str, str]:
    """What every engine's processes get: when the command began, its clock, where this code is, and in which variable a
    rank finds its number, unless the engine names another one."""
    return {
        RANK_IN: "RANK",
        steady.STARTED_AT: str(started),
        **steady.variables(),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
