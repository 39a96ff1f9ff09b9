"""Which torch build a new environment gets. PyPI's Linux wheels are built for one CUDA (3 GB), which the lock pins;
PyTorch's indexes have builds for CPUs and other CUDA versions. A driver supports CUDA up to its major version, and a
build has code for some GPU generations: so the driver is asked before the download. Standard library only, in the
syntax of Python 3.8."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple


class Build(NamedTuple):
    """lowest, highest: compute capabilities with code. last: the last torch version with this build."""

    lowest: tuple[int, int]
    highest: tuple[int, int]
    last: tuple[int, int] = (99, 0)


# Newest first: "PyTorch CUDA Support Matrix" in PyTorch's RELEASE.md, Linux on x86. The driver translates for newer.
BUILDS = {"cu130": Build((7, 5), (99, 0)), "cu128": Build((7, 5), (12, 9), (2, 11)), "cu126": Build((5, 0), (9, 9))}
CHOICES = ("auto", "cpu", "cuda", *BUILDS)
INDEX = "https://download.pytorch.org/whl/cpu"  # the other builds are beside it
LOCK = Path(__file__).with_name("requirements.lock")
OLDEST = (2, 7)  # supported torch; the same in pyproject.toml
OTHER_INDEX = "BENCH_TORCH_INDEX"  # environment variable: a mirror of that index
LIMIT_S = 5.0  # to read the index's page
OF_CUDA = re.compile(r"(torch|torchvision|triton|cuda-.*|nvidia-(?!ml-py==).*)==")  # entries of a lock


class NoBuild(Exception):
    """No build for this machine's driver and GPUs; a one-line message."""


class Driver(NamedTuple):
    """version: "535.183.01". cuda: the newest supported, (12, 2). capabilities: of its GPUs. Empty if unknown."""

    version: str = ""
    cuda: tuple[int, int] | None = None
    capabilities: tuple[tuple[int, int], ...] = ()


