"""Which devices a run gets: GPUs where there are enough, CPU workers where there are none, an error in between."""

import math
import os

import psutil

from bench.config.modes import MODES
from bench.config.options import Parallel, RunConfig
from bench.config.sections import Resources
from bench.config.values import parse_gpu_ids
from bench.errors import UserError
from bench.launch.gpu_fit import NO_ROCM, has_amd, require_fit, require_no_amd, require_torch
from bench.measure import cgroup, nccl, nvml
from bench.measure.environment import cpu_flags
from bench.measure.nvml import Gpu, every_gpu, visible_gpus

LEAST_MIB = 64  # of a process with torch that does nothing
HELD = 0.1  # of a GPU's memory, by others: a desktop, or another run
# Flags of a CPU that computes in a short format: x86, ARM.
SHORT = {"bf16": {"avx512_bf16", "amx_bf16", "bf16"}, "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"}}


def choose_device(config: RunConfig) -> str:
    """ "cuda" or "cpu". Raises UserError when GPUs are asked for and missing, or fewer than GPUS, or cannot be used."""
    require_torch(config)
    require_no_amd(config)
    gpus = [] if config.device == "cpu" else usable_gpus(config)
    if config.device == "cuda" and not gpus:
        raise UserError(f"DEVICE=cuda, but no GPU is visible: {nvml.why_no_gpu()} Or use DEVICE=cpu")
    if config.device == "auto" and not gpus and (why := nvml.why_not_meant()):
        raise UserError(f"{why} Or use DEVICE=cpu for CPU workers")
    if not gpus:
        if config.share_gpu:
            raise UserError("SHARE_GPU=1 needs a GPU, and none is visible: leave it out")
        if config.precision == "tf32":
            raise UserError("PRECISION=tf32 is arithmetic of NVIDIA GPUs, and none is used: use fp32")
        needed = SHORT.get(config.precision)
        if needed and not needed & set(cpu_flags()) and not config.allow_slow:
            raise UserError(
                f"PRECISION={config.precision}: this CPU has no {config.precision} instructions, and without them it "
                "is 6 to 40 times slower: use fp32, or ALLOW_SLOW=1 to see it"
            )
        return "cpu"
    needed = 1 if config.share_gpu else config.num_devices
    if len(gpus) < needed and config.gpu_ids:
        raise UserError(f"GPUS={config.gpu_ids} names {len(gpus)} GPU, and {needed} are needed: name {needed} or more")
    if len(gpus) < needed:
        raise UserError(
            f"GPUS={config.num_devices}, but {len(gpus)} visible here: use GPUS={len(gpus)} or fewer, or DEVICE=cpu "
            "for CPU workers"
        )
    require_fit(config, gpus[:needed])
    return "cuda"


