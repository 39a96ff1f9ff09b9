"""horovodrun over Gloo: starts the ranks and a rendezvous server, gives each its HOROVOD_RANK. On several machines
horovod_ranks.py does so on each, and with ELASTIC on one machine horovod_elastic.py."""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

from bench.config.options import Parallel, RunConfig
from bench.config.sections import Horovod, Measuring, Resources
from bench.errors import UserError
from bench.files import PROC
from bench.install import horovod_status
from bench.launch.placement import Placement
from bench.measure import nccl
from bench.process.guard import RANK_IN

GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables to add to the environment. Raises UserError when Horovod is missing, or
    cannot take a GPU's tensors.

    An engine variable that the user has set stays as it is, unless an option of the run sets it.
    """
    program = ["-m", "bench.worker", str(run_dir)]
    argv = start(len(placement.ranks), program)
    if why := lacking(config):
        raise UserError(f"MODE=horovod {why}")
    over = {RANK_IN: "HOROVOD_RANK"}
    if placement.count > 1:
        hosts = ",".join(f"{host.name}:{host.slots}" for host in config.machines)
        argv = [sys.executable, "-m", "bench.launch.engines.horovod_ranks", hosts, str(placement.number), *program]
        over |= over_hosts(placement)
    elif config.elastic and not placement.joins:
        limits = [config.elastic, len(placement.ranks), config.restarts, max(1, int(config.timeout))]
        argv = [sys.executable, "-m", "bench.launch.engines.horovod_elastic", *map(str, limits), *program]
        over = {RANK_IN: "RANK"}  # Horovod numbers the ranks that are left anew
    return argv, {**defaults(config), **of_horovod(config, run_dir), **over}


def of_horovod(config: RunConfig, run_dir: Path) -> dict[str, str]:
    """What Horovod itself takes from the environment, whoever starts its ranks."""
    driver = driver_library(run_dir) if config.device == "cuda" else {}
    return {**knobs(config), **trace(config, run_dir), **driver}


def over_hosts(placement: Placement) -> dict[str, str]:
    """What horovodrun tells all ranks of several machines; the interface has its own name on each."""
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": placement.main,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(placement.port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": placement.iface,
    }


def start(num_ranks: int, program: list[str]) -> list[str]:
    """The command line that runs ``python *program`` on every rank, all on this machine. Raises UserError without
    Horovod."""
    if why := missing():
        raise UserError(f"MODE=horovod {why}")
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(num_ranks)]
    return [*argv, "-H", f"localhost:{num_ranks}", "--disable-cache", sys.executable, *program]


def missing() -> str:
    """Why there is no Horovod, after the mode's name; "" where there is one."""
    if importlib.util.find_spec("horovod") is None:
        return "needs Horovod, which is not installed here: run `bench install-horovod`"
    return ""


def lacking(config: Parallel) -> str:
    """Why the installed Horovod cannot run a config on GPUs, after its name; "" where it can.

    Without NCCL, Horovod 0.28.1 is built without CUDA as well. It still takes a tensor of a GPU, copies it, and on the
    way back throws in its background thread ("Requested device context manager with GPU device but not compiled with
    CUDA", torch/cuda_util.cc), outside of what catches errors: the ranks die, or wait for ever.
    """
    if config.device != "cuda":
        return ""
    if not horovod_status.nccl_built():
        return (
            "needs a Horovod with NCCL on GPUs, and the one installed has none: run `bench install-horovod --gpu nccl "
            "--force`, or use DEVICE=cpu"
        )
    if config.share_gpu and not nccl.shared_variables():
        newest, least = ".".join(map(str, nccl.version() or ("none",))), ".".join(map(str, nccl.SHARED_FROM))
        return (
            f"cannot be had with SHARE_GPU=1: NCCL takes two ranks on one GPU from {least} on and with "
            f"{nccl.SHARING}=1, and torch here has {newest}: use MODE=ddp, which then talks Gloo, or DEVICE=cpu"
        )
    return ""


def driver_library(run_dir: Path) -> dict[str, str]:
    """The variables with which Horovod finds the NVIDIA driver's library, in RUN_DIR/.libraries; none where it does.

    It loads ``libcuda.so`` (torch/cuda_util.cc of 0.28.1), a name that comes with the packages to develop with, and
    throws where there is only the driver's own ``libcuda.so.1``, as in most containers.
    """
    if loaded("libcuda.so") or not (library := loaded("libcuda.so.1")):
        return {}
    folder = run_dir.resolve() / ".libraries"
    folder.mkdir(exist_ok=True)
    (folder / "libcuda.so").symlink_to(library)
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))}


def loaded(name: str) -> str:
    """Load a library into this process and return its path, as Linux's linker finds it; "" where it is not there."""
    try:
        ctypes.CDLL(name)
        lines = (PROC / "self" / "maps").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(maxsplit=5)[5] for line in lines if f"/{name}" in line), "")


def trace(config: Measuring, run_dir: Path) -> dict[str, str]:
    """With PROFILE=1, where rank 0 writes Horovod's own timeline."""
    return {"HOROVOD_TIMELINE": str(run_dir.resolve() / ".rank0.horovod.json")} if config.profile else {}


def defaults(config: Resources) -> dict[str, str]:
    """Engine variables that the user may have set otherwise."""
    return {GLOO_TIMEOUT: os.environ.get(GLOO_TIMEOUT, str(int(config.timeout) + 60))}


def knobs(config: Horovod) -> dict[str, str]:
    """The options of a run that Horovod takes from the environment."""
    values = {
        "HOROVOD_FUSION_THRESHOLD": None if config.fusion_mb is None else int(config.fusion_mb * 2**20),  # bytes
        "HOROVOD_CYCLE_TIME": config.cycle_time_ms,
        "HOROVOD_AUTOTUNE": int(config.autotune) or None,
        "HOROVOD_ENABLE_ASYNC_COMPLETION": int(config.async_completion) or None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
