"""Whether the installed torch, a config and the chosen GPUs fit together, found before any process starts.

What is looked for would otherwise be a traceback of every rank, or a figure that is not what it seems: a torch without
CUDA, a driver that is too old for it, a generation it was not compiled for, arithmetic that the GPU has not, memory
that others hold. Nothing here imports torch.
"""

import functools
import importlib.util
import mmap
import re
from pathlib import Path

from bench.config.options import Parallel, RunConfig
from bench.errors import UserError
from bench.install import torch_build
from bench.install.horovod_status import torch_rocm, torch_version
from bench.measure import nvml
from bench.measure.nvml import Gpu

LEAST_FREE_GIB = 0.5  # what CUDA itself takes of a GPU, before a model is there
NUMA_NODES = Path("/sys/devices/system/node")
AMD = Path("/dev/kfd")  # what AMD's driver is opened by; processors with graphics of AMD have it, too
NO_ROCM = "AMD GPUs (ROCm) are not supported"
SHORT_FROM = "8.0"  # the compute capability from which a GPU has TF32 and bf16 (Ampere)


def require_fit(config: RunConfig, gpus: list[Gpu]) -> None:
    """Raise UserError, in one line with its remedy, where a config cannot run on these GPUs."""
    for gpu in gpus:
        require_no_mig(gpu)
    if version := torch_version():
        require_cuda(*version, gpus)
        require_generation(version[0], gpus)
    require_arithmetic(config, gpus)
    require_memory(gpus)


def require_no_mig(gpu: Gpu) -> None:
    """Raise UserError for a GPU in MIG mode: CUDA gives a process one slice, and NCCL no two processes slices of one
    GPU. A run on one device has a slice instead, where there is one (``devices.usable_gpus``)."""
    if not gpu.is_partitioned:
        return
    what = f"GPU {gpu.index} ({gpu.name}) is in MIG mode"
    if not nvml.slices_of(gpu):
        raise UserError(f"{what} and has no slice that can be used: make one (nvidia-smi mig -cgi), or use DEVICE=cpu")
    raise UserError(
        f"{what}, and a run gets one slice at most: use MODE=single GPUS=1, choose other GPUs (GPUS=0,2), turn MIG "
        "off, or use DEVICE=cpu"
    )


def require_no_amd(config: Parallel) -> None:
    """Raise UserError where GPUs are meant, and they are AMD's: torch calls those "cuda", too. With DEVICE=auto only a
    torch that is built for them says that they are meant; with another one CPUs are used, and ``devices.why_cpu`` says
    why."""
    if config.device == "cpu":
        return
    if rocm := torch_rocm():
        raise UserError(f"{NO_ROCM}, and torch {torch_version()[0]} is built for them (ROCm {rocm}): use DEVICE=cpu")
    if config.device == "cuda" and has_amd():
        raise UserError(f"{NO_ROCM}: use DEVICE=cpu")


def has_amd() -> bool:
    """Whether this machine has a GPU of AMD, and none of NVIDIA that can be used."""
    return AMD.exists() and not nvml.visible_gpus()


def require_torch(config: RunConfig) -> None:
    """The installed torch, and this machine, have what a config asks for besides a device."""
    version = (torch_version() or [""])[0]
    if torch_build.too_old(version):
        raise UserError(
            f"torch {version} is installed, and {torch_build.oldest()} or newer is needed: use a Python that has it, "
            "or `make setup`, which makes one in .venv"
        )
    if config.batched_grad_copy and not torch_has("nn/parallel/distributed.py", "batched_grad_copy"):
        raise UserError(
            f"BATCHED_GRAD_COPY=1: DDP of torch {(torch_version() or ['?'])[0]} has no such thing: leave it out"
        )
    if not config.numa_binding:
        return
    if not torch_has("distributed/run.py", "--numa-binding"):
        raise UserError(f"NUMA_BINDING=1: torchrun of torch {(torch_version() or ['?'])[0]} cannot do it: leave it out")
    if len(list(NUMA_NODES.glob("node[0-9]*"))) < 2:
        raise UserError("NUMA_BINDING=1: this machine has one NUMA node, and every CPU is as near: leave it out")


def torch_has(file: str, word: str) -> bool:
    """Whether a file of the installed torch has a word in it. To import torch would take seconds."""
    path = torch_folder() / file
    return path.is_file() and word in path.read_text()


