"""Part A4: modes that studies include only on request: sharded data parallelism and local SGD."""

from bench.config.modes import MODES
from bench.proof.gpu_check.a3_training import add, explain
from bench.proof.gpu_check.base import Part

PART = Part("A4", "sharded modes and local SGD on all GPUs: runs, timelines, options, 16-bit numbers")

for each, info in MODES.items():
    if info.on_request:
        add(PART, each, plain=False)
        explain(PART, each)
        add(PART, each, precision="fp16", accumulate=2)
