"""The devices of a run: GPUs if there are enough, CPU processes if there are none, otherwise an error."""

import functools
import math
import mmap
import os
import re
from pathlib import Path

import psutil

from bench.config.modes import MODES
from bench.config.options import Parallel, RunConfig
from bench.config.sections import Resources
from bench.config.values import parse_gpu_ids
from bench.errors import UserError
from bench.install import torch_build
from bench.install.horovod_status import torch_rocm, torch_version
from bench.install.torch_build import torch_folder
from bench.measure import cgroup, nccl, nvml
from bench.measure.environment import cpu_flags
from bench.measure.nvml import Gpu, every_gpu, visible_gpus

LEAST_FREE_GIB = 0.5  # needed by CUDA itself on a GPU
NUMA_NODES = Path("/sys/devices/system/node")
AMD = Path("/dev/kfd")  # of AMD's driver, also for integrated graphics
NO_ROCM = "AMD GPUs (ROCm) are not supported"
SHORT_FROM = "8.0"  # compute capability with TF32 and bf16 (Ampere)
LEAST_MIB = 64  # of an idle process with torch
HELD = 0.1  # share of a GPU's memory in use by others: a desktop, or another run
# Flags of a CPU that computes in a short format: x86, ARM.
SHORT = {"bf16": {"avx512_bf16", "amx_bf16", "bf16"}, "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"}}


def choose_device(config: RunConfig) -> str:
    """Device: "cuda" or "cpu". Raises UserError if the requested GPUs are missing or cannot be used."""
    require_torch(config)
    require_no_amd(config)
    gpus = [] if config.device == "cpu" else usable_gpus(config)
    if config.device == "cuda" and not gpus:
        raise UserError(f"DEVICE=cuda, but no GPU is visible: {nvml.why_no_gpu()} Or use DEVICE=cpu")
    if config.device == "auto" and not gpus and (why := nvml.why_not_meant()):
        raise UserError(f"{why} Or use DEVICE=cpu for CPU processes")
    if not gpus:
        if config.share_gpu:
            raise UserError("SHARE_GPU=1 needs a GPU, but none is visible: leave it out")
        if config.precision == "tf32":
            raise UserError("PRECISION=tf32 needs an NVIDIA GPU, but this run uses none: use fp32")
        needed = SHORT.get(config.precision)
        if needed and not needed & set(cpu_flags()) and not config.allow_slow:
            slow = f"this CPU has no {config.precision} instructions and would be 6 to 40 times slower"
            raise UserError(f"PRECISION={config.precision}: {slow}: use fp32, or ALLOW_SLOW=1 to run it anyway")
        return "cpu"
    needed = 1 if config.share_gpu else config.num_devices
    if len(gpus) < needed and config.gpu_ids:
        raise UserError(f"GPUS={config.gpu_ids} names {len(gpus)} GPU, but {needed} are needed: name {needed} or more")
    if len(gpus) < needed:
        here = f"{len(gpus)} visible here: use GPUS={len(gpus)} or fewer"
        raise UserError(f"GPUS={config.num_devices}, but {here}, or DEVICE=cpu for CPU processes")
    require_fit(config, gpus[:needed])
    return "cuda"


