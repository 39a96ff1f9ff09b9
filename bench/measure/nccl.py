"""The NCCL that the installed torch loads, and whether it lets several ranks share one GPU. Imports no torch.

NCCL refuses two ranks on one GPU ("Duplicate GPU detected") unless it is 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1
is in the environment of every rank. ``torch.cuda.nccl.version()`` is the version that torch was compiled with; another
package of NCCL, or LD_LIBRARY_PATH, can load another one.
"""

import ctypes
import functools
import json
import os
import re
import subprocess
import sys

from bench.files import PROC, PROJECT

SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"  # 1: ranks may share a GPU; in a rank's environment: they do
SHARED_FROM = (2, 30)
# Other settings for ranks that share a GPU: no NVLink SHARP, which needs a whole GPU, and few blocks, because a waiting
# kernel must leave room for the kernel of the rank that it waits for.
OF_SHARED = {SHARING: "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}
ASK = "import json; from bench.measure import nccl; print(json.dumps(nccl.loaded_version()))"
LIBRARY = re.compile(r"\s(/.*/libnccl\.so[.\d]*)$", re.MULTILINE)  # in the list of a process's mapped files


@functools.cache
def version() -> tuple[int, ...] | None:
    """As in (2, 30, 7); None for a torch without NCCL. Uses a fresh process."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    command, environment = [sys.executable, "-W", "ignore", "-c", ASK], os.environ | {"PYTHONPATH": path}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        return tuple(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError, TypeError):
        return None


def loaded_version() -> tuple[int, ...] | None:
    """The version of the NCCL that this process has loaded with torch, or that is linked into torch."""
    import torch

    try:
        (path, *_) = LIBRARY.findall((PROC / "self" / "maps").read_text())
        number = ctypes.c_int()
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number)) == 0:
            return parts_of(number.value)
    except (OSError, ValueError, AttributeError):  # no /proc, no such library, or no version in it
        pass
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    return tuple(torch.cuda.nccl.version()[:3])


def parts_of(number: int) -> tuple[int, int, int]:
    """The number of ncclGetVersion, whose format was different before 2.9.

    >>> parts_of(23007), parts_of(2804)
    ((2, 30, 7), (2, 8, 4))
    """
    major = 10000 if number >= 10000 else 1000
    return number // major, number % major // 100, number % 100


def ranks_share() -> bool:
    """Whether this rank shares its GPU over NCCL: its environment asks for it, and the NCCL that it has loaded can."""
    return os.environ.get(SHARING) == "1" and (loaded_version() or (0,)) >= SHARED_FROM


def shared_variables() -> dict[str, str]:
    """The variables with which ranks share a GPU under NCCL; empty if they cannot: NCCL is too old, or the user set
    NCCL_MULTI_RANK_GPU_ENABLE=0. Other settings of the user are kept."""
    if os.environ.get(SHARING, "1") != "1" or (version() or (0,)) < SHARED_FROM:
        return {}
    return {name: os.environ.get(name, value) for name, value in OF_SHARED.items()}
