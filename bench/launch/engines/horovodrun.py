"""horovodrun over Gloo: starts the ranks and a rendezvous server. Several machines: horovod_ranks.py. MIN_DEVICES on
one machine: horovod_elastic.py."""

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
    """The command line and variables to add. Raises UserError if Horovod is missing or cannot use GPUs."""
    program = ["-m", "bench.worker", str(run_dir)]
    argv = start(len(placement.ranks), program)
    if why := unavailable_reason(config):
        raise UserError(f"MODE=horovod {why}")
    over = {RANK_IN: "HOROVOD_RANK"}
    if placement.count > 1:
        hosts = ",".join(f"{host.name}:{host.slots}" for host in config.machines)
        argv = [sys.executable, "-m", "bench.launch.engines.horovod_ranks", hosts, str(placement.number), *program]
        over |= {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": placement.main,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(placement.port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": placement.iface,
        }
    elif config.elastic and not placement.joins:
        limits = [config.elastic, len(placement.ranks), config.restarts, max(1, int(config.timeout))]
        argv = [sys.executable, "-m", "bench.launch.engines.horovod_elastic", *map(str, limits), *program]
        over = {RANK_IN: "RANK"}  # Horovod renumbers the remaining ranks
    return argv, {**defaults(config), **of_horovod(config, run_dir), **over}


def of_horovod(config: RunConfig, run_dir: Path) -> dict[str, str]:
    """Horovod's environment variables under any launcher."""
    driver = driver_library(run_dir) if config.device == "cuda" else {}
    return {**knobs(config), **trace(config, run_dir), **driver}


def start(num_ranks: int, program: list[str]) -> list[str]:
    """Run ``python *program`` on every rank of this machine. Raises UserError without Horovod."""
    if why := missing():
        raise UserError(f"MODE=horovod {why}")
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(num_ranks)]
    return [*argv, "-H", f"localhost:{num_ranks}", "--disable-cache", sys.executable, *program]


def missing() -> str:
    """Why there is no Horovod, a phrase after the mode's name; else ""."""
    if importlib.util.find_spec("horovod") is None:
        return "needs Horovod, which is not installed here: run `bench install-horovod`"
    return ""


def unavailable_reason(config: Parallel) -> str:
    """Why this Horovod cannot run a config on GPUs; else "". Without NCCL, 0.28.1 is also built without CUDA: it takes
    a GPU's tensor, then throws in its background thread (torch/cuda_util.cc), and ranks die or hang."""
    if config.device != "cuda":
        return ""
    if not horovod_status.nccl_built():
        return "needs a Horovod with NCCL on GPUs: run `bench install-horovod --gpu nccl --force`, or use DEVICE=cpu"
    if config.share_gpu and not nccl.shared_variables():
        newest, least = ".".join(map(str, nccl.version() or ("none",))), ".".join(map(str, nccl.SHARED_FROM))
        needs = f"SHARE_GPU=1 needs NCCL {least} and {nccl.SHARING}=1, but torch here has {newest}"
        return f"does not work here: {needs}: use MODE=ddp, which then uses Gloo, or DEVICE=cpu"
    return ""


def driver_library(run_dir: Path) -> dict[str, str]:
    """Make the driver visible to Horovod: it loads ``libcuda.so`` (torch/cuda_util.cc of 0.28.1), which exists only in
    development packages."""
    if loaded("libcuda.so") or not (library := loaded("libcuda.so.1")):
        return {}
    folder = run_dir.resolve() / ".libraries"
    folder.mkdir(exist_ok=True)
    (folder / "libcuda.so").symlink_to(library)
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))}


def loaded(name: str) -> str:
    """Load a library and return its path; "" if it is not found."""
    try:
        ctypes.CDLL(name)
        lines = (PROC / "self" / "maps").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(maxsplit=5)[5] for line in lines if f"/{name}" in line), "")


def trace(config: Measuring, run_dir: Path) -> dict[str, str]:
    return {"HOROVOD_TIMELINE": str(run_dir.resolve() / ".rank0.horovod.json")} if config.profile else {}


def defaults(config: Resources) -> dict[str, str]:
    return {GLOO_TIMEOUT: os.environ.get(GLOO_TIMEOUT, str(int(config.timeout) + 60))}


def knobs(config: Horovod) -> dict[str, str]:
    values = {
        "HOROVOD_FUSION_THRESHOLD": None if config.fusion_mb is None else int(config.fusion_mb * 2**20),  # bytes
        "HOROVOD_CYCLE_TIME": config.cycle_time_ms,
        "HOROVOD_AUTOTUNE": int(config.autotune) or None,
        "HOROVOD_ENABLE_ASYNC_COMPLETION": int(config.async_completion) or None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
