"""Experiments in one process of torch, without a run; most also work on a CPU."""

import copy
import dataclasses
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.launch.engines.horovodrun import loaded
from bench.measure import nccl, nvml
from bench.measure.clock import StepClock, moment
from bench.measure.environment import cuda_identity
from bench.modes import ddp, load_mode
from bench.modes.dp import DataParallel
from bench.profile.timeline import StepTimeline
from bench.training.loop import set_precision
from bench.workload import load_workload
from bench.workload.loader import Draws, training_batches
from bench.workload.models import build_model

SAMPLES = 50  # of NVML
BATCHES = 50
KERNELS = 20  # of a known sequence, twice
PAUSE_S = 0.02  # between the two


def machine(device: torch.device) -> dict:
    """Driver, versions, whether NVML shows this process, and the time of a query in ms."""
    held = torch.zeros(2**20, device=device)
    source, remark = nvml.open_device(**cuda_identity(device.index), position=device.index)
    costs = []
    for _ in range(SAMPLES if source else 0):
        begin = time.perf_counter()
        used, mine = source.used_bytes(), source.process_bytes(os.getpid())
        costs.append(1e3 * (time.perf_counter() - begin))
    del held
    return {
        "gpu": torch.cuda.get_device_name(device),
        "capability": "{}.{}".format(*torch.cuda.get_device_capability(device)),
        "driver": nvml.nvml_state()[0],
        "torch": torch.__version__,
        **nccl_versions(),
        "libcuda.so": "found" if loaded("libcuda.so") else "only its numbered name",
        "device seen": bool(source and used),
        "process seen": bool(source and mine),
        "sample ms": statistics.median(costs) if costs else None,
        "remark": remark,
    }


def nccl_versions() -> dict[str, str]:
    versions = {"nccl": nccl.loaded_version(), "nccl of torch": torch.cuda.nccl.version()[:3]}
    return {name: ".".join(map(str, version)) for name, version in versions.items()}


def kernel_lane(device: torch.device, size: int = 4096) -> tuple[float, float]:
    """A profiled step of matrix products with a pause: seconds of the compute lane, and by the clock around both
    halves."""
    timeline = StepTimeline(device, [device])
    left, result = torch.randn(size, size, device=device), torch.empty(size, size, device=device)
    halves, clock = [], StepClock(device)

    def half() -> None:
        begin = moment(device)
        for _ in range(KERNELS):
            torch.mm(left, left, out=result)
        halves.append((begin, moment(device)))

    def step() -> None:
        halves.clear()
        half()
        timeline.synchronize()
        time.sleep(PAUSE_S)
        half()

    timeline.record(step, lambda: None)
    found = timeline.result(0)
    print("\n".join(found["notes"]))
    busy = [span["end_s"] - span["start_s"] for span in found["spans"] if span["lane"] == "compute"]
    return sum(busy), sum(clock.seconds(*each) for each in halves)


def batches(device: torch.device, data_dir: str, workers: int = 2) -> dict[str, float]:
    """The number of batches that differ from the data set's after non-blocking copies from pinned memory."""
    config = plain(device, data="digits", data_dir=data_dir, image_size=64, workers=workers)
    mode = load_mode("single")(config)
    train_set, _ = load_workload(config, device).load(mode, print)
    sent = []
    loader = training_batches(config, mode.topology, train_set, BATCHES, keep=False)
    for images, labels, _ in loader:
        sent.append((images.to(device, non_blocking=True), labels.to(device, non_blocking=True)))
    right = [train_set[draws] for draws in Draws(config, mode.topology, len(train_set), BATCHES)]
    wrong = sum(
        not (torch.equal(there.cpu(), images) and torch.equal(theirs.cpu(), labels))
        for (there, theirs), (images, labels, _) in zip(sent, right, strict=True)
    )
    return {"wrong batches": wrong, "missing batches": BATCHES - len(sent)}


def plain(device: torch.device, **options) -> RunConfig:
    given = {"mode": "single", "model": "resnet18", "data": "synthetic", "norm": "none", "image_size": 64} | options
    return resolve(RunConfig(**given), device.type, os.cpu_count() or 1)


def problem(device: torch.device, precision: str = "fp32") -> tuple:
    """A small model without norms, images [16, 3, 64, 64], labels [16], and the autocast context."""
    config = plain(device, precision=precision, allow_slow=True)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 3, 64, 64, generator=generator).to(device)
    labels = torch.randint(10, (16,), generator=generator).to(device)
    return build_model(config, 10, 0, print).to(device), images, labels, set_precision(config)


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    nn.functional.cross_entropy(model(images).float(), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    return ((left - right).norm() / right.norm()).item()


def dataparallel(device: torch.device) -> dict[str, float]:
    """Relative error of ``nn.DataParallel``'s gradients with two replicas on one GPU; the number of replicas that did
    not compute in bf16."""
    model, images, labels, _ = problem(device)
    alone = gradients(model, images, labels)
    doubled = DataParallel(model, device_ids=[device.index, device.index])
    difference = apart(gradients(doubled, images, labels), alone)
    model, images, labels, autocast = problem(device, "bf16")
    seen = []
    model.fc.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with autocast:
        gradients(DataParallel(model, device_ids=[device.index, device.index]), images, labels)
    return {"gradients": difference, "not bf16": sum(dtype != torch.bfloat16 for dtype in seen) + abs(2 - len(seen))}


# Options of ddp, and the bound of the relative error: fp16 rounds; PowerSGD sends the first two steps uncompressed. A
# wrong mean would be off by a factor.
HOOKS = {
    "plain": ({}, 1e-3),
    "overlap=0": ({"overlap": False}, 1e-3),
    "fp16": ({"compression": "fp16"}, 5e-3),
    "powersgd": ({"compression": "powersgd"}, 1e-3),
}


def hooks(device: torch.device) -> dict[str, float]:
    """Relative errors of DDP's gradients with each hook at one rank; "powersgd later" in its fourth step."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        model, images, labels, _ = problem(device)
        alone, found = gradients(model, images, labels), {}
        for name, (options, _) in HOOKS.items():
            wrapped = DistributedDataParallel(
                copy.deepcopy(model), device_ids=[device.index] if device.type == "cuda" else None
            )
            config = dataclasses.replace(plain(device), mode="ddp", launcher="torchrun", **options)
            state, hook = ddp.communication_hook(config)
            wrapped.register_comm_hook(state, hook or default_hooks.allreduce_hook)
            found[name] = apart(gradients(wrapped, images, labels), alone)
            if name == "powersgd":
                later = [apart(gradients(wrapped, images, labels), alone) for _ in range(3)]
                found["powersgd later"] = later[-1]
        return found
    finally:
        dist.destroy_process_group()


def horovod_hooks(device: torch.device) -> dict[str, float]:
    """Relative error of Horovod's gradients at one rank, and the number of gradients that were not sent. At one rank
    Horovod sends only with HOROVOD_ELASTIC=1, which is set after init(): init() would look for other ranks."""
    import horovod.torch as hvd

    hvd.init()
    os.environ["HOROVOD_ELASTIC"] = "1"
    model, images, labels, _ = problem(device)
    alone = gradients(model, images, labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    gradients(model, images, labels)
    sent = len(optimizer._handles)
    optimizer.synchronize()
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    hvd.shutdown()
    return {"gradients": apart(found, alone), "not sent": abs(len(list(model.parameters())) - sent)}