def torch_folder() -> Path:
    """Where torch is installed; a folder that is not there without it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else Path("/nowhere")


def require_cuda(torch: str, cuda: str | None, gpus: list[Gpu]) -> None:
    """The installed torch has CUDA, and the driver serves it: from its major version on, as NVIDIA promises."""
    if cuda is None:
        raise UserError(
            f"there are GPUs, and the installed torch {torch} has no CUDA: {setup_command(gpus)}"
            "pip install one that has, or use DEVICE=cpu"
        )
    served, driver = nvml.cuda_version(), nvml.nvml_state()[0]
    if served and served[0] < int(cuda.partition(".")[0]):
        raise UserError(
            f"the NVIDIA driver {driver} serves CUDA {served[0]}.{served[1]} at most, and torch {torch} is built for "
            f"CUDA {cuda}: update the driver, {setup_command(gpus)}or use DEVICE=cpu"
        )


def require_generation(torch: str, gpus: list[Gpu]) -> None:
    """The installed torch has code for each GPU."""
    compiled = architectures()
    for gpu in gpus:
        if compiled and gpu.compute_capability and not runs_on(compiled, gpu.compute_capability):
            raise UserError(
                f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.compute_capability}, and torch {torch} is "
                f"compiled for {' '.join(compiled)}: {setup_command([gpu])}install a torch that has it, "
                "choose other GPUs, or use DEVICE=cpu"
            )


def setup_command(gpus: list[Gpu]) -> str:
    """The command that sets up with a torch for these GPUs and their driver, and a comma; "" where there is none."""
    told = [tuple(map(int, gpu.compute_capability.split("."))) for gpu in gpus if gpu.compute_capability]
    command = torch_build.command_for(torch_build.Driver("", nvml.cuda_version(), tuple(told)))
    return f"{command}, " if command else ""


def runs_on(compiled: list[str], capability: str) -> bool:
    """Whether one of these is code for a GPU: machine code of its generation, not newer than it (sm_), or what the
    driver translates for it (compute_).

    >>> [runs_on(["sm_80", "sm_90"], capability) for capability in ("7.5", "8.6", "9.0", "10.0")]
    [False, True, True, False]
    >>> runs_on(["sm_80", "compute_90"], "10.0")
    True
    """
    major, minor = map(int, capability.split("."))
    for name in compiled:
        kind, number = name.rstrip("af").split("_")
        theirs = divmod(int(number), 10)
        if theirs <= (major, minor) and (kind == "compute" or theirs[0] == major):
            return True
    return False


@functools.cache
def architectures() -> tuple[str, ...]:
    """What the installed torch was compiled for, as in ("sm_80", "sm_90"); empty where it cannot be found.

    It is what ``torch.cuda.get_arch_list()`` gives, read from the library that keeps it as one text: to import torch
    would take seconds.
    """
    library = torch_folder() / "lib" / "libtorch_python.so"
    if not library.is_file():
        return ()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = re.search(rb"\0((?:(?:sm|compute)_\d+[af]? ?)+)\0", content)
        return tuple(found.group(1).decode().split()) if found else ()


def require_arithmetic(config: RunConfig, gpus: list[Gpu]) -> None:
    """Each GPU has the arithmetic of PRECISION: an older one computes float32 for TF32, and imitates bf16."""
    older = [gpu for gpu in gpus if gpu.compute_capability and float(gpu.compute_capability) < float(SHORT_FROM)]
    if not older or config.precision not in ("tf32", "bf16"):
        return
    what = f"GPU {older[0].index} ({older[0].name}, compute capability {older[0].compute_capability})"
    if config.precision == "tf32":
        raise UserError(f"PRECISION=tf32: {what} has no TF32, and would compute in fp32: use fp32 or fp16")
    if not config.allow_slow:
        raise UserError(
            f"PRECISION=bf16: {what} has no bf16 and imitates it slowly: use fp16, or ALLOW_SLOW=1 to see it"
        )


def require_memory(gpus: list[Gpu]) -> None:
    """Each GPU has room for CUDA itself."""
    for gpu in gpus:
        device, _ = nvml.open_device(uuid=gpu.uuid)
        free = device and device.free_bytes()
        if free is not None and free < LEAST_FREE_GIB * nvml.GIB:
            raise UserError(
                f"GPU {gpu.index} ({gpu.name}) has {free / nvml.GIB:.2f} GiB of memory free, and others hold the rest "
                "(nvidia-smi shows who): choose other GPUs, as in GPUS=0,2, or wait"
            )
