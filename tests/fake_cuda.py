"""Steps of trainings on a GPU that is not there: torch computes shapes, types and devices, and no number.

``LD_PRELOAD=libcuda.so.1 python -m tests.fake_cuda ROWS``: ROWS is JSON, name -> options of a RunConfig, which gets a
GPU's defaults. It prints JSON: of each where everything lies, or its error. This rank is the first of those that GPUS
says. Under torch's FakeTensorMode an operation on tensors of two devices is an error, as it is on a GPU, and one that
DTensor does not have as well.

What would ask a driver stands in here: streams, events, the device's properties, and the process group, which is
torch's "fake" backend. So nothing is shown of the order of kernels, and what depends on a number is not available: the
scaler of fp16. Under DDP the backward pass ends in torch's C++ reducer, which takes no fake tensors: there the steps
end with the forward pass.
"""

import contextlib
import ctypes
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel, distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes import collectives, ddp, fsdp
from bench.proof.gpu_check import bare_loop
from bench.workload import own_code, text
from bench.workload.loader import Draws

DRIVER = ctypes.CDLL("libcuda.so.1")  # tests/stubs/cuda_stub.c, loaded before all others (LD_PRELOAD)
STEPS, GPUS, CAPABILITY, MEMORY_GIB = 2, 64, (9, 0), 79.6
LABELS_STAY = "labels stay on the CPU"  # a row of this name is made with a mistake
SGD = torch.library.Library("aten", "IMPL")  # torch has fake kernels for its other fused optimizers


class Event:  # never there yet, so nobody reads a number behind it
    def __init__(self, *_, **__): ...

    def query(self) -> bool:
        return False

    def __getattr__(self, name: str):
        return lambda *_: self


class Stream:
    def __init__(self, *_, **__): ...

    def __getattr__(self, name: str):
        return lambda event=None: event or Event()


def join(config: RunConfig) -> collectives.Topology:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=config.num_devices)
    return collectives.Topology(0, 0, config.num_devices, 1, torch.device("cuda", 0))


def outside(function):
    """The function, with numbers: it reads them."""

    def call(*arguments, **options):
        with unset_fake_temporarily():
            return function(*arguments, **options)

    return call


def batches(config: RunConfig, topology, dataset, steps: int):
    """Those of the loader, which would ask for a random number."""
    return map(dataset.__getitem__, Draws(config, topology, len(dataset), steps))


def to(model: nn.Module, device: torch.device, memory_format: torch.memory_format | None = None) -> nn.Module:
    """``Module.to``, which changes a parameter in its place: torch does not do that to a fake one."""
    found = {}

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in found:
            order = {"memory_format": memory_format} if memory_format and tensor.dim() == 4 else {}
            there = tensor.detach().to(device, **order)
            trained = isinstance(tensor, nn.Parameter)
            found[tensor] = nn.Parameter(there, tensor.requires_grad) if trained else there
        return found[tensor]

    for module in model.modules():
        for own in (module._parameters, module._buffers):
            own |= {name: moved(tensor) for name, tensor in own.items() if tensor is not None}
    return model


def gpus(count: int) -> None:
    """From now on there are N devices. Usually there is none: what finds one asks for its properties."""
    DRIVER.stub_set_devices(count)


def backward(loss: torch.Tensor, run=torch.Tensor.backward) -> None:
    """A backward pass begins with a look at every GPU's context: there are some until the first gradient is there."""
    loss.register_hook(lambda gradient: gpus(0))
    gpus(GPUS)
    run(loss)


def with_gpus(function):
    """DDP's reducer takes the time on a stream, which is a GPU's."""

    def call(*arguments, **options):
        gpus(GPUS)
        try:
            return function(*arguments, **options)
        finally:
            gpus(0)

    return call


