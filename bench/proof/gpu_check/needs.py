"""What a check may need of a machine, asked before it is begun. No torch is imported."""

import importlib.util
import shutil

from bench.install import horovod_status
from bench.launch.devices import SHORT_FROM
from bench.measure import nccl
from bench.measure.nvml import Gpu

# The words after "needs" -> whether a machine with these GPUs has it.
NEEDS = {
    "2 GPUs": lambda gpus: len(gpus) >= 2,
    "bf16 and TF32 (compute capability 8.0)": lambda gpus: all(
        not gpu.compute_capability or float(gpu.compute_capability) >= float(SHORT_FROM) for gpu in gpus
    ),
    "Horovod with NCCL (part A1 builds it)": lambda gpus: horovod_status.nccl_built(),
    "NCCL 2.30 for ranks that share a GPU": lambda gpus: bool(nccl.shared_variables()),
    "a C++ compiler": lambda gpus: any(map(shutil.which, ("g++", "clang++", "c++"))),
    "Triton and a C compiler": lambda gpus: bool(
        importlib.util.find_spec("triton") and any(map(shutil.which, ("cc", "gcc", "clang")))
    ),
}
TWO_GPUS, SHORT, HOROVOD, SHARED_NCCL, CXX, COMPILES = NEEDS


def lacking(needs: tuple[str, ...], gpus: list[Gpu]) -> str:
    """The first of these that a machine with these GPUs has not; "" where it has all."""
    return next((need for need in needs if not NEEDS[need](gpus)), "")