def require_memory(config: RunConfig) -> None:
    """Raise UserError for more processes than this machine's memory can hold, before the first of them is started."""
    limit = min(psutil.virtual_memory().total, cgroup.memory_limit() or math.inf)
    most = int(limit // (LEAST_MIB * 2**20))
    if config.num_processes > most:
        raise UserError(
            f"GPUS={config.num_devices}: each process takes {LEAST_MIB} MiB at least, and this machine has "
            f"{limit / 2**30:.1f} GiB of memory: use GPUS={most} or less"
        )


def weakest(config: RunConfig) -> tuple[tuple[int, int] | None, float | None]:
    """The lowest compute capability and the least memory, in GiB, of the GPUs that a run uses: every rank computes
    alike. Of a GPU of which others hold a part, what they leave. None for what one of them does not tell, and on a
    CPU."""
    gpus = usable_gpus(config)[: 1 if config.share_gpu else config.num_devices]
    told = [gpu.compute_capability and tuple(map(int, gpu.compute_capability.split("."))) for gpu in gpus]
    memory = [memory_left(gpu) for gpu in gpus]
    return tuple(None if None in found else min(found, default=None) for found in (told, memory))


def memory_left(gpu: Gpu) -> float | None:
    """The memory of a GPU in GiB; where others hold more than a tenth of it, what is free."""
    device, _ = nvml.open_device(uuid=gpu.uuid)
    free, total = device and device.free_bytes(), gpu.memory_total_gib
    if free is None or total is None or free >= (1 - HELD) * total * nvml.GIB:
        return total
    return round(free / nvml.GIB, 3)


def weakest_of(told: list) -> tuple:
    """The same over machines, from what ``weakest`` says on each, as it comes back as JSON.

    >>> weakest_of([[[8, 0], 79.2], [[7, 5], 14.6]]), weakest_of([[[8, 0], None], [None, 14.6]])
    (((7, 5), 14.6), (None, None))
    """
    capability, memory = zip(*told, strict=True)
    return None if None in capability else tuple(min(capability)), None if None in memory else min(memory)


def remarks(asked: RunConfig) -> list[str]:
    """What a person must know of the devices that a run gets, a sentence each."""
    return [sentence for sentence in (why_cpu(asked), order_remark(asked)) if sentence]


def why_cpu(asked: Parallel) -> str:
    """One sentence on why DEVICE=auto takes the CPU on a machine with an NVIDIA driver or an AMD GPU; empty on one
    without, and where the CPU was asked for."""
    if asked.device != "auto" or visible_gpus():
        return ""
    if nvml.is_absent():
        return f"{NO_ROCM}." if has_amd() else ""
    return nvml.why_no_gpu() or ""


def unused_gpus(config: RunConfig) -> str:
    """One sentence where a run of one GPU could be one of several; empty elsewhere, and for a mode of one device."""
    more = len(visible_gpus())
    if config.device != "cuda" or config.hosts or config.num_devices > 1 or more < 2 or MODES[config.mode].max_devices:
        return ""
    return f"1 of {more} GPUs is used: GPUS=all uses all of them"


def usable_gpus(config: RunConfig) -> list[Gpu]:
    """The GPUs that a run may use, in order: those that GPUS names, else all visible ones. A run on one device can have
    the first slice of a GPU in MIG mode. Raises UserError where GPUS names one that is not visible here."""
    chosen = named_gpus(config)
    if config.num_devices == 1 and chosen:
        chosen[:1] = nvml.slices_of(chosen[0])[:1] or chosen[:1]
    return chosen


def named_gpus(config: Resources) -> list[Gpu]:
    """The same without slices, but for one that CUDA_VISIBLE_DEVICES names."""
    visible = visible_gpus()
    if not config.gpu_ids:
        return visible
    ids, chosen = parse_gpu_ids(config.gpu_ids), []
    if not visible:
        raise UserError(
            f"GPUS={config.gpu_ids} names GPUs, and none is visible here (`bench doctor` says why): use "
            f"GPUS={len(ids)} for {len(ids)} CPU worker{'s' if len(ids) > 1 else ''}"
        )
    for entry in ids:
        found = [gpu for gpu in every_gpu() if str(gpu.index) == entry or gpu.uuid.lower().startswith(entry.lower())]
        if len(found) != 1 or found[0] not in visible:
            hidden = "is hidden by CUDA_VISIBLE_DEVICES" if found else "is not here"
            here = ", ".join(f"{gpu.index} ({gpu.uuid[:12]}…)" for gpu in visible)
            raise UserError(
                f"GPUS={config.gpu_ids}: {entry} {'names several GPUs' if len(found) > 1 else hidden}: choose of {here}"
            )
        if found[0] in chosen:
            raise UserError(f"GPUS={config.gpu_ids} names GPU {found[0].index} twice")
        chosen += found
    return chosen


def device_variables(config: RunConfig) -> dict[str, str]:
    """What tells the ranks which GPUs are theirs: where GPUS names some, where the machine has several kinds of them,
    and of a MIG slice. By UUID: CUDA, which counts the fastest first, and nvidia-smi may then number them differently.
    With SHARE_GPU=1 also what lets them talk NCCL there; without it they talk Gloo."""
    shared = nccl.shared_variables() if config.share_gpu and config.device == "cuda" else {}
    gpus = usable_gpus(config) if config.gpu_ids or config.device == "cuda" else []
    if not (config.gpu_ids or (gpus and (gpus[0].is_slice or mixed()))):
        return shared
    if not config.gpu_ids:
        gpus = gpus[: 1 if config.share_gpu else config.num_devices]
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} | shared


def mixed() -> bool:
    """Whether this machine has GPUs of several kinds."""
    return len({gpu.name for gpu in every_gpu()}) > 1


def order_remark(asked: Parallel) -> str:
    """One sentence where CUDA_VISIBLE_DEVICES counts GPUs of several kinds: it is read here in the order of nvidia-smi,
    and CUDA's may be another. "" elsewhere."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or not mixed()
    if asked.device == "cpu" or same_order or not wanted[:1].isdecimal():
        return ""
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in visible_gpus())
    return (
        f"CUDA_VISIBLE_DEVICES={wanted} is read in the order of nvidia-smi ({names}); other CUDA programs count the "
        "fastest GPU first, unless CUDA_DEVICE_ORDER=PCI_BUS_ID: with UUIDs both mean the same."
    )
