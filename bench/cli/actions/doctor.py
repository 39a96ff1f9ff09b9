"""``bench doctor``: this machine's hardware, the modes that it can run, problems and how to fix them."""

import json
import math
import shutil
import sys
from pathlib import Path

from bench.analysis import tables
from bench.config import gpu_defaults
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.errors import ExitCode, UserError
from bench.install.horovod_status import Status, installed_with, mpi_built, status
from bench.launch.devices import order_remark, require_fit, require_no_amd, require_torch
from bench.launch.engines import mpirun
from bench.measure.environment import collect_machine, cores_in_words
from bench.measure.load import others_now
from bench.measure.nvml import lost_gpus, visible_gpus, why_no_gpu, why_not_meant
from bench.process.tree import capture
from bench.record.disturbance import THRESHOLDS

TORCH_PROBE = """
import json, torch, torch.distributed as dist
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "rocm": torch.version.hip,
  "gpus": torch.cuda.device_count(),
  "gloo": dist.is_available() and dist.is_gloo_available(), "nccl": dist.is_available() and dist.is_nccl_available(),
  "bf16": torch.cuda.is_bf16_supported() if torch.cuda.is_available() else None}))
"""


# Copies numbers from the host through each pair of neighbouring GPUs and back.
PEER_PROBE = """
import json, torch
sent, wrong = torch.arange(2**18, dtype=torch.int32), []
for gpu in range(torch.cuda.device_count() - 1):
    came = sent.to(f"cuda:{gpu}").to(f"cuda:{gpu + 1}").cpu()
    if not torch.equal(sent, came):
        wrong.append(f"{gpu} to {gpu + 1}")
print(json.dumps(wrong))
"""
PEER_LIMIT_S = 60.0
OVER_PCIE = (
    "peer to peer over PCIe is broken here, possibly because of ACS or the IOMMU: disable them (BIOS, kernel), or set "
    "NCCL_P2P_DISABLE=1"
)
# MiB of shared memory per loader worker: two batches of 224 x 224 at a GPU's default batch size.
WORKER_MIB = 2 * gpu_defaults.LARGEST_BATCH * 3 * 224**2 / 2**20
STATES = {
    "missing": "Horovod is not installed",
    "other torch": "the installed Horovod was built for another torch",
    "no nccl": "the installed Horovod was built without NCCL, which GPUs need",
    "other cpu": "the installed Horovod was built for another kind of CPU",
    "other gpu": "the installed Horovod was built for other GPUs",
    "unknown build": "the installed Horovod was not built by this project",
}


def run(args) -> int:
    """Print the report; exit code 1 if something is broken."""
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
    busy = ": measurements taken now are disturbed" if others > THRESHOLDS["others_cpu_share"].above else ""
    console.print(f"load     other processes use {100 * others:.0f} % of the CPU now{busy}")
    console.print(f"GPUs     {gpu_line(gpus, machine['driver_version'])}")
    for line in link_lines(machine["gpu_links"]):
        console.print(f"links    {line}")
    console.print(f"torch    {torch_line(torch)}")
    console.print(f"horovod  {horovod_line(status())}")
    problems = find_problems(gpus, torch) + shared_memory(least_mib=shared_memory_needed(facts["usable_cores"], gpus))
    for mode, info in MODES.items():
        console.print(f"MODE={mode:<12} {verdict(mode, gpus, torch)}  ({info.summary})")
    for problem in problems:
        console.print(f"fix: {problem}")
    if not problems:
        console.print("nothing to fix")
    return ExitCode.FAILED if problems else ExitCode.DONE


def memory_words(facts: dict) -> str:
    """The machine's memory, and the limit of its control group.

    >>> memory_words({"ram_gib": 15.6, "memory_limit_gib": 2.0})
    '15.6 GiB, of which its control group allows 2.0'
    """
    limit = facts["memory_limit_gib"]
    allowed = f", of which its control group allows {limit:.1f}" if limit and limit < facts["ram_gib"] else ""
    return f"{facts['ram_gib']:.1f} GiB{allowed}"


def shared_memory(folder: Path = Path("/dev/shm"), least_mib: float = 256) -> list[str]:
    """A problem if shared memory is too small for the batches of loader workers."""
    if not folder.is_dir():
        return []
    free = shutil.disk_usage(folder).free / 2**20
    if free >= least_mib:
        return []
    enough = f"--shm-size={max(1, math.ceil(least_mib / 1024))}g"
    return [
        f"{folder} has {free:.0f} MiB free, and the loader workers of photographs may need {least_mib:.0f}: a run may "
        f"hang; enlarge it (docker: {enough}), or use fewer WORKERS"
    ]


def shared_memory_needed(cores: int, gpus: list) -> float:
    """MiB for the loader workers of a run with the defaults: a worker per core, and on CPUs small images.

    >>> shared_memory_needed(2, []), round(shared_memory_needed(64, [object()]))
    (256, 4704)
    """
    return max(256, cores * WORKER_MIB) if gpus else 256


def probe_torch() -> dict | None:
    """torch's version and backends, from a separate process. None if it cannot be imported."""
    try:
        return run_python(TORCH_PROBE, 120)
    except (TimeoutError, ValueError):
        return None


def run_python(code: str, limit_s: float):
    """The JSON in the last line that this code prints in a fresh Python. Raises ValueError with its last line if it
    fails, and TimeoutError."""
    result = capture([sys.executable, "-c", code], limit_s)
    if result.code is None:
        raise TimeoutError
    said = (result.err if result.code else result.out).strip().splitlines() or ["it said nothing"]
    if result.code:
        raise ValueError(said[-1])
    return json.loads(said[-1])