def torch_folder() -> Path:
    """Where torch is installed; a missing folder without it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else Path("/nowhere")


def torch_version_file() -> str:
    path = torch_folder() / "version.py"
    return path.read_text() if path.is_file() else ""


def index(build: str = "cpu") -> str:
    of_cpu = os.environ.get(OTHER_INDEX, INDEX).rstrip("/")
    return of_cpu if build == "cpu" else f"{of_cpu.rpartition('/')[0]}/{build}"


def has_driver() -> bool:
    return os.path.exists("/dev/nvidiactl") or bool(shutil.which("nvidia-smi")) or load_nvml() is not None


def load_nvml():
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libnvidia-ml.so.1")


def ask_driver() -> Driver:
    """Ask NVML's C interface: nothing is installed yet."""
    library = load_nvml()

    def call_driver(function: str, *arguments) -> bool:
        found = getattr(library, function, None)  # an old driver lacks some functions
        return found is not None and found(*arguments) == 0

    if not call_driver("nvmlInit_v2"):
        return Driver()
    text, number, count = ctypes.create_string_buffer(96), ctypes.c_int(), ctypes.c_uint()
    version = text.value.decode() if call_driver("nvmlSystemGetDriverVersion", text, len(text)) else ""
    served = call_driver("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
    served = served or call_driver("nvmlSystemGetCudaDriverVersion", ctypes.byref(number))
    capabilities = []
    for position in range(count.value if call_driver("nvmlDeviceGetCount_v2", ctypes.byref(count)) else 0):
        handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if call_driver("nvmlDeviceGetHandleByIndex_v2", position, ctypes.byref(handle)) and call_driver(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        ):
            capabilities.append((major.value, minor.value))
    cuda = (number.value // 1000, number.value % 1000 // 10) if served else None
    return Driver(version, cuda, tuple(capabilities))


def fitting(driver: Driver, torch: str) -> list[str]:
    """The builds of a torch version that the driver and its GPUs support: for most GPUs first, then the newest.

    >>> fitting(Driver(cuda=(12, 2), capabilities=((8, 0),)), "2.11.0"), fitting(Driver(cuda=(11, 4)), "2.14.1")
    (['cu128', 'cu126'], [])
    """
    served = [
        name for name, build in BUILDS.items()
        if build.last >= parts(torch) and (driver.cuda is None or int(name[2:4]) <= driver.cuda[0])
    ]  # fmt: skip
    gpus = driver.capabilities
    fits = {name: sum(BUILDS[name].lowest <= gpu <= BUILDS[name].highest for gpu in gpus) for name in served}
    able = [name for name in served if fits[name] or not driver.capabilities]
    return sorted(able, key=lambda name: -fits[name])  # those that fit as many stay in their order


def parts(version: str) -> tuple[int, ...]:
    """The first two numbers of a torch version, else ()."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def too_old(version: str) -> str:
    """The oldest supported torch if this one is older, else ""."""
    return ".".join(map(str, OLDEST)) if () < parts(version) < OLDEST else ""


def installed(folder: Path, lock: str) -> str | None:
    """The build in an environment; None without torch."""
    for path in folder.glob("lib/python3*/site-packages/torch/version.py"):
        found = re.search(r"^__version__ = '[^'+]+\+(cpu|cu\d+)'", path.read_text(), re.MULTILINE)
        return named(found.group(1), lock) if found else "cuda"
    return None


def named(build: str, lock: str) -> str:
    """The lock's own build is called cuda."""
    return "cuda" if build == own_build(lock) else build


def own_build(lock: str) -> str:
    """The build that a lock pins, as in cu130; "" if none."""
    found = re.search(r"^cuda-toolkit==(\d+)\.(\d+)", lock, re.MULTILINE)
    return "cu{}{}".format(*found.groups()) if found else ""


def versions(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^(torch|torchvision)==([^\s;]+)", lock, re.MULTILINE))


def without_cuda(lock: str) -> str:
    """A lock's text without torch and the packages of its CUDA build."""
    return "".join(entry for entry in re.split(r"^(?=\S)", lock, flags=re.MULTILINE) if not OF_CUDA.match(entry))


def choose(asked: str, folder: Path, lock: str) -> tuple[str, str]:
    """(the build or "cuda" for the lock's own, a line to print or ""). auto keeps an installed build. Raises
    NoBuild."""
    if sys.platform != "linux":
        return "cuda", ""  # PyPI's build for macOS is for CPUs; it has no other name
    if asked in BUILDS and BUILDS[asked].last < parts(torch := versions(lock)["torch"]):
        raise NoBuild(f"TORCH={asked}: PyTorch {torch} has no such build: use TORCH=auto, which asks the driver")
    if asked != "auto":
        return named(asked, lock), ""
    if before := installed(folder, lock):
        return before, ""
    if has_driver():
        return for_driver(ask_driver(), lock)
    if why := why_not_there(versions(lock)["torch"], "cpu"):
        return "cuda", f"No NVIDIA driver, but no CPU build of PyTorch ({why}): taking the CUDA build (3 GB)"
    return "cpu", "No NVIDIA driver: taking PyTorch's CPU build (TORCH=cuda for the other)"


def for_driver(driver: Driver, lock: str) -> tuple[str, str]:
    """``choose`` for this driver: the best build that fits and exists."""
    torch, own = versions(lock)["torch"], own_build(lock)
    builds = fitting(driver, torch)
    if driver.cuda is None or not own or builds[:1] == [own]:
        return "cuda", ""
    has = ", ".join(sorted({f"{major}.{minor}" for major, minor in driver.capabilities})) or "unknown"
    machine = f"NVIDIA driver {driver.version} (CUDA {driver.cuda[0]}.{driver.cuda[1]}), compute capability {has}"
    if not builds:
        remedy = "update the driver (580 for CUDA 13, 525 for CUDA 12), or use TORCH=cpu"
        raise NoBuild(f"no build of PyTorch {torch} fits {machine}: {remedy}")
    for build in builds:
        why = "" if build == own else why_not_there(torch, build)
        if not why:
            return named(build, lock), f"{machine}: taking PyTorch's build {build}"
    remedy = f"update the driver, name a mirror in {OTHER_INDEX}, or use TORCH=cpu"
    raise NoBuild(f"{machine}: PyTorch's build {' or '.join(builds)} is needed and not available ({why}): {remedy}")


def why_not_there(version: str, build: str) -> str:
    """Why the index has no such build for this Python and machine; "" if it has."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = rf"torch-{re.escape(version)}(%2B|\+){build}-{tag}-{tag}-[\w.]*{platform.machine()}"
    page, until, place = b"", time.monotonic() + LIMIT_S, index(build)
    try:
        with urllib.request.urlopen(f"{place}/torch/", timeout=LIMIT_S) as answer:
            while chunk := answer.read1(1 << 16):
                page += chunk
                if time.monotonic() > until:
                    return f"{place} takes more than {LIMIT_S:g} s"
    except (OSError, ValueError) as error:  # no network, no such page, an invalid address
        return f"{place}: {getattr(error, 'reason', error)}"
    return "" if re.search(name, page.decode(errors="replace")) else f"{place} has no torch {version} for {tag}"
