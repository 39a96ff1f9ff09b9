"""Part B1: two ranks on one GPU, over Gloo and NCCL (from 2.30 on), for code that one rank does not reach: Horovod's
hooks, ``nn.SyncBatchNorm``."""

import os

from bench.config.fields import option_value
from bench.config.modes import MODES
from bench.measure.nccl import SHARING
from bench.proof.gpu_check import answers
from bench.proof.gpu_check.base import Answer, Part
from bench.proof.gpu_check.ground import HOROVOD, SHARED_NCCL

PART = Part("B1", "shared: two ranks on one GPU, over Gloo and over NCCL")
RUN_S = 16
VERIFY = ["-m", "bench", "verify", "--gpus", "2", "--share-gpu", "1", "--device", "cuda"]
SMALL = {"model": "resnet18", "image_size": 64, "share_gpu": True}


def verified(ground, variables: dict) -> Answer:
    code, said = ground.command(VERIFY, 400, variables)
    return Answer(code == 0, {"verify": said.strip().rpartition("\n")[2]})


def add(over: str, mode: str = "ddp", **options) -> None:
    name = " ".join([over, mode, *(f"{option}={option_value(value)}" for option, value in options.items())])
    needs = [] if over == "Gloo" else [SHARED_NCCL, *([HOROVOD] if MODES[mode].needs else [])]

    def run(ground):
        if over == "Gloo":
            os.environ[SHARING] = "0"
        record = ground.run(mode, 2, **SMALL | options)
        said = any(f"share one GPU, over {over}" in note for note in record.notes)
        return answers.both(answers.equal_replicas(record), answers.clocks(record), Answer(said, {"over": over}))

    PART.add(name, f"Do two ranks on one GPU stay equal with {name}, and are the clocks right?", run, RUN_S, *needs)


@PART.check(90)
def verify_gloo(ground):
    """Do ddp, zero1 and fsdp over Gloo compute single's update, within four times its own difference in two passes?"""
    return verified(ground, {SHARING: "0"})


add("Gloo", norm="sync")
add("Gloo", compression="powersgd")


@PART.check(110, SHARED_NCCL)
def verify_nccl(ground):
    """Do ddp, zero1, fsdp and Horovod over NCCL compute single's update, within the same bound?"""
    return verified(ground, {SHARING: "1"})


add("NCCL", overlap=False)
add("NCCL", compression="powersgd")
add("NCCL", norm="sync")


@PART.check(20, SHARED_NCCL)
def profile(ground):
    """Has the timeline of a step of ddp over NCCL its compute and communication lanes?"""
    return answers.lanes(ground.run("ddp", 2, **SMALL, profile=True), "phase", "compute", "communication")


add("NCCL", "horovod", norm="sync")
for cycle in (0.5, 25.0):
    add("NCCL", "horovod", cycle_time_ms=cycle)
add("NCCL", "horovod", async_completion=True)
for sharded in ("zero1", "fsdp", "local"):
    add("NCCL", sharded)


def broken(kind: str, said: str):
    """A check: rank 1 of two fails, which the run reports, and no process is left. For one that hangs the other rank's
    collective is known too: over NCCL from torch's flight recorder, not the stack."""

    def run(ground):
        limit = {"timeout": 30.0} if kind == "hang" else {}
        before = descendants()
        found = ground.failing(mode="ddp", devices=2, **SMALL | limit | {"fault": f"{kind}:1:3"})
        answer = answers.failure(found, said, 1, len(descendants() - before))
        return answers.both(answer, answers.awaited(found, 1)) if kind == "hang" else answer

    return run


def descendants() -> set:
    import psutil

    return set(psutil.Process().children(recursive=True))


for kind, word in {"kill": "killed", "raise": "raised", "hang": "hung"}.items():
    PART.add(f"fault {kind}", f"Is a rank that {'was ' * (kind == 'kill')}{word} named, and is nobody left behind?",
             broken(kind, word), 20 if kind != "hang" else 60)  # fmt: skip
