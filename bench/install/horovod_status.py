"""Horovod's state for this interpreter, read in milliseconds and without importing torch.

A wheel's own name says what it was built for, so names are all that is compared:
`horovod-0.28.1+torch2.14.1.cu130.gloo.mpi.avx-cp311-cp311-linux_x86_64.whl`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError
from bench.install import cuda, toolchain
from bench.process.tree import capture

VERSION = "0.28.1"
WORDS = {"nccl": "NCCL", "mpi": "MPI", "gloo": "Gloo"}  # what a Horovod can talk over
IMPORT_S = 300.0  # for a fresh process to import torch, or Horovod, on a busy machine
ASK = f"import horovod.torch as hvd; print(*(name for name in {tuple(WORDS)} if getattr(hvd, name + '_built')()))"


@dataclass(frozen=True)
class Status:
    """Horovod's state for this interpreter.

    state: "ready"; "missing"; "no torch"; "other torch" (built for another version); "no nccl" (built for
    CPUs, and there is a GPU); "no mpi" (built without, and it is asked for); "other cpu" (uses instructions this CPU
    lacks); "other gpu" (built for the GPUs of another machine alone); "unknown build" (not built by `bench
    install-horovod`: only an import can tell).
    """

    state: str
    horovod: str | None  # installed version, as in "0.28.1+torch2.14.1.cu130.gloo.avx"
    torch: str | None  # installed version, as in "2.14.1+cu130"
    label: str | None  # what the right wheel is called after its "+"
    cached_wheel: Path | None  # that wheel, where it has been built before

    @property
    def ready(self) -> bool:
        return self.state == "ready"


def status(gpu: str = "auto", mpi: bool = False) -> Status:
    """What is installed and cached; `gpu` and `mpi` as in --gpu and --mpi. Raises UserError for nccl on a torch without
    CUDA, and for here where no GPU is visible."""
    installed, torch = installed_version(), torch_version()
    if torch is None:
        return Status("no torch", installed, None, None, None)
    version, torch_cuda = torch
    kind = cuda.wanted_kind(gpu, torch_cuda)
    simd = bool(toolchain.simd_flags())
    archs = cuda.archs_here()
    if gpu == "here" and not archs:
        raise UserError("--gpu here builds for the GPUs that are visible here, and none is: use --gpu nccl or none")
    label = version_label(version, kind, simd, archs if gpu == "here" else (), mpi)
    return Status(judge(installed, version, kind, simd, archs, mpi), installed, version, label, cached_wheel(label))


def torch_version() -> tuple[str, str | None] | None:
    """(version, CUDA version or None) of the installed torch, from its version.py; None without torch."""
    text = _torch_version_file()
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    with_cuda = re.search(r"^cuda.*= '([^']+)'", text, re.MULTILINE)
    return (version.group(1), with_cuda.group(1) if with_cuda else None) if version else None


def torch_rocm() -> str | None:
    """None for a torch that is not built for AMD's GPUs."""
    found = re.search(r"^(?:hip|rocm)\b.*= '([^']+)'", _torch_version_file(), re.MULTILINE)
    return found.group(1) if found else None


def _torch_version_file() -> str:
    """ "" without torch."""
    spec = importlib.util.find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    return path.read_text() if path and path.is_file() else ""


def version_label(torch: str, kind: str, simd: bool, archs: tuple[str, ...] = (), mpi: bool = False) -> str:
    """The local version of a wheel: torch's version, what it communicates by, whether it needs AVX, and the GPUs it is
    for, where it is not for all that torch is for.

    >>> version_label("2.14.1+cpu", "gloo", True, mpi=True)
    'torch2.14.1.cpu.gloo.mpi.avx'

    >>> version_label("2.14.1+cu130", "gloo", True)
    'torch2.14.1.cu130.gloo.avx'
    >>> version_label("2.14.1+cu130", "nccl", False, ("90",))
    'torch2.14.1.cu130.nccl.sm90'
    """
    parts = re.split(r"[^a-z0-9]+", torch.lower()) + [kind] + ["mpi"] * mpi + ["avx"] * simd + [f"sm{a}" for a in archs]
    return "torch" + ".".join(str(int(part)) if part.isdigit() else part for part in parts)


def archs_of(version: str) -> list[str]:
    """As in ["90"]; empty for a wheel that is for all that torch is for."""
    return re.findall(r"\.sm(\d+)\b", version)


def judge(
    installed: str | None, torch: str, kind: str, simd: bool, archs: tuple[str, ...] = (), mpi: bool = False
) -> str:
    """The state (see Status) of an installed version against what is wanted. NCCL wheels serve CPUs too, and those with
    MPI whoever asks for none. archs: of the GPUs here.

    >>> judge("0.28.1+torch2.6.0.gloo", "2.6.0", "gloo", simd=True)
    'ready'
    >>> judge("0.28.1+torch2.6.0.gloo", "2.7.0", "gloo", simd=True)
    'other torch'
    >>> judge("0.28.1", "2.7.0", "gloo", simd=True)
    'unknown build'
    """
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
    """Whether the installed Horovod talks NCCL: without it, it takes no tensors of a GPU."""
    return "NCCL" in installed_with()


def mpi_built() -> bool:
    """Whether the installed Horovod talks MPI, under mpirun: without it, it has no Adasum."""
    return "MPI" in installed_with()


def installed_with() -> list[str]:
    """What the installed Horovod can talk over, as in ["MPI", "Gloo"]: by the name of its wheel; a build that is not
    ours is asked in a fresh process, and has nothing where it does not import."""
    return built_with((installed_version() or "").partition("+")[2]) or _says()


def built_with(label: str) -> list[str]:
    """The same of the label of a wheel of ours, which always has Gloo; empty for another label.

    >>> built_with("torch2.14.1.cpu.gloo.mpi.avx"), built_with("torch2.14.1.cu130.nccl"), built_with("local")
    (['MPI', 'Gloo'], ['NCCL', 'Gloo'], [])
    """
    found = re.match(r"torch[a-z0-9.]+?\.(gloo|nccl)(?:\.(mpi))?\b", label)
    return [word for name, word in WORDS.items() if name in (*found.groups(), "gloo")] if found else []


@functools.cache
def _says() -> list[str]:
    """What a build that is not ours says of itself; asked once per process."""
    command = [sys.executable, "-W", "ignore", "-c", ASK]
    return [WORDS[name] for name in capture(command, IMPORT_S).out.strip().rpartition("\n")[2].split() if name in WORDS]


def cache_dir() -> Path:
    """Where wheels, the downloaded source and build logs are kept: under $XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "data-parallel-bench"


def cached_wheel(label: str) -> Path | None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    system = re.sub(r"[-.]", "_", sysconfig.get_platform())
    found = sorted((cache_dir() / "wheels").glob(f"horovod-{VERSION}+{label}-{tag}-*-{system}.whl"))
    return found[0] if found else None


def installed_version() -> str | None:
    try:
        return importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
