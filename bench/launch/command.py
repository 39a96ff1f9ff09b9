"""The launcher's command and its environment on one machine of a run."""

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

LATER_S = 300  # after TIMEOUT: the launcher explains a hang first
# Variables that a launcher sets for its ranks: those of an outer launcher are dropped.
OF_ENGINES = re.compile(
    "(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|NODE_RANK|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|PMI|PMIX)_.*"
    "|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|GLOO_RENDEZVOUS_.*|RENDEZVOUS_.*|HOSTNAME|ELASTIC)"
    "|OMPI_(?!MCA_).*|OMPI_MCA_(ess|orte|pmix|initial)_?.*"  # other parameters of Open MPI's may be the user's
)


def command_of(config: RunConfig, run_dir: Path, placement: Placement, started: float) -> tuple[list[str], dict]:
    """The launcher's command line and complete environment. started: by this machine's clock. Raises UserError."""
    engine = "torchrun" if placement.joins and MODES[config.mode].one_process else config.launcher
    argv, variables = ENGINES[engine].command(config, run_dir, placement)
    inherited = {name: value for name, value in os.environ.items() if not OF_ENGINES.fullmatch(name)}
    threads, devices = thread_variables(config.threads_per_process), device_variables(config)
    ours = {**common_variables(started), **hang_variables(config), **threads, **devices, **placement.variables()}
    return argv, {**inherited, **ours, **variables}


def thread_variables(threads: int) -> dict[str, str]:
    """OpenMP threads per process, equal for all modes: torchrun would set 1, horovodrun nothing."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **waiting.variables(os.environ)}


def hang_variables(config: RunConfig) -> dict[str, str]:
    """Settings that make a NCCL hang explainable: the flight recorder, and a watchdog later than TIMEOUT (by default
    torch ends a stuck process after 8 minutes without a reason). The user's values have priority."""
    if config.device != "cuda":
        return {}
    version = (torch_version() or ["0.0"])[0]
    buffer = "TORCH_FR_BUFFER_SIZE" if parts(version) >= (2, 9) else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    values = {buffer: "2000", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(config.timeout) + LATER_S)}
    return {name: os.environ.get(name, value) for name, value in values.items()}


def common_variables(started: float) -> dict[str, str]:
    return {
        RANK_IN: "RANK",
        steady.STARTED_AT: str(started),
        **steady.variables(),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
