"""Open MPI's mpirun on one machine, for a Horovod built with MPI. Over several machines mpirun starts `bench run`
itself: see joining.py."""

import os
import shutil
import sys
from pathlib import Path

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.install import horovod_status
from bench.launch.engines import horovodrun
from bench.launch.placement import Placement
from bench.process.guard import RANK_IN
from bench.process.tree import capture

# Allow root, as in a container, and more ranks than cores; bind no rank to a core, where its threads would share it.
TRIAL_S = 60.0  # for mpirun to print its version
FLAGS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
# On one machine: no search for InfiniBand, which would print a warning; and no copies from another process's memory,
# which containers forbid.
SETTINGS = {"OMPI_MCA_btl": "^openib", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # a rank that waits for a message yields the core


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """Raises UserError without Horovod, its MPI or mpirun. The user's Open MPI settings have priority."""
    if why := unavailable_reason(config):
        raise UserError(f"MODE=horovod {why}")
    count = str(len(placement.ranks))
    argv = ["mpirun", *FLAGS, "-np", count, "-H", f"localhost:{count}"]
    settings = SETTINGS | (YIELD if config.device == "cpu" else {})
    return [*argv, sys.executable, "-m", "bench.worker", str(run_dir)], {
        **{name: os.environ.get(name, value) for name, value in settings.items()},
        **horovodrun.of_horovod(config, run_dir),
        RANK_IN: "OMPI_COMM_WORLD_RANK",
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_CPU_OPERATIONS": "mpi",
    }


def unavailable_reason(config: RunConfig) -> str:
    if why := horovodrun.missing():
        return why
    if not horovod_status.mpi_built():
        what = "ADASUM=1" if config.adasum else "LAUNCHER=mpirun"
        return f"needs a Horovod with MPI for {what}: run `bench install-horovod --mpi`, or leave {what} out"
    return f"cannot be started: {why}" if (why := absent()) else horovodrun.unavailable_reason(config)


def absent() -> str:
    """Why there is no mpirun of Open MPI; else ""."""
    if not shutil.which("mpirun"):
        return "mpirun is not found: install Open MPI (`apt-get install openmpi-bin`), or load your cluster's module"
    says = capture(["mpirun", "--version"], TRIAL_S).out
    if "Open MPI" in says or "OpenRTE" in says:
        return ""
    printed = says.strip().partition("\n")[0][:80] or "nothing"
    return f"mpirun is not Open MPI's (it prints {printed}): install Open MPI"