def stand_in() -> None:
    torch.Tensor.backward = backward
    for name in ("_pre_forward", "_post_forward"):
        setattr(DistributedDataParallel, name, with_gpus(getattr(DistributedDataParallel, name)))
    collectives.join, bare_loop.training_batches, nn.Module.to = join, batches, to
    for owner, name in ((fsdp.DeviceMesh, "from_group"), (text.Workload, "load")):
        setattr(owner, name, outside(getattr(owner, name)))
    own_code.try_out = lambda *_: None  # it would ask for a GPU's random numbers
    SGD.impl("_fused_sgd_", lambda *tensors, **options: None, "Meta")
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    properties = SimpleNamespace(total_memory=int(MEMORY_GIB * 2**30), major=CAPABILITY[0], minor=CAPABILITY[1])
    distributed._verify_param_shape_across_processes = lambda group, tensors, logger=None: None  # it looks at numbers
    zeros = torch.zeros
    torch.zeros = lambda *size, pin_memory=False, **options: zeros(*size, **options)
    for name, value in {
        "is_available": lambda: False, "Event": Event, "Stream": Stream, "current_stream": lambda device=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(), "set_device": lambda device: None,
        "current_device": lambda: 0, "device_count": lambda: 8, "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda including_emulation=True: True, "memory_reserved": lambda device=None: 0,
        "get_device_properties": lambda device=None: properties,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, value)


def train(built: bare_loop.Harness) -> None:
    """STEPS steps, or under DDP one forward pass: before a second one it reads the time of the first."""
    trainer = built.trainer
    if not isinstance(built.mode, ddp.Mode):
        trainer.clock.start()
        built.train(STEPS)
        return
    inputs, targets, _ = next(built.stream)
    with trainer.autocast:
        _, loss = trainer.script.forward(built.model, trainer.workload.prepare(inputs), targets)
    trainer.loss_sum += loss.detach()


def lies(tensors) -> dict[str, int]:
    own = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return Counter(f"{tensor.device} {str(tensor.dtype).removeprefix('torch.')}" for tensor in own)


def state_of(optimizer) -> list[torch.Tensor]:
    """The numbers that an optimizer keeps, but for its steps."""
    state = getattr(optimizer, "optim", optimizer).state  # of zero1 its own part
    return [value for each in state.values() for value in each.values() if torch.is_tensor(value) and value.dim()]


def batch_norms() -> dict[str, str]:
    """Type and memory order of the images -> what torch runs a batch norm by, with weights in float32."""
    found = {}
    for name, dtype in {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}.items():
        for order in (torch.contiguous_format, torch.channels_last):
            images = torch.empty(8, 64, 56, 56, device="cuda", dtype=dtype).to(memory_format=order)
            numbers = [torch.empty(64, device="cuda") for _ in range(4)]
            backend = torch._C._select_batch_norm_backend(images, *numbers, True, 1e-5)
            found[f"{name} {str(order).removeprefix('torch.')}"] = str(backend).rpartition(".")[2]
    return found


def take_steps(options: dict, folder: Path, mistake: bool) -> dict:
    config = resolve(RunConfig(**options), "cuda", 16, CAPABILITY, MEMORY_GIB)
    try:
        built = bare_loop.Harness(config, folder, pairs=1)
        if mistake:
            loss = built.trainer.script.loss
            built.trainer.script.loss = lambda outputs, targets: loss(outputs, targets.cpu())
        train(built)
        trained = list(built.model.parameters())
        return {
            "parameters": lies(trained), "buffers": lies(built.model.buffers()),
            "gradients": lies(p.grad for p in trained if p.grad is not None),
            "optimizer": lies(state_of(built.optimizer)), "loss": lies([built.trainer.loss_sum]),
            "defaults": config.label.gpu_defaults,
        }  # fmt: skip
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> None:
    found = {}
    with FakeTensorMode(allow_non_fake_inputs=True), tempfile.TemporaryDirectory() as folder:
        stand_in()
        found["batch norm"] = batch_norms()
        for name, options in json.loads(sys.argv[1]).items():
            try:
                found[name] = take_steps(options, Path(folder), name == LABELS_STAY)
            except Exception as error:
                traceback.print_exc()
                found[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found), flush=True)
    os._exit(0)  # DDP's reducer would ask for its GPU once more, to be taken down


if __name__ == "__main__":
    main()
