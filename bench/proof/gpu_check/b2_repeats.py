"""Part B2: repeats of a run, and another process on the GPU."""

import subprocess
import sys

from bench.process.tree import Tree
from bench.proof.gpu_check import answers
from bench.proof.gpu_check.base import NotExercised, Part

PART = Part("B2", "repeats: the same run again, and beside somebody else's load")
OPTIONS = {"plain": False, "timed_steps": 50}
REPEATS = 3
LOAD = """
import torch
matrix = torch.randn(4096, 4096, device="cuda")
print("ready", flush=True)
while True:
    (matrix @ matrix).sum().item()
"""


@PART.check(48)
def spread(ground):
    """Do three runs with what is chosen by default differ in throughput by 3 % at most?"""
    return answers.spread([ground.run(**OPTIONS, label={"round": number}) for number in range(REPEATS)])


@PART.check(45)
def foreign(ground):
    """Is a process of somebody else on the GPU noted in the record?"""
    with Tree() as load:
        load.start([sys.executable, "-W", "ignore", "-c", LOAD], stdout=subprocess.PIPE, text=True)
        if load.process.stdout.readline().strip() != "ready":
            raise NotExercised("the other process did not start")
        record = ground.run(label={"variant": "beside a foreign load"})
    if record["summary"].get("foreign_gpu_processes") is None:
        raise NotExercised("NVML does not tell which of its processes are the run's: inside a container")
    return answers.noted_foreign(record)
