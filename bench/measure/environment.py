"""The machine of a run, for its record: processor, GPUs, versions, revision, threads, variables.

`collect_machine` needs no torch. Nothing here raises because something is absent: the value is None, or empty.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.files import PROC
from bench.measure import nccl, nvml
from bench.measure.cgroup import CGROUP, groups, memory_limit, text_of

REPOSITORY = Path(__file__).resolve().parents[2]
# Modules that no rank imports: studies, reports, the course.
NO_RANKS = ("__main__.py", "cli", "course", "mistakes/scripts", "proof", "report", "studies")

PACKAGES = ("torch", "torchvision", "horovod", "numpy", "pandas", "matplotlib", "psutil", "nvidia-ml-py")
OF_MODELS = ("keras", "timm")  # recorded if a model needs them, so if they are loaded
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")  # they decide which kernels run
VARIABLES = (
    *("OMP_", "GOMP_", "MKL_", "KMP_", "GLOO_", "NCCL_", "HOROVOD_", "CUDA_", "TORCH_", "PYTORCH_", "MALLOC_"),
    *("OMPI_MCA_btl", "OMPI_MCA_coll", "OMPI_MCA_hwloc_", "OMPI_MCA_mpi_", "OMPI_MCA_pml"),  # not where it was started
    "LD_PRELOAD",
)
SECRET_NAME = re.compile("KEY|SECRET|TOKEN|PASS|CRED|AUTH", re.IGNORECASE)
ADDRESS = re.compile(r"://|@|\d+\.\d+\.\d+\.\d+|[0-9a-f]*:[0-9a-f]*:[0-9a-f]+", re.IGNORECASE)  # a URL, IPv4, IPv6
# Variables that every start of Horovod sets again: ranks, and rendezvous addresses.
NOISE = re.compile(r"HOROVOD_(GLOO_RENDEZVOUS_|HOSTNAME|TIMELINE$|(LOCAL_|CROSS_)?(RANK|SIZE)$)")


def cores_in_words(count: int | None, kind: str = "") -> str:
    """None: the number is unknown.

    >>> cores_in_words(1), cores_in_words(2, "usable"), cores_in_words(None)
    ('1 core', '2 usable cores', 'unknown cores')
    """
    return " ".join([str(count or "unknown"), *filter(None, [kind]), "core" if count == 1 else "cores"])


def collect_environment() -> dict[str, Any]:
    """JSON-able: `collect_machine()`, the hash of the code, and what torch adds."""
    import torch

    found, has_gpu = collect_machine(), torch.cuda.is_available()
    found["versions"] |= {
        "torch": str(torch.__version__),  # with its build: 2.6.0+cpu
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()) if has_gpu else None,
        "nccl": ".".join(map(str, nccl.loaded_version() or ())) or None if has_gpu else None,
    }
    threads = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}
    return found | {"source_sha256": source_hash(), "threads": threads}


def collect_machine() -> dict[str, Any]:
    """Facts that need no torch, JSON-able. driver_note: why there is no NVIDIA driver. devices: in the order of
    `nvml.visible_gpus`."""
    driver_version, driver_note = nvml.nvml_state()
    return {
        "machine": describe_machine(),
        "driver_version": driver_version,
        "driver_note": driver_note,
        "devices": [asdict(gpu) for gpu in nvml.visible_gpus()],
        "gpu_links": nvml.topology(),
        "versions": package_versions(),
        "git": git_state(REPOSITORY),
        "variables": relevant_variables(dict(os.environ)),
    }


@functools.cache
def source_hash(*more: str, text: bool = True) -> str:
    """sha256 over the Python files that a rank or its launcher can import, committed or not, at the first call.

    more: entries of NO_RANKS to include. text: whether comments and docstrings count; without them it takes one or two
    seconds the first time, and depends on the Python version.
    """
    digest = hashlib.sha256()
    package = REPOSITORY / "bench"
    for path in source_files(*more):
        code = path.read_bytes() if text else _without_text(path.read_bytes())
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + code + b"\0")
    return digest.hexdigest()


@functools.cache
def _without_text(source: bytes) -> bytes:
    """A hash of the code."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return hashlib.sha256(ast.dump(tree).encode()).digest()


