"""Part A2: one device: whether the defaults are the fastest settings, and as fast as a bare loop."""

import json
import tempfile
from pathlib import Path

from bench.config.options import RunConfig, to_dict
from bench.errors import RunFailed
from bench.launch.command import thread_variables
from bench.proof.gpu_check import answers
from bench.proof.gpu_check.base import NotExercised, Part
from bench.proof.gpu_check.ground import COMPILES, SHORT, Ground
from bench.record.describe import did_not_fit

PART = Part("A2", "single: the reference of one device, and what is chosen by default")
DEFAULT = {"plain": False}
# Alternatives to the default; see tutorials/manual/options.md.
INSTEAD = {
    "fp16": {"precision": "fp16"},
    "channels_last=0": {"channels_last": False},
    "fp16 channels_last=0": {"precision": "fp16", "channels_last": False},
    "cudnn_benchmark=0": {"cudnn_benchmark": False},
    "fused=0": {"fused": False},
    "batch 512": {"per_device_batch": 512},
}
OTHER_WORK = {"precision", "per_device_batch"}  # settings of these are reported, not judged
COMPILED = {
    "compile=1": {"compile": True},
    "fp16 compile=1": {"precision": "fp16", "compile": True},
    "batch 32 compile=reduce-overhead": {"per_device_batch": 32, "compile": True, "compile_mode": "reduce-overhead"},
}
PLAIN = {
    "fp32": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "bf16 channels_last=1": {"precision": "bf16", "channels_last": True},
}
RUN_S, COMPILED_S, PAIRS = 16, 45, 8


def add(name: str, seconds: float, *needs: str, **options) -> None:
    """A run as a check. One that does not fit into the GPU's memory is not a failure."""

    def run(ground):
        try:
            return answers.speed(ground.run(**options))
        except RunFailed as error:
            if error.failure and did_not_fit(error.failure):
                raise NotExercised("it does not fit into this GPU's memory") from None
            raise

    if options.get("precision") in ("tf32", "bf16"):
        needs = (*needs, SHORT)
    PART.add(name, f"How fast is single with {name}, and are its clocks and memory right?",
             run, seconds, *needs)  # fmt: skip


def add_bare(settings: str, seconds: float, *needs: str, **options) -> None:

    def run(ground):
        config = ground.config(**options | {"warmup_steps": 20, "timed_steps": 10})
        blocks = blocks_of(ground, config, PAIRS)
        examples = config.global_batch * config.timed_steps
        return answers.against_bare(blocks["harness_s"], blocks["bare_s"], examples)

    PART.add(f"bare loop {settings}", f"Is the loop, {settings}, at least 0.98 times as fast as a bare loop with the "
             "same settings?", run, seconds, *needs)  # fmt: skip


def blocks_of(ground: Ground, config: RunConfig, pairs: int) -> dict[str, list[float]]:
    """bare_loop.py in a fresh process: "harness_s", "bare_s" -> seconds of each block. Raises RunFailed."""
    with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
        words = ["-m", "bench.proof.gpu_check.bare_loop", json.dumps(to_dict(config)), str(pairs), folder]
        variables = {"RANK": "0", **thread_variables(config.threads_per_process)}
        code, said = ground.command(words, config.timeout, variables)
        if code != 0:
            (last,) = said.strip().splitlines()[-1:] or ["it printed nothing"]
            raise RunFailed(f"bare loop: {'not in time' if code is None else f'exit code {code}'}: {last}")
        return json.loads(Path(folder, "rank0.json").read_text())


add("what is chosen by default", RUN_S, **DEFAULT)
add_bare("by default", 24, **DEFAULT)
for name, options in INSTEAD.items():
    add(f"default {name}", RUN_S, **DEFAULT | options)


@PART.check(5)
def default(ground):
    """Is the default at most 2 % slower than every setting of the same precision and batch without a compiler?"""
    speeds = {}
    for name, options in INSTEAD.items():
        try:
            speeds[name] = ground.run(**DEFAULT | options).median_throughput
        except RunFailed as error:  # it may not fit
            print(f"{name}: {error}")
    judged = {name: speed for name, speed in speeds.items() if not INSTEAD[name].keys() & OTHER_WORK}
    reported = {name: speed for name, speed in speeds.items() if name not in judged}
    return answers.fastest(ground.run(**DEFAULT).median_throughput, judged, reported)


for name, options in COMPILED.items():
    add(f"default {name}", COMPILED_S, COMPILES, **DEFAULT | options)
add_bare("by default, compiled", 75, COMPILES, **DEFAULT | {"compile": True})
for name, options in PLAIN.items():
    add(f"plain {name} batch 64", RUN_S, per_device_batch=64, **options)
add_bare("plain", 24, per_device_batch=64)