def require_memory(config: RunConfig) -> None:
    """Raise UserError for more processes than this machine's memory can hold, before the first of them is started."""
    limit = min(psutil.virtual_memory().total, cgroup.memory_limit() or math.inf)
    most = int(limit // (LEAST_MIB * 2**20))
    if config.num_processes > most:
        what = f"each process needs {LEAST_MIB} MiB, but this machine has {limit / 2**30:.1f} GiB of memory"
        raise UserError(f"GPUS={config.num_devices}: {what}: use GPUS={most} or less")


def least_capable(config: RunConfig) -> tuple[tuple[int, int] | None, float | None]:
    """The lowest compute capability and smallest memory (GiB) of a run's GPUs; None if unknown, and on a CPU."""
    gpus = usable_gpus(config)[: 1 if config.share_gpu else config.num_devices]
    capabilities = [gpu.compute_capability and tuple(map(int, gpu.compute_capability.split("."))) for gpu in gpus]
    memory = [memory_left(gpu) for gpu in gpus]
    return tuple(None if None in found else min(found, default=None) for found in (capabilities, memory))


def memory_left(gpu: Gpu) -> float | None:
    """A GPU's memory in GiB; if others use more than a tenth of it, its free memory."""
    device, _ = nvml.open_device(uuid=gpu.uuid)
    free, total = device and device.free_bytes(), gpu.memory_total_gib
    if free is None or total is None or free >= (1 - HELD) * total * nvml.GIB:
        return total
    return round(free / nvml.GIB, 3)


def weakest_over_machines(capabilities: list) -> tuple:
    """``least_capable`` over machines.

    >>> weakest_over_machines([[[8, 0], 79.2], [[7, 5], 14.6]]), weakest_over_machines([[[8, 0], None], [None, 14.6]])
    (((7, 5), 14.6), (None, None))
    """
    capability, memory = zip(*capabilities, strict=True)
    return None if None in capability else tuple(min(capability)), None if None in memory else min(memory)


def device_notes(asked: RunConfig) -> list[str]:
    """Notes about the devices for the user."""
    return [sentence for sentence in (why_cpu(asked), order_remark(asked)) if sentence]


def why_cpu(asked: Parallel) -> str:
    """Why DEVICE=auto takes the CPU on a machine with an NVIDIA driver or an AMD GPU; else ""."""
    if asked.device != "auto" or visible_gpus():
        return ""
    if nvml.is_absent():
        return f"{NO_ROCM}." if has_amd() else ""
    return nvml.why_no_gpu() or ""


def unused_gpus(config: RunConfig) -> str:
    """A sentence if a run on one GPU could use several; else ""."""
    more = len(visible_gpus())
    if config.device != "cuda" or config.hosts or config.num_devices > 1 or more < 2 or MODES[config.mode].max_devices:
        return ""
    return f"1 of {more} GPUs is used: GPUS=all uses all of them"


def usable_gpus(config: RunConfig) -> list[Gpu]:
    """The GPUs that a run may use, in order: those in GPUS, else all visible ones. A run on one device can use a slice
    of a GPU in MIG mode. Raises UserError."""
    chosen = named_gpus(config)
    if config.num_devices == 1 and chosen:
        chosen[:1] = nvml.slices_of(chosen[0])[:1] or chosen[:1]
    return chosen


def named_gpus(config: Resources) -> list[Gpu]:
    """``usable_gpus`` without slices."""
    visible = visible_gpus()
    if not config.gpu_ids:
        return visible
    ids, chosen = parse_gpu_ids(config.gpu_ids), []
    if not visible:
        remedy = f"use GPUS={len(ids)} for {len(ids)} CPU process{'es' if len(ids) > 1 else ''}"
        raise UserError(f"GPUS={config.gpu_ids}, but no GPU is visible (see `bench doctor`): {remedy}")
    for entry in ids:
        found = [gpu for gpu in every_gpu() if str(gpu.index) == entry or gpu.uuid.lower().startswith(entry.lower())]
        if len(found) != 1 or found[0] not in visible:
            why = "is hidden by CUDA_VISIBLE_DEVICES" if found else "does not exist"
            why = "names several GPUs" if len(found) > 1 else why
            here = ", ".join(f"{gpu.index} ({gpu.uuid[:12]}…)" for gpu in visible)
            raise UserError(f"GPUS={config.gpu_ids}: {entry} {why}: choose from {here}")
        if found[0] in chosen:
            raise UserError(f"GPUS={config.gpu_ids} names GPU {found[0].index} twice: name each GPU once")
        chosen += found
    return chosen


def device_variables(config: RunConfig) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES by UUID, because CUDA and nvidia-smi may number GPUs differently; with SHARE_GPU=1 also
    NCCL's variables for two ranks on one GPU."""
    shared = nccl.shared_variables() if config.share_gpu and config.device == "cuda" else {}
    gpus = usable_gpus(config) if config.gpu_ids or config.device == "cuda" else []
    if not (config.gpu_ids or (gpus and (gpus[0].is_slice or has_mixed_gpus()))):
        return shared
    if not config.gpu_ids:
        gpus = gpus[: 1 if config.share_gpu else config.num_devices]
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} | shared


def has_mixed_gpus() -> bool:
    return len({gpu.name for gpu in every_gpu()}) > 1


