"""Part A1: clocks, memory, data and the computation of each backend on this GPU.

``nn.DataParallel`` with one device calls its module directly, so it gets the GPU twice.
"""

from bench.install import horovod_install, horovod_status
from bench.proof.gpu_check import answers
from bench.proof.gpu_check.base import Answer, Part
from bench.proof.gpu_check.ground import CXX, HOROVOD, SHORT

PART = Part("A1", "truth: clocks, memory, data, and what each engine computes")


@PART.check(150, CXX)
def horovod_build(ground):
    """Does Horovod build against this torch, for this machine's GPUs, with NCCL?"""
    horovod_install.install("here", timeout=480)
    return Answer(horovod_status.nccl_built(), {"version": horovod_status.installed_version()})


@PART.check(15)
def machine(ground):
    """What is this machine? Does NVML show its memory in 50 ms or less, and is its NCCL no older than torch's?"""
    return answers.machine(probes().machine(cuda()))


for name, seconds, answer, question in (
    ("event-clock", 20, answers.clocks,
     "Do the steps' CUDA events agree with a synchronised wall clock, within 1 %?"),
    ("phases", 1, answers.phases, "Are the phases of a step no longer than the step?"),
    ("data-wait", 1, answers.data_wait,
     "Does the host wait less than 1 ms, or 5 % of a step, for a batch of DATA=synthetic, which is on the device?"),
    ("memory", 1, answers.memory, "Does NVML show the device's memory, and no process with more than that?"),
):  # fmt: skip
    PART.add(name, question, lambda ground, answer=answer: answer(ground.run(timed_steps=100)), seconds)


@PART.check(20)
def memory_parts(ground):
    """Are the parts of MEMORY=1 what torch has allocated at the peak, within 10 %, and no more than it holds?"""
    return answers.memory_parts(ground.run(plain=False))


@PART.check(20)
def compute_lane(ground):
    """Is the timeline's compute lane as long as a known sequence of kernels, within 2 %?"""
    return answers.same_lane(*probes().kernel_lane(cuda()))


@PART.check(20)
def batches(ground):
    """Do 50 batches that are sent from pinned memory without waiting arrive as the data set made them?"""
    found = probes().batches(cuda(), ground.asked.data_dir)
    return answers.within(found, dict.fromkeys(found, 0))


@PART.check(15, SHORT)
def data_parallel(ground):
    """Has nn.DataParallel with two replicas on one GPU the model's own gradients, and bf16 where that is asked for?"""
    return answers.within(probes().dataparallel(cuda()), {"gradients": 1e-3, "not bf16": 0})


@PART.check(20)
def ddp_hooks(ground):
    """Has DDP the model's own gradients at one NCCL rank: plain, with OVERLAP=0, fp16 and PowerSGD?"""
    found = probes().hooks(cuda())
    bounds = {name: bound for name, (_, bound) in probes().HOOKS.items()}
    return answers.within(found, bounds | {"powersgd later": 10})


@PART.check(20, HOROVOD)
def horovod_alone(ground):
    """Does Horovod train at one rank, with the right clocks? (It sends nothing there: part B1 has two.)"""
    return answers.clocks(ground.run("horovod"))


@PART.check(15, HOROVOD)
def horovod_hooks(ground):
    """Has Horovod the model's own gradients at one rank, where HOROVOD_ELASTIC=1 makes it send them over NCCL?"""
    return answers.within(probes().horovod_hooks(cuda()), {"gradients": 1e-3, "not sent": 0})


def probes():
    """The module, which imports torch: not for a plan."""
    from bench.proof.gpu_check import probes

    return probes


def cuda():
    import torch

    torch.cuda.set_device(device := torch.device("cuda", 0))
    return device
