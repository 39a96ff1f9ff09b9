"""Which devices a run gets: GPUs where there are enough, CPU workers where there are none, an error in between."""

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.measure.environment import cpu_flags
from bench.measure.nvml import visible_gpus

# Flags of a CPU that computes in a short format: x86, ARM.
SHORT = {"bf16": {"avx512_bf16", "amx_bf16", "bf16"}, "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"}}


def choose_device(config: RunConfig) -> str:
    """ "cuda" or "cpu". Raises UserError when GPUs are asked for and missing, or fewer than GPUS."""
    gpus = [] if config.device == "cpu" else visible_gpus()
    if config.device == "cuda" and not gpus:
        raise UserError("DEVICE=cuda, but no GPU is visible: run `bench doctor`, or use DEVICE=cpu")
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
    if len(gpus) < needed:
        raise UserError(
            f"GPUS={config.num_devices}, but {len(gpus)} visible here: use GPUS={len(gpus)} or fewer, or DEVICE=cpu "
            "for CPU workers"
        )
    return "cuda"