def order_remark(asked: Parallel) -> str:
    """A sentence if CUDA_VISIBLE_DEVICES may mean other GPUs in CUDA's order than in nvidia-smi's; else ""."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or not has_mixed_gpus()
    if asked.device == "cpu" or same_order or not wanted[:1].isdecimal():
        return ""
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in visible_gpus())
    other = "other CUDA programs count the fastest GPU first without CUDA_DEVICE_ORDER=PCI_BUS_ID; UUIDs are unique."
    return f"CUDA_VISIBLE_DEVICES={wanted} is read in the order of nvidia-smi ({names}); {other}"


# --- do torch, the config and the GPUs fit together? (without importing torch) ----------------------------------------


def require_fit(config: RunConfig, gpus: list[Gpu]) -> None:
    """Raise UserError if a config cannot run on these GPUs."""
    for gpu in gpus:  # CUDA gives a process one MIG slice, and NCCL does not connect slices of one GPU
        if gpu.is_partitioned and not nvml.slices_of(gpu):
            why = "has no slice that can be used: make one (nvidia-smi mig -cgi), or use DEVICE=cpu"
            raise UserError(f"GPU {gpu.index} ({gpu.name}) is in MIG mode and {why}")
        if gpu.is_partitioned:
            remedy = "use MODE=single GPUS=1, choose other GPUs (GPUS=0,2), turn MIG off, or use DEVICE=cpu"
            raise UserError(f"GPU {gpu.index} ({gpu.name}) is in MIG mode, and a run gets one slice at most: {remedy}")
    if version := torch_version():
        require_cuda(*version, gpus)
    for gpu in gpus:
        require_gpu(config, gpu)


def require_gpu(config: RunConfig, gpu: Gpu) -> None:
    """torch has code for the GPU, which has the arithmetic of PRECISION, and room for CUDA itself."""
    what, capability, compiled = f"GPU {gpu.index} ({gpu.name})", gpu.compute_capability, architectures()
    if compiled and capability and not runs_on(compiled, capability):
        why = f"has compute capability {capability}, but torch is compiled for {' '.join(compiled)}"
        remedy = f"{setup_command([gpu])}install another torch, choose other GPUs, or use DEVICE=cpu"
        raise UserError(f"{what} {why}: {remedy}")
    if capability and float(capability) < float(SHORT_FROM):
        if config.precision == "tf32":
            why = f"compute capability {capability} has no TF32, and would compute in fp32"
            raise UserError(f"PRECISION=tf32: {what}: {why}: use fp32 or fp16")
        if config.precision == "bf16" and not config.allow_slow:
            why = f"compute capability {capability} has no bf16 and emulates it slowly"
            raise UserError(f"PRECISION=bf16: {what}: {why}: use fp16, or ALLOW_SLOW=1 to run it anyway")
    device, _ = nvml.open_device(uuid=gpu.uuid)
    free = device and device.free_bytes()
    if free is not None and free < LEAST_FREE_GIB * nvml.GIB:
        why = f"has {free / nvml.GIB:.2f} GiB of free memory, because other processes use the rest (see nvidia-smi)"
        raise UserError(f"{what} {why}: choose other GPUs (GPUS=0,2), or wait")


def require_no_amd(config: Parallel) -> None:
    """Raise UserError for AMD GPUs, which torch also calls "cuda"."""
    if config.device == "cpu":
        return
    if rocm := torch_rocm():
        raise UserError(f"{NO_ROCM}, and torch {torch_version()[0]} is built for them (ROCm {rocm}): use DEVICE=cpu")
    if config.device == "cuda" and has_amd():
        raise UserError(f"{NO_ROCM}: use DEVICE=cpu")


def has_amd() -> bool:
    """Whether there is an AMD GPU and no usable NVIDIA GPU."""
    return AMD.exists() and not nvml.visible_gpus()


def require_torch(config: RunConfig) -> None:
    """The torch version and this machine support the config, apart from its device."""
    version = (torch_version() or [""])[0]
    if oldest := torch_build.too_old(version):
        raise UserError(f"torch {version} is installed, but {oldest} or newer is required: run `make setup`")
    if config.batched_grad_copy and not torch_has("nn/parallel/distributed.py", "batched_grad_copy"):
        raise UserError(f"BATCHED_GRAD_COPY=1: not supported by DDP of torch {version or '?'}: leave it out")
    if config.numa_binding and not torch_has("distributed/run.py", "--numa-binding"):
        raise UserError(f"NUMA_BINDING=1: not supported by torchrun of torch {version or '?'}: leave it out")
    if config.numa_binding and len(list(NUMA_NODES.glob("node[0-9]*"))) < 2:
        raise UserError("NUMA_BINDING=1: this machine has only one NUMA node: leave it out")


def torch_has(file: str, word: str) -> bool:
    """Whether a file of the installed torch contains a word; importing torch would take seconds."""
    path = torch_folder() / file
    return path.is_file() and word in path.read_text()


def require_cuda(torch: str, cuda: str | None, gpus: list[Gpu]) -> None:
    """torch has CUDA, and the driver supports it: all versions from its major version on."""
    if cuda is None:
        remedy = f"{setup_command(gpus)}install a torch with CUDA, or use DEVICE=cpu"
        raise UserError(f"there are GPUs, but the installed torch {torch} has no CUDA: {remedy}")
    served, driver = nvml.cuda_version(), nvml.nvml_state()[0]
    if served and served[0] < int(cuda.partition(".")[0]):
        what = f"NVIDIA driver {driver} supports CUDA {served[0]}.{served[1]} at most"
        needs = f"torch {torch} needs CUDA {cuda}"
        raise UserError(f"{what}, but {needs}: update the driver, {setup_command(gpus)}or use DEVICE=cpu")


def setup_command(gpus: list[Gpu]) -> str:
    """The set-up command for these GPUs, with a comma; "" if none fits."""
    capabilities = [tuple(map(int, gpu.compute_capability.split("."))) for gpu in gpus if gpu.compute_capability]
    driver = torch_build.Driver("", nvml.cuda_version(), tuple(capabilities))
    builds = torch_build.fitting(driver, torch_build.versions(torch_build.LOCK.read_text())["torch"])
    return f"run `make setup TORCH={builds[0]}`, " if builds else ""


def runs_on(compiled: list[str], capability: str) -> bool:
    """Whether torch has code for a GPU: of its generation and not newer (sm_), or compiled by the driver (compute_).

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
    """``torch.cuda.get_arch_list()``, read from the library's text because importing torch takes seconds."""
    library = torch_folder() / "lib" / "libtorch_python.so"
    if not library.is_file():
        return ()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = re.search(rb"\0((?:(?:sm|compute)_\d+[af]? ?)+)\0", content)
        return tuple(found.group(1).decode().split()) if found else ()
