"""Which build of PyTorch an environment of our own gets: for one CUDA (3 GB with its libraries), or for CPUs (a tenth).

PyPI's wheels for Linux are built with one CUDA, which the lock pins with its libraries and checksums. The builds for
CPUs alone, and for other versions of CUDA, are on PyTorch's own indexes, with the same version and `+cpu` or `+cu126`
after it. A driver serves the CUDA of its own major version and older ones, and each build has code for some
generations of GPUs: so the driver is asked before 3 GB are fetched.

Standard library only, and no syntax newer than Python 3.8: see packages.py.
"""

from __future__ import annotations

import ctypes
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
    """lowest, highest: the compute capabilities of the GPUs that it has code for. last: the last torch that has it."""

    lowest: tuple[int, int]
    highest: tuple[int, int]
    last: tuple[int, int] = (99, 0)


# The newest first, by the table "PyTorch CUDA Support Matrix" in RELEASE.md of PyTorch, for Linux on x86. The driver
# translates the code for 12.0 in cu130 for newer GPUs.
BUILDS = {"cu130": Build((7, 5), (99, 0)), "cu128": Build((7, 5), (12, 9), (2, 11)), "cu126": Build((5, 0), (9, 9))}
CHOICES = ("auto", "cpu", "cuda", *BUILDS)
INDEX = "https://download.pytorch.org/whl/cpu"  # the other builds are beside it
LOCK = Path(__file__).with_name("requirements.lock")
OLDEST = (2, 7)  # with which the code runs; pyproject.toml says the same
OTHER_INDEX = "BENCH_TORCH_INDEX"  # in the environment: a mirror of that index
LIMIT_S = 5.0  # to read the index's page; where it takes longer, so would the wheel
OF_CUDA = re.compile(r"(torch|torchvision|triton|cuda-.*|nvidia-(?!ml-py==).*)==")  # entries of a lock


class NoBuild(Exception):
    """There is no build for this machine's driver and GPUs; the message is one line, with what can be done."""


class Driver(NamedTuple):
    """What the NVIDIA driver says of itself. version: as in "535.183.01". cuda: the newest that it serves, as in
    (12, 2). capabilities: of its GPUs, as in [(8, 0)]. Empty, and None, where it does not say."""

    version: str = ""
    cuda: tuple[int, int] | None = None
    capabilities: tuple[tuple[int, int], ...] = ()