def source_files(*more: str) -> list[Path]:
    """The files of ``source_hash``. External launchers start bench/cli/actions/joined*.py as ranks."""
    package = REPOSITORY / "bench"
    others = [str(package / name) for name in NO_RANKS if name not in more]
    begins = tuple(other if other.endswith(".py") else f"{other}{os.sep}" for other in others)
    return [
        path for path in sorted(package.rglob("*.py"))
        if not str(path).startswith(begins) or path.match("cli/actions/joined*.py")
    ]  # fmt: skip


def describe_machine() -> dict[str, Any]:
    import psutil

    return {
        "platform": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu_model": cpu_model(),
        "cpu_flags": cpu_flags(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "cpu_quota_cores": cpu_quota(),
        "ram_gib": round(psutil.virtual_memory().total / nvml.GIB, 2),
        "memory_limit_gib": (limit := memory_limit()) and round(limit / nvml.GIB, 2),
    }


def cpu_flags() -> list[str]:
    return [flag for flag in CPU_FLAGS if flag in _first_cpu().get("flags", "").split()]


@functools.cache
def cpu_model() -> str:
    """The processor's name, or its architecture if it has no name (many ARM machines)."""
    name = _first_cpu().get("model name")
    if not name and shutil.which("sysctl"):  # macOS
        name = (_output(["sysctl", "-n", "machdep.cpu.brand_string"], timeout_s=5) or "").strip()
    return name or platform.processor() or platform.machine()


@functools.cache
def _first_cpu() -> dict[str, str]:
    """The first block of /proc/cpuinfo only: the kernel takes time to write each core's block."""
    found = {}
    try:
        with open(PROC / "cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    break
                key, _, value = line.partition(":")
                found[key.strip()] = value.strip()
    except OSError:
        return {}
    return found | {"flags": found.get("flags") or found.get("Features", "")}  # x86 or ARM


def usable_cores() -> int:
    """The cores that this process may use, by its CPU affinity and its container's quota; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def cpu_quota(proc: Path = PROC, cgroup: Path = CGROUP) -> float | None:
    """The smallest CPU quota, in cores, of the control groups of this process; None without a limit.

    A group has it in cpu.max (version 2) or cpu.cfs_quota_us (version 1).
    """
    quotas = []
    for group in groups("cpu", proc, cgroup):
        old = " ".join(text_of(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        numbers = (text_of(group / "cpu.max") or old).split()  # '150000 100000': 1.5 cores; 'max', '-1': no limit
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers) and int(numbers[1]):
            quotas.append(int(numbers[0]) / int(numbers[1]))
    return min(quotas, default=None)


def cuda_identity(index: int) -> dict[str, str | None]:
    """UUID and PCI bus of CUDA's GPU `index`, as `nvml.open_device` takes them."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    uuid, *bus = (getattr(properties, name, None) for name in ("uuid", "pci_domain_id", "pci_bus_id", "pci_device_id"))
    return {
        "uuid": None if uuid is None else str(uuid),
        "pci_bus_id": None if None in bus else "{:08X}:{:02X}:{:02X}.0".format(*bus),
    }


def package_versions() -> dict[str, str | None]:
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *(name for name in OF_MODELS if name in sys.modules)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state(repository: Path) -> dict[str, Any] | None:
    """{revision: None before the first commit, dirty: whether bench/ differs from it}; None outside git. The repository
    must contain `bench`: an installed copy may be in a folder of another repository."""
    if not (repository / ".git").exists():
        return None
    question = ["status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", "bench"]
    text = _output(["git", "--no-optional-locks", "-C", str(repository), *question], timeout_s=2)
    if text is None:
        return None
    revision = re.search(r"^# branch\.oid ([0-9a-f]+)$", text, re.MULTILINE)
    return {
        "revision": revision.group(1) if revision else None,
        "dirty": any(not line.startswith("#") for line in text.splitlines()),
    }


def relevant_variables(environ: dict[str, str]) -> dict[str, str]:
    """The variables that affect a run, without secrets and addresses; of a path only its last name.

    >>> relevant_variables({"NCCL_COMM_ID": "10.0.0.1:29", "TORCH_HOME": "/home/jane/t", "OMP_PLACES": "{0:4}"})
    {'OMP_PLACES': '{0:4}', 'TORCH_HOME': 't'}
    """
    return {
        name: ":".join(Path(part).name if "/" in part else part for part in value.split(":"))
        for name, value in sorted(environ.items())
        if name.startswith(VARIABLES)
        and not SECRET_NAME.search(name)
        and not ADDRESS.search(value)
        and not NOISE.match(name)
    }


def _output(command: list[str], timeout_s: float) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
