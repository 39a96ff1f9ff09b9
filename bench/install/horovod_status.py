"""Horovod's state for this interpreter, in milliseconds and without torch, by the wheel's name:
`horovod-0.28.1+torch2.14.1.cu130.gloo.mpi.avx-cp311-cp311-linux_x86_64.whl`."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError
from bench.install import toolchain
from bench.install.torch_build import torch_version_file
from bench.measure.nvml import visible_gpus
from bench.process.tree import capture

VERSION = "0.28.1"
WORDS = {"nccl": "NCCL", "mpi": "MPI", "gloo": "Gloo"}  # what a Horovod can talk over
IMPORT_S = 300.0  # for a fresh process to import torch, or Horovod, on a busy machine
FOR_CPU_ONLY = "for Horovod on CPUs only run `bench install-horovod --gpu none`"
ASK = f"import horovod.torch as hvd; print(*(name for name in {tuple(WORDS)} if getattr(hvd, name + '_built')()))"


@dataclass(frozen=True)
class Status:
    """state: "ready"; "missing"; "no torch"; "other torch" (built for another version); "no nccl" (built for CPUs, and
    there is a GPU); "no mpi"; "other cpu" (uses instructions this CPU lacks); "other gpu"; "unknown build" (not ours:
    only an import can tell)."""

    state: str
    horovod: str | None  # installed version, as in "0.28.1+torch2.14.1.cu130.gloo.avx"
    torch: str | None  # installed version, as in "2.14.1+cu130"
    label: str | None  # what the right wheel is called after its "+"
    cached_wheel: Path | None  # that wheel, where it has been built before

    @property
    def ready(self) -> bool:
        return self.state == "ready"


def status(gpu: str = "auto", mpi: bool = False) -> Status:
    """`gpu` and `mpi` as in --gpu and --mpi. Raises UserError if the machine does not have what --gpu needs."""
    installed, torch = installed_version(), torch_version()
    if torch is None:
        return Status("no torch", installed, None, None, None)
    version, torch_cuda = torch
    kind = wanted_kind(gpu, torch_cuda)
    simd = bool(toolchain.simd_flags())
    found = {one.compute_capability.replace(".", "") for one in visible_gpus() if one.compute_capability}
    archs = tuple(sorted(found, key=int))  # as in ("80", "90")
    if gpu == "here" and not archs:
        raise UserError("--gpu here builds for the GPUs that are visible here, and none is: use --gpu nccl or none")
    label = version_label(version, kind, simd, archs if gpu == "here" else (), mpi)
    return Status(judge(installed, version, kind, simd, archs, mpi), installed, version, label, cached_wheel(label))


def wanted_kind(choice: str, torch_cuda: str | None) -> str:
    """Backend for --gpu: "gloo" (CPUs) or "nccl" (GPUs and CPUs). Raises UserError for nccl on a torch without CUDA."""
    if choice in ("nccl", "here") and not torch_cuda:
        remedy = f"install one with CUDA (`make setup TORCH=cuda`), or {FOR_CPU_ONLY}"
        raise UserError(f"the installed torch was built without CUDA, which NCCL needs: {remedy}")
    if choice == "auto":
        return "nccl" if torch_cuda and gpu_present() else "gloo"
    return "gloo" if choice == "none" else "nccl"


def gpu_present() -> bool:
    """Whether NVML finds a GPU; without pynvml, whether the driver shows one."""
    try:
        import pynvml
    except ImportError:
        return os.path.exists("/dev/nvidia0")
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetCount() > 0
        finally:
            pynvml.nvmlShutdown()
    return False


def torch_version() -> tuple[str, str | None] | None:
    """(version, CUDA version or None) from torch's version.py; None without torch."""
    text = torch_version_file()
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    with_cuda = re.search(r"^cuda.*= '([^']+)'", text, re.MULTILINE)
    return (version.group(1), with_cuda.group(1) if with_cuda else None) if version else None


def torch_rocm() -> str | None:
    found = re.search(r"^(?:hip|rocm)\b.*= '([^']+)'", torch_version_file(), re.MULTILINE)
    return found.group(1) if found else None


def version_label(torch: str, kind: str, simd: bool, archs: tuple[str, ...] = (), mpi: bool = False) -> str:
    """A wheel's local version: torch's version, backends, AVX, and the GPUs if it is for specific ones."""
    parts = re.split(r"[^a-z0-9]+", torch.lower()) + [kind] + ["mpi"] * mpi + ["avx"] * simd + [f"sm{a}" for a in archs]
    return "torch" + ".".join(str(int(part)) if part.isdigit() else part for part in parts)


def archs_of(version: str) -> list[str]:
    return re.findall(r"\.sm(\d+)\b", version)


def judge(installed: str | None, torch: str, kind: str, simd: bool, archs: tuple = (), mpi: bool = False) -> str:
    """The state (see Status) of an installed version. NCCL wheels also work on CPUs. archs: of the GPUs here."""
    if installed is None:
        return "missing"
    found = re.fullmatch(r"[^+]+\+(torch[a-z0-9.]+?)\.(gloo|nccl)(\.mpi)?(\.avx)?(?:\.sm\d+)*", installed)
    if not found:
        return "unknown build"
    built_for, built_kind, has_mpi, needs_avx = found.groups()
    if f"{built_for}.gloo" != version_label(torch, "gloo", False):
        return "other torch"
    if kind == "nccl" and built_kind == "gloo":
        return "no nccl"
    if mpi and not has_mpi:
        return "no mpi"
    if kind == "nccl" and (built := archs_of(installed)) and not {*archs} <= {*built}:
        return "other gpu"
    return "other cpu" if needs_avx and not simd else "ready"


def nccl_built() -> bool:
    """Without NCCL, Horovod takes no GPU tensors."""
    return "NCCL" in installed_with()


def mpi_built() -> bool:
    """Without MPI, Horovod has no Adasum."""
    return "MPI" in installed_with()


def installed_with() -> list[str]:
    """The backends of the installed Horovod, as in ["MPI", "Gloo"]. A foreign build is imported to find out."""
    return built_with((installed_version() or "").partition("+")[2]) or query_horovod()


def built_with(label: str) -> list[str]:
    """The backends by a wheel's label, as in ["MPI", "Gloo"]; empty for another label."""
    found = re.match(r"torch[a-z0-9.]+?\.(gloo|nccl)(?:\.(mpi))?\b", label)
    return [word for name, word in WORDS.items() if name in (*found.groups(), "gloo")] if found else []


@functools.cache
def query_horovod() -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", ASK]
    return [WORDS[name] for name in capture(command, IMPORT_S).out.strip().rpartition("\n")[2].split() if name in WORDS]


def cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "data-parallel-bench"


def cached_wheel(label: str) -> Path | None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    system = re.sub(r"[-.]", "_", sysconfig.get_platform())
    found = sorted((cache_dir() / "wheels").glob(f"horovod-{VERSION}+{label}-{tag}-*-{system}.whl"))
    return found[0] if found else None


def installed_version(package: str = "horovod") -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None
