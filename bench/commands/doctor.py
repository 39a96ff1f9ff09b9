"""``bench doctor``: what this machine has, what each mode can run here, what is wrong and how to fix it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from bench.analysis import tables
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.errors import ExitCode, UserError
from bench.install.horovod_status import Status, installed_with, mpi_built, status
from bench.launch.engines import mpirun
from bench.launch.gpu_fit import require_fit, require_no_amd
from bench.measure.environment import collect_machine, cores_in_words
from bench.measure.load import others_now
from bench.measure.nvml import visible_gpus, why_no_gpu, why_not_meant
from bench.record.disturbance import THRESHOLDS

TORCH_PROBE = """
import json, torch, torch.distributed as dist
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "rocm": torch.version.hip,
  "gpus": torch.cuda.device_count(),
  "gloo": dist.is_available() and dist.is_gloo_available(), "nccl": dist.is_available() and dist.is_nccl_available(),
  "bf16": torch.cuda.is_bf16_supported() if torch.cuda.is_available() else None}))
"""


def run(args) -> int:
    """Print the findings; exit code 1 when something a person would want is broken."""
    console = tables.terminal()
    machine, gpus = collect_machine(), visible_gpus()
    torch = probe_torch()
    facts = machine["machine"]
    python = sys.version.split()[0]
    console.print(
        f"machine  {facts['cpu_model']}, {cores_in_words(facts['usable_cores'], 'usable')}, {memory_words(facts)}, "
        f"Python {python}"
    )
    others = others_now()
    busy = ": what is measured now is disturbed" if others > THRESHOLDS["others_cpu_share"].above else ""
    console.print(f"load     other processes take {100 * others:.0f} % of the CPU now{busy}")
    console.print(f"GPUs     {gpu_line(gpus, machine['driver_version'])}")
    console.print(f"torch    {torch_line(torch)}")
    console.print(f"horovod  {horovod_line(status())}")
    problems = find_problems(gpus, torch) + shared_memory()
    for mode, info in MODES.items():
        console.print(f"MODE={mode:<12} {verdict(mode, gpus, torch)}  ({info.summary})", markup=False)
    for problem in problems:
        console.print(f"fix: {problem}", markup=False)
    if not problems:
        console.print("nothing to fix")
    return ExitCode.FAILED if problems else ExitCode.DONE


def memory_words(facts: dict) -> str:
    """The machine's memory, and what its control group leaves of it.

    >>> memory_words({"ram_gib": 15.6, "memory_limit_gib": 2.0})
    '15.6 GiB, of which its control group allows 2.0'
    """
    limit = facts["memory_limit_gib"]
    allowed = f", of which its control group allows {limit:.1f}" if limit and limit < facts["ram_gib"] else ""
    return f"{facts['ram_gib']:.1f} GiB{allowed}"


def shared_memory(folder: Path = Path("/dev/shm"), least_mib: int = 256) -> list[str]:
    """A problem where loader workers have too little shared memory to hand over batches."""
    if not folder.is_dir():
        return []
    free = shutil.disk_usage(folder).free / 2**20
    return [] if free >= least_mib else [f"{folder} has {free:.0f} MiB free: with WORKERS a run may stand still; "
                                         "enlarge it (docker: --shm-size=1g)"]  # fmt: skip


def probe_torch() -> dict | None:
    """What torch says of itself, asked in a process of its own. None when it is missing or does not import."""
    try:
        result = subprocess.run([sys.executable, "-c", TORCH_PROBE], capture_output=True, text=True, timeout=120)
        return json.loads(result.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError):
        return None


def gpu_line(gpus: list, driver: str | None) -> str:
    """The GPUs, or why there are none."""
    if not gpus:
        return f"none. {why_no_gpu()}"
    sizes = {
        gpu: "memory not told" if gpu.memory_total_gib is None else f"{gpu.memory_total_gib:.1f} GiB" for gpu in gpus
    }
    return f"{', '.join(f'{gpu.index}: {gpu.name} {size}' for gpu, size in sizes.items())}; driver {driver}"


def torch_line(torch: dict | None) -> str:
    """torch's version and what it was built with."""
    if torch is None:
        return "missing, or it does not import"
    backends = [name for name in ("gloo", "nccl") if torch[name]]
    with_gpus = f"ROCm {torch['rocm']}" if torch["rocm"] else f"CUDA {torch['cuda'] or 'not built in'}"
    return f"{torch['version']}, {with_gpus}, sees {torch['gpus']} GPUs, {' and '.join(backends)}"


def horovod_line(found: Status) -> str:
    """Horovod's version, whether it fits the installed torch, and what it can talk over."""
    if found.ready:
        return f"{found.horovod}, fits this torch; talks {' and '.join(installed_with())}{mpirun_words()}"
    cached = "; a wheel for this torch is in the cache" if found.cached_wheel else ""
    return f"{found.horovod or 'not installed'} ({found.state}){cached}"


def mpirun_words() -> str:
    """Whether LAUNCHER=mpirun can be had, of a Horovod that has MPI; "" of another."""
    return f" ({mpirun.absent() or 'mpirun is here'})" if mpi_built() else ""


def verdict(mode: str, gpus: list, torch: dict | None) -> str:
    """Whether a mode runs here, and on what."""
    if torch is None:
        return "no: torch is missing"
    if MODES[mode].needs and not status().ready:
        return f"no: {MODES[mode].needs} is not installed"
    if gpus and torch["gpus"]:
        return f"yes, up to GPUS={MODES[mode].max_devices or len(gpus)}; more with DEVICE=cpu"
    return "yes, on CPU workers"


def misfit_of(gpus: list) -> str:
    """Why not all GPUs can be used as they are, as a run would say it; "" where they can."""
    try:
        require_no_amd(RunConfig())
        require_fit(RunConfig(), gpus)
    except UserError as error:
        return str(error)
    return ""


def find_problems(gpus: list, torch: dict | None) -> list[str]:
    """One sentence per problem, with its remedy."""
    problems = []
    if torch is None:
        problems.append("torch does not import: run `make setup`, or `pip install torch torchvision`")
    elif misfit := misfit_of(gpus):
        problems.append(misfit)
    elif gpus and not torch["gpus"]:
        problems.append("NVML shows GPUs, but torch sees none: python -c 'import torch; torch.cuda.init()' says why")
    if why := why_not_meant():
        problems.append(why)
    if torch is not None and not status().ready:
        compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
        remedy = (
            "run `bench install-horovod`" if compiler else "install a C++ compiler (g++), then `bench install-horovod`"
        )
        problems.append(f"Horovod is not installed for this torch: {remedy}")
    return problems
