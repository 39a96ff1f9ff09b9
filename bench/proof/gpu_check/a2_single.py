"""Part A2: the reference of one device: precision, memory format, compiler and batch, and a bare loop beside it."""

import tempfile
from pathlib import Path

from bench.errors import RunFailed
from bench.proof.gpu_check import answers
from bench.proof.gpu_check.base import NotExercised, Part
from bench.proof.gpu_check.needs import COMPILES, SHORT
from bench.proof.selfbench.processes import execute, gpu_loop

PART = Part("A2", "single: the reference of one device")
BATCHES = (64, 256)
KINDS = {
    "fp32": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "bf16 channels-last": {"precision": "bf16", "channels_last": True},
}
RUN_S, COMPILED_S, PAIRS = 16, 45, 8
NO_MEMORY = ("out of memory", "OutOfMemoryError")


def measured(**options):
    """A check: the throughput of a run with these options, with its clocks and memory. One that does not fit into the
    GPU's memory is no failure of the harness."""

    def run(ground):
        try:
            return answers.speed(ground.run(**options))
        except RunFailed as error:
            if any(words in str(error.failure) for words in NO_MEMORY):
                raise NotExercised("it does not fit into this GPU's memory") from None
            raise

    return run


def add(name: str, seconds: float, *needs: str, **options) -> None:
    """A run as a check."""
    if options.get("precision") in ("tf32", "bf16"):
        needs = (*needs, SHORT)
    PART.add(name, f"How fast is single with {name}, and are its clocks and memory right?",
             measured(**options), seconds, *needs)  # fmt: skip


add("what is chosen by default", RUN_S, plain=False)
for batch in BATCHES:
    for kind, kind_options in KINDS.items():
        add(f"{kind} batch {batch}", RUN_S, per_device_batch=batch, **kind_options)
add("fp16 batch 64", RUN_S, per_device_batch=64, precision="fp16")
add("cudnn-benchmark batch 64", RUN_S, per_device_batch=64, cudnn_benchmark=True)
add("fused batch 64", RUN_S, per_device_batch=64, fused=True)


def against_bare(**options):
    """A check: the harness's loop and a bare script's in turns, in one process (``bench.proof.selfbench.gpu_loop``)."""

    def run(ground):
        config = ground.config(**options | {"warmup_steps": 20, "timed_steps": 10})
        with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
            blocks = execute("gpu loop", gpu_loop(config, PAIRS), Path(folder) / "blocks")
        return answers.against_bare(blocks["harness_s"], blocks["bare_s"])

    return run


for settings, bare_options in {"plain": {"per_device_batch": 64}, "by default": {"plain": False}}.items():
    PART.add(f"bare loop {settings}", f"Is the loop, {settings}, at least 0.98 times as fast as a bare script's?",
             against_bare(**bare_options), 24)  # fmt: skip


for batch in BATCHES:
    for kind, kind_options in KINDS.items():
        add(
            f"compiled {kind} batch {batch}", COMPILED_S, COMPILES, per_device_batch=batch, compile=True, **kind_options
        )
