"""When a step of one device needs each parameter and has its gradient: PROFILE=1 with one device, in the record.

`bench forecast` and `bench emulate` learn from it when a launcher can send what. It is taken in a few steps after the
timed ones, without a profiler, by hooks on modules and parameters. It says how a step is divided; the timed steps say
how long its phases are.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from bench.config.options import RunConfig
from bench.measure.clock import moment
from bench.modes.base import Mode
from bench.structure import blocks_of
from bench.training.hooks import Hook
from bench.training.loop import Trainer

STEPS = 5  # that are watched


def profiled_steps(config: RunConfig, mode: Mode) -> int:
    """None for a compiled model, which has no modules to watch; with ACCUMULATE, where a step has several passes; and for
    a sharded model, whose parameters in forward are others."""
    one = config.profile and mode.topology.num_devices == 1 and mode.replicated
    return STEPS if one and not config.compile and config.accumulate == 1 else 0


def take(trainer: Trainer, run_step: Callable[[], None], steps: int) -> dict:
    """The record's ``samples[0].profile``: lists have a value for each of ``steps`` calls of ``run_step``."""
    watch = Moments(trainer.mode.unwrap(trainer.model), trainer.device)
    with watch.on_modules(), trainer.hooked(watch):
        for _ in range(steps):
            watch.steps.append({})
            run_step()
    if watch.on_gpu:
        torch.cuda.synchronize(trainer.device)
    return watch.result()


class Moments(Hook):
    """Of each step the moments of its phases, by their name, and of each parameter, by ("needed" or "ready", name)."""

    def __init__(self, model: nn.Module, device: torch.device):
        self.model, self.device, self.on_gpu = model, device, device.type == "cuda"
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.steps = []

    def on_phase(self, name) -> None:
        """The first moment of a name counts."""
        if self.steps:
            self.steps[-1].setdefault(name, moment(self.device))

    @contextlib.contextmanager
    def on_modules(self) -> Iterator[None]:
        def needed(module: nn.Module, *_) -> None:
            for parameter in module.parameters(recurse=False):
                self.on_phase(("needed", self.names[parameter]))

        def ready(parameter: nn.Parameter) -> None:
            self.on_phase(("ready", self.names[parameter]))

        with contextlib.ExitStack() as undo:
            for module in self.model.modules():
                if next(module.parameters(recurse=False), None) is not None:
                    undo.callback(module.register_forward_pre_hook(needed).remove)
            for parameter in self.names:
                if parameter.requires_grad:
                    undo.callback(parameter.register_post_accumulate_grad_hook(ready).remove)
            yield

    def result(self) -> dict:
        """Seconds, from the start of forward and of backward. A parameter that is used without a call of its module
        is needed when the one before it is; one that got no gradient is left out."""
        block_of = {f"{block}.{name}": block for block, module in blocks_of(self.model)
                    for name, _ in module.named_parameters()}  # fmt: skip
        rows, needed = [], [0.0] * len(self.steps)
        for name, parameter in self.model.named_parameters():
            if all(("needed", name) in step for step in self.steps):
                needed = self.seconds("forward", ("needed", name))
            if all(("ready", name) in step for step in self.steps):
                rows.append({"name": name, "shape": list(parameter.shape), "dtype": dtype_name(parameter),
                             "block": block_of.get(name, ""), "needed_s": needed,
                             "ready_s": self.seconds("backward", ("ready", name))})  # fmt: skip
        sizes = {}
        for buffer in self.model.buffers():
            sizes[dtype_name(buffer)] = sizes.get(dtype_name(buffer), 0) + buffer.nbytes
        return {
            "forward_s": self.seconds("forward", "backward"),
            "backward_s": self.seconds("backward", "synchronize"),
            "parameters": rows,
            "buffers": [{"dtype": dtype, "bytes": nbytes} for dtype, nbytes in sizes.items()],
        }

    def seconds(self, start, end) -> list[float]:
        """From one moment to another, in each step."""
        pairs = [(step[start], step[end]) for step in self.steps]
        return [round(a.elapsed_time(b) / 1000 if self.on_gpu else b - a, 7) for a, b in pairs]


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