def index(build: str = "cpu") -> str:
    of_cpu = os.environ.get(OTHER_INDEX, INDEX).rstrip("/")
    return of_cpu if build == "cpu" else f"{of_cpu.rpartition('/')[0]}/{build}"


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver: its library, its device or its program, of which WSL and containers
    may have one alone."""
    if os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi"):
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def ask_driver() -> Driver:
    """What the driver says through NVML's C interface: nothing is installed yet."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return Driver()

    def tells(function: str, *arguments) -> bool:
        found = getattr(library, function, None)  # an old driver has not every function
        return found is not None and found(*arguments) == 0

    if not tells("nvmlInit_v2"):
        return Driver()
    text, number, count = ctypes.create_string_buffer(96), ctypes.c_int(), ctypes.c_uint()
    version = text.value.decode() if tells("nvmlSystemGetDriverVersion", text, len(text)) else ""
    served = tells("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
    served = served or tells("nvmlSystemGetCudaDriverVersion", ctypes.byref(number))
    capabilities = []
    for position in range(count.value if tells("nvmlDeviceGetCount_v2", ctypes.byref(count)) else 0):
        handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if tells("nvmlDeviceGetHandleByIndex_v2", position, ctypes.byref(handle)) and tells(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        ):
            capabilities.append((major.value, minor.value))
    cuda = (number.value // 1000, number.value % 1000 // 10) if served else None
    return Driver(version, cuda, tuple(capabilities))


def fitting(driver: Driver, torch: str) -> list[str]:
    """The builds of a version of torch that a driver serves and that have code for its GPUs, the best first: for the
    most of them, then the newest.

    >>> fitting(Driver(cuda=(12, 2), capabilities=((8, 0),)), "2.11.0")
    ['cu128', 'cu126']
    >>> fitting(Driver(cuda=(12, 2), capabilities=((8, 0),)), "2.14.1")
    ['cu126']
    >>> fitting(Driver(cuda=(11, 4)), "2.14.1"), fitting(Driver(cuda=(13, 0), capabilities=((7, 0),)), "2.14.1")
    ([], ['cu126'])
    """
    served = [
        name for name, build in BUILDS.items()
        if build.last >= parts(torch) and (driver.cuda is None or int(name[2:4]) <= driver.cuda[0])
    ]  # fmt: skip
    fits = {
        name: sum(BUILDS[name].lowest <= one <= BUILDS[name].highest for one in driver.capabilities) for name in served
    }
    able = [name for name in served if fits[name] or not driver.capabilities]
    return sorted(able, key=lambda name: -fits[name])  # those that fit as many stay in their order


def command_for(driver: Driver) -> str:
    """The command that sets up with the build for a driver, as in "`make setup TORCH=cu126`"; "" without one."""
    builds = fitting(driver, versions(LOCK.read_text())["torch"])
    return f"`make setup TORCH={builds[0]}`" if builds else ""


def parts(version: str) -> tuple[int, ...]:
    """The first two numbers of a version of torch; none of what is not one.

    >>> parts("2.14.1+cu130"), parts("?")
    ((2, 14), ())
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def too_old(version: str) -> bool:
    """Whether this torch is older than the oldest that the code runs with.

    >>> too_old("2.6.0+cu124"), too_old("2.7.0a0+git1"), too_old("2.14.1")
    (True, False, False)
    """
    return () < parts(version) < OLDEST


def oldest() -> str:
    return ".".join(map(str, OLDEST))


def installed(folder: Path) -> str | None:
    """The build in an environment, as in cpu and cu126; cuda where torch does not say which. None without torch."""
    for path in folder.glob("lib/python3*/site-packages/torch/version.py"):
        found = re.search(r"^__version__ = '[^'+]+\+(cpu|cu\d+)'", path.read_text(), re.MULTILINE)
        return found.group(1) if found else "cuda"
    return None


def named(build: str | None, lock: str) -> str | None:
    """The lock's own build, PyPI's, is cuda."""
    return "cuda" if build == own_build(lock) else build


def own_build(lock: str) -> str:
    """The build that a lock's text pins, as in cu130; "" where it does not say.

    >>> own_build("cuda-toolkit==13.0.3.0 ; sys_platform == 'linux'")
    'cu130'
    """
    found = re.search(r"^cuda-toolkit==(\d+)\.(\d+)", lock, re.MULTILINE)
    return "cu{}{}".format(*found.groups()) if found else ""


def versions(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^(torch|torchvision)==([^\s;]+)", lock, re.MULTILINE))


def without_cuda(lock: str) -> str:
    """A lock's text without torch and what its build with CUDA needs.

    >>> without_cuda("a==1\\n    --hash=x\\ntorch==2\\n    --hash=y\\nnvidia-ml-py==3\\nnvidia-nccl-cu13==2\\n")
    'a==1\\n    --hash=x\\nnvidia-ml-py==3\\n'
    """
    return "".join(entry for entry in re.split(r"^(?=\S)", lock, flags=re.MULTILINE) if not OF_CUDA.match(entry))


def choose(asked: str, folder: Path, lock: str) -> tuple[str, str]:
    """(the build, a line to print or ""); the lock's own is cuda. asked: one of CHOICES. folder: the environment, whose
    build auto leaves as it is. Raises NoBuild where there is none for this machine's driver and GPUs."""
    if sys.platform != "linux":
        return "cuda", ""  # PyPI's build for macOS is for CPUs; it has no other name
    if asked in BUILDS and BUILDS[asked].last < parts(torch := versions(lock)["torch"]):
        raise NoBuild(f"TORCH={asked}: PyTorch {torch} has no such build: use TORCH=auto, which asks the driver")
    if asked != "auto":
        return named(asked, lock), ""
    if before := installed(folder):
        return named(before, lock), ""
    if has_driver():
        return for_driver(ask_driver(), lock)
    if why := why_not_there(versions(lock)["torch"], "cpu"):
        return "cuda", (
            f"There is no NVIDIA driver here, and PyTorch's build for CPUs cannot be had ({why}): taking the ordinary "
            "build (3 GB); with TORCH=cuda nothing is looked for"
        )
    return "cpu", "There is no NVIDIA driver here: taking PyTorch's build for CPUs (TORCH=cuda for the other)"


def for_driver(driver: Driver, lock: str) -> tuple[str, str]:
    """``choose`` for this driver: the best build that fits and that there is. The lock's own needs no look."""
    torch, own = versions(lock)["torch"], own_build(lock)
    builds = fitting(driver, torch)
    if driver.cuda is None or not own or builds[:1] == [own]:
        return "cuda", ""
    serves = f"the NVIDIA driver {driver.version} serves CUDA {driver.cuda[0]}.{driver.cuda[1]}"
    has = ", ".join(sorted({f"{major}.{minor}" for major, minor in driver.capabilities})) or "not told"
    if not builds:
        raise NoBuild(
            f"{serves}, the GPUs' compute capability is {has}, and no build of PyTorch {torch} fits both: update the "
            "driver (580 or newer for CUDA 13, 525 for CUDA 12), or use TORCH=cpu"
        )
    whys = []
    for build in builds:
        why = "" if build == own else why_not_there(torch, build)
        if not why:
            said = f"{serves[0].upper()}{serves[1:]}, compute capability {has}: taking PyTorch's build {build}"
            return named(build, lock), said
        whys.append(why)
    raise NoBuild(
        f"{serves}, compute capability {has}: this needs PyTorch's build {' or '.join(builds)}, which cannot be had "
        f"({whys[-1]}): update the driver, name a mirror in {OTHER_INDEX}, or use TORCH=cpu"
    )


def why_not_there(version: str, build: str) -> str:
    """Why the index has no such build of this version, for this Python and machine; "" where it has one."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = rf"torch-{re.escape(version)}(%2B|\+){build}-{tag}-{tag}-[\w.]*{platform.machine()}"
    page, until, place = b"", time.monotonic() + LIMIT_S, index(build)
    try:
        with urllib.request.urlopen(f"{place}/torch/", timeout=LIMIT_S) as answer:
            while chunk := answer.read1(1 << 16):
                page += chunk
                if time.monotonic() > until:
                    return f"{place} takes more than {LIMIT_S:g} s"
    except (OSError, ValueError) as error:  # no network, no such page, an address that is none
        return f"{place}: {getattr(error, 'reason', error)}"
    return "" if re.search(name, page.decode(errors="replace")) else f"{place} has no torch {version} for {tag}"


def requirements(lock: str, build: str) -> list[str]:
    """What to install from the index: the lock's versions, with the build's name.

    >>> requirements("torch==2.14.1 \\\\\\n    --hash=y\\ntorchvision==0.29.1 \\\\\\n", "cpu")
    ['torch==2.14.1+cpu', 'torchvision==0.29.1+cpu']
    """
    return [f"{name}=={version}+{build}" for name, version in versions(lock).items()]
