"""horovodrun over Gloo: starts the ranks and a rendezvous server, gives each its HOROVOD_RANK."""

import importlib.util
import os
import sys
from pathlib import Path

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.install import horovod_status
from bench.launch.node import Placement

GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables to add to the environment. Raises UserError when Horovod is missing, or
    cannot take a GPU's tensors.

    An engine variable that the user has set stays as it is, unless an option of the run sets it.
    """
    argv = start(len(placement.ranks), ["-m", "bench.worker", str(run_dir)])
    if why := lacking(config):
        raise UserError(f"MODE=horovod {why}")
    trace = {"HOROVOD_TIMELINE": str(run_dir.resolve() / ".rank0.horovod.json")} if config.profile else {}
    return argv, {**defaults(config), **knobs(config), **trace}


def start(num_ranks: int, program: list[str]) -> list[str]:
    """The command line that runs ``python *program`` on every rank, all on this machine. Raises UserError without
    Horovod."""
    if importlib.util.find_spec("horovod") is None:
        raise UserError("MODE=horovod needs Horovod, which is not installed here: run `bench install-horovod`")
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(num_ranks)]
    return [*argv, "-H", f"localhost:{num_ranks}", "--disable-cache", sys.executable, *program]


def lacking(config: RunConfig) -> str:
    """Why the installed Horovod cannot run a config on GPUs, after its name; "" where it can.

    Without NCCL, Horovod 0.28.1 is built without CUDA as well. It still takes a tensor of a GPU, copies it, and on the
    way back throws in its background thread ("Requested device context manager with GPU device but not compiled with
    CUDA", torch/cuda_util.cc), outside of what catches errors: the ranks die, or wait for ever.
    """
    if config.device != "cuda":
        return ""
    if config.share_gpu:
        return (
            "cannot be had with SHARE_GPU=1: NCCL takes no two ranks on one GPU, and a Horovod without NCCL takes no "
            "tensors of a GPU: use MODE=ddp, or DEVICE=cpu"
        )
    if horovod_status.nccl_built():
        return ""
    return (
        "needs a Horovod with NCCL on GPUs, and the one installed has none: run `bench install-horovod --gpu nccl "
        "--force`, or use DEVICE=cpu"
    )


def defaults(config: RunConfig) -> dict[str, str]:
    """Engine variables that the user may have set otherwise."""
    return {GLOO_TIMEOUT: os.environ.get(GLOO_TIMEOUT, str(int(config.timeout) + 60))}


def knobs(config: RunConfig) -> dict[str, str]:
    """The options of a run that Horovod takes from the environment."""
    values = {
        "HOROVOD_FUSION_THRESHOLD": None if config.fusion_mb is None else int(config.fusion_mb * 2**20),  # bytes
        "HOROVOD_CYCLE_TIME": config.cycle_time_ms,
        "HOROVOD_AUTOTUNE": int(config.autotune) or None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
