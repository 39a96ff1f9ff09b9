"""The NCCL that the installed torch loads, and whether it lets several ranks share one GPU. Imports no torch.

NCCL refuses two ranks on one GPU ("Duplicate GPU detected") unless it is 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1
is in the environment of every rank. Horovod is built against the same library, so one answer is right for both.
"""

import functools
import json
import os
import subprocess
import sys

SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"  # 1: ranks may share a GPU; in a rank's environment it says that they do
SHARED_FROM = (2, 30)
# What ranks that share a GPU need besides: no NVLink SHARP, which is of a whole GPU, and few blocks: a rank's kernel
# that waits must leave room for the kernel of the rank that it waits for.
OF_SHARED = {SHARING: "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}
ASK = "import json, torch; print(json.dumps(torch.cuda.nccl.version()))"


@functools.cache
def version() -> tuple[int, ...] | None:
    """As in (2, 30, 7); None for a torch without NCCL. Asked in a fresh process, once per process."""
    command = [sys.executable, "-W", "ignore", "-c", ASK]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
        return tuple(json.loads(said)[:3])
    except (subprocess.TimeoutExpired, ValueError, TypeError):
        return None


def shared_variables() -> dict[str, str]:
    """The variables with which ranks talk NCCL on one GPU; empty where they cannot: it is too old, or the user's own
    NCCL_MULTI_RANK_GPU_ENABLE=0 says not to. What the user has set otherwise stays."""
    if os.environ.get(SHARING, "1") != "1" or (version() or (0,)) < SHARED_FROM:
        return {}
    return {name: os.environ.get(name, value) for name, value in OF_SHARED.items()}