def peer_problems(gpus: list, torch: dict | None) -> list[str]:
    """Problems of copies from one GPU to the next: some machines corrupt the data, or hang, without an error."""
    if torch is None or min(len(gpus), torch["gpus"]) < 2:
        return []
    try:
        wrong = run_python(PEER_PROBE, PEER_LIMIT_S)
    except TimeoutError:
        return [f"copying 1 MiB from one GPU to the next did not finish within {PEER_LIMIT_S:g} s: {OVER_PCIE}"]
    except ValueError as error:
        return [f"copying 1 MiB from one GPU to the next fails: {str(error)[:200]}"]
    return [f"copying 1 MiB from GPU {pair} changes the data: {OVER_PCIE}" for pair in wrong]


def link_lines(links: dict | None) -> list[str]:
    """How the GPUs are attached, a line for each kind."""
    if links is None:
        return []
    by_kind: dict[str, list[str]] = {}
    for gpu in links["gpus"]:
        by_kind.setdefault(attached_in_words(gpu), []).append(str(gpu["index"]))
    found = [f"GPU {', '.join(who)}: {words}" for words, who in by_kind.items()]
    by_kind = {}
    for pair in links["pairs"]:
        over = "NVLink" if pair["nvlink"] else f"PCIe ({pair['path'] or 'path unknown'})"
        words = f"{over}, peer to peer {pair['peer_to_peer'] or 'unknown'}"
        by_kind.setdefault(words, []).append("–".join(map(str, pair["gpus"])))
    return found + [f"GPU {', '.join(who)}: {words}" for words, who in by_kind.items()]


def attached_in_words(gpu: dict) -> str:
    """One GPU's link to the host, and the settings that affect its speed; unknown values are left out.

    >>> attached_in_words({"pcie_generation": 1, "pcie_generation_max": 4, "pcie_width": 8, "pcie_width_max": 16,
    ...                    "nvlinks": 0, "ecc": True, "persistence": False, "mig": False})
    'PCIe 1 × 8 now, 4 × 16 at most; ECC on; persistence mode off (its first use takes seconds: nvidia-smi -pm 1)'
    """
    now, most = ([gpu[f"pcie_{what}{which}"] for what in ("generation", "width")] for which in ("", "_max"))
    words = [f"PCIe {now[0]} × {now[1]}" + (f" now, {most[0]} × {most[1]} at most" if most != now else "")]
    words = words if None not in now + most else []
    words += [f"{gpu['nvlinks']} NVLinks"] if gpu["nvlinks"] else []
    words += [] if gpu["ecc"] is None else [f"ECC {'on' if gpu['ecc'] else 'off'}"]
    if gpu["persistence"] is False:
        words.append("persistence mode off (its first use takes seconds: nvidia-smi -pm 1)")
    words += ["MIG"] if gpu["mig"] else []
    return "; ".join(words) or "unknown"


def gpu_line(gpus: list, driver: str | None) -> str:
    if not gpus:
        return f"none. {why_no_gpu()}"
    sizes = {
        gpu: "memory unknown" if gpu.memory_total_gib is None else f"{gpu.memory_total_gib:.1f} GiB" for gpu in gpus
    }
    return f"{', '.join(f'{gpu.index}: {gpu.name} {size}' for gpu, size in sizes.items())}; driver {driver}"


def torch_line(torch: dict | None) -> str:
    if torch is None:
        return "missing, or cannot be imported"
    backends = [name for name in ("gloo", "nccl") if torch[name]]
    with_gpus = f"ROCm {torch['rocm']}" if torch["rocm"] else f"CUDA {torch['cuda'] or 'not built in'}"
    return f"{torch['version']}, {with_gpus}, sees {torch['gpus']} GPUs, {' and '.join(backends)}"


def horovod_line(found: Status) -> str:
    if found.ready:
        mpi = f" ({mpirun.absent() or 'mpirun is here'})" if mpi_built() else ""
        return f"{found.horovod}, fits this torch; uses {' and '.join(installed_with())}{mpi}"
    cached = "; a wheel for this torch is in the cache" if found.cached_wheel else ""
    return f"{found.horovod or 'not installed'} ({found.state}){cached}"


def verdict(mode: str, gpus: list, torch: dict | None) -> str:
    if torch is None:
        return "no: torch is missing"
    if MODES[mode].needs and not (found := status()).ready:
        return f"no: {STATES.get(found.state, found.state)}"
    if gpus and torch["gpus"]:
        return f"yes, up to GPUS={MODES[mode].max_devices or len(gpus)}; more with DEVICE=cpu"
    return "yes, with CPU processes"


def why_gpus_unusable(gpus: list) -> str:
    """Why not all GPUs can be used, as in a run's error; "" if they can."""
    try:
        require_torch(RunConfig())
        require_no_amd(RunConfig())
        if gpus:
            require_fit(RunConfig(), gpus)
    except UserError as error:
        return str(error)
    return ""


def find_problems(gpus: list, torch: dict | None) -> list[str]:
    problems = []
    if torch is None:
        problems.append("torch cannot be imported: run `make setup`, or `pip install torch torchvision`")
    elif mismatch := why_gpus_unusable(gpus):
        problems.append(mismatch)
    elif gpus and not torch["gpus"]:
        problems.append("NVML shows GPUs, but torch sees none: python -c 'import torch; torch.cuda.init()' shows why")
    if why := why_not_meant():
        problems.append(why)
    problems += lost_gpus() + [remark for remark in [order_remark(RunConfig())] if remark]
    if not problems:
        problems += peer_problems(gpus, torch)
    if torch is not None and not (found := status()).ready:
        compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
        remedy = (
            "run `bench install-horovod`" if compiler else "install a C++ compiler (g++), then `bench install-horovod`"
        )
        problems.append(f"{STATES.get(found.state, found.state)}: {remedy}")
    return problems
