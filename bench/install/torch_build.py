"""Which build of PyTorch an environment of our own gets: with CUDA (3 GB with its libraries), or for CPUs (a tenth).

PyPI's wheels for Linux are built with CUDA. Those for CPUs alone are on PyTorch's own index, with the same version and
`+cpu` after it. The lock holds the version of both, and checksums of PyPI's alone.

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

CHOICES = ("auto", "cpu", "cuda")
INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST = (2, 7)  # with which the code runs; pyproject.toml says the same
OTHER_INDEX = "BENCH_TORCH_INDEX"  # in the environment: a mirror of that index
LIMIT_S = 5.0  # to read the index's page; where it takes longer, so would the wheel
OF_CUDA = re.compile(r"(torch|torchvision|triton|cuda-.*|nvidia-(?!ml-py==).*)==")  # entries of a lock


def index() -> str:
    """The address of the index with the builds for CPUs."""
    return os.environ.get(OTHER_INDEX, INDEX).rstrip("/")


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


def too_old(version: str) -> bool:
    """Whether this torch is older than the oldest that the code runs with.

    >>> too_old("2.6.0+cu124"), too_old("2.7.0a0+git1"), too_old("2.14.1")
    (True, False, False)
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return bool(found) and tuple(map(int, found.groups())) < OLDEST


def oldest() -> str:
    """As in "2.7"."""
    return ".".join(map(str, OLDEST))


def installed(folder: Path) -> str | None:
    """The build in an environment: cpu or cuda; None without torch."""
    for path in folder.glob("lib/python3*/site-packages/torch/version.py"):
        found = re.search(r"^__version__ = '([^']+)'", path.read_text(), re.MULTILINE)
        return "cpu" if found and found.group(1).endswith("+cpu") else "cuda"
    return None


def versions(lock: str) -> dict[str, str]:
    """The versions of torch and torchvision in a lock's text."""
    return dict(re.findall(r"^(torch|torchvision)==([^\s;]+)", lock, re.MULTILINE))


def without_cuda(lock: str) -> str:
    """A lock's text without torch and what its build with CUDA needs.

    >>> without_cuda("a==1\\n    --hash=x\\ntorch==2\\n    --hash=y\\nnvidia-ml-py==3\\nnvidia-nccl-cu13==2\\n")
    'a==1\\n    --hash=x\\nnvidia-ml-py==3\\n'
    """
    return "".join(entry for entry in re.split(r"^(?=\S)", lock, flags=re.MULTILINE) if not OF_CUDA.match(entry))


def choose(asked: str, folder: Path, lock: str) -> tuple[str, str]:
    """(cpu or cuda, a line to print or ""). asked: one of CHOICES. folder: the environment, whose build auto leaves as
    it is."""
    if sys.platform != "linux":
        return "cuda", ""  # PyPI's build for macOS is for CPUs; it has no other name
    if asked != "auto":
        return asked, ""
    before = installed(folder)
    if before or has_driver():
        return before or "cuda", ""
    if why := why_not_there(versions(lock)["torch"]):
        return "cuda", (
            f"There is no NVIDIA driver here, and PyTorch's build for CPUs cannot be had ({why}): taking the ordinary "
            "build (3 GB); with TORCH=cuda nothing is looked for"
        )
    return "cpu", "There is no NVIDIA driver here: taking PyTorch's build for CPUs (TORCH=cuda for the other)"


def why_not_there(version: str) -> str:
    """Why the index has no build for CPUs of this version, for this Python and machine; "" where it has one."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = rf"torch-{re.escape(version)}(%2B|\+)cpu-{tag}-{tag}-[\w.]*{platform.machine()}"
    page, until = b"", time.monotonic() + LIMIT_S
    try:
        with urllib.request.urlopen(f"{index()}/torch/", timeout=LIMIT_S) as answer:
            while chunk := answer.read1(1 << 16):
                page += chunk
                if time.monotonic() > until:
                    return f"{index()} takes more than {LIMIT_S:g} s"
    except (OSError, ValueError) as error:  # no network, no such page, an address that is none
        return f"{index()}: {getattr(error, 'reason', error)}"
    return "" if re.search(name, page.decode(errors="replace")) else f"{index()} has no torch {version} for {tag}"


def requirements(lock: str) -> list[str]:
    """What to install from the index: the lock's versions, with the build's name.

    >>> requirements("torch==2.14.1 \\\\\\n    --hash=y\\ntorchvision==0.29.1 \\\\\\n")
    ['torch==2.14.1+cpu', 'torchvision==0.29.1+cpu']
    """
    return [f"{name}=={version}+cpu" for name, version in versions(lock).items()]
