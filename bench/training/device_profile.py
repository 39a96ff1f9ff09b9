"""When a step of one device needs each parameter and has its gradient: with PROFILE=1 and one device, in the record.

From it `bench forecast` and `bench emulate` know what an engine can send, and when. It is taken in a few steps after
the timed ones, without a profiler: a hook before each module that has parameters of its own, and one on each parameter,
which torch calls when its gradient has been added up. The lengths of forward, backward and the optimizer's step are
those of the timed steps; what is here says how they are divided.
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
    """How many steps will be watched: none but with PROFILE=1 on one device. A compiled model has no modules to watch,
    with ACCUMULATE a step has several passes, and a sharded model has other parameters in forward than between steps."""
    one = config.profile and mode.topology.num_devices == 1 and mode.replicated
    return STEPS if one and not config.compile and config.accumulate == 1 else 0


def take(trainer: Trainer, run_step: Callable[[], None], steps: int = STEPS) -> dict:
    """The record's ``samples[0].profile``: lists have a value for each of ``steps`` calls of ``run_step``."""
    plain = trainer.mode.unwrap(trainer.model)
    watch = Moments(plain, trainer.device)
    with watch.on_modules(), trainer.hooked(watch):
        for _ in range(steps):
            watch.steps.append({})
            run_step()
    if watch.on_gpu:
        torch.cuda.synchronize(trainer.device)
    return watch.result(plain)


class Moments(Hook):
    """Moments of each step: of its phases, by their name, and of each parameter, by (what, its name)."""

    def __init__(self, model: nn.Module, device: torch.device):
        self.model, self.device, self.on_gpu = model, device, device.type == "cuda"
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.steps = []

    def note(self, key) -> None:
        """It is now, if it has not been before in this step."""
        if self.steps:
            self.steps[-1].setdefault(key, moment(self.device))

    def on_phase(self, name: str) -> None:
        self.note(name)

    @contextlib.contextmanager
    def on_modules(self) -> Iterator[None]:
        """Within it, the parameters' moments are noted."""
        hooks = []

        def needed(module: nn.Module, *_) -> None:
            for parameter in module.parameters(recurse=False):
                self.note(("needed", self.names[parameter]))

        def ready(parameter: nn.Parameter) -> None:
            self.note(("ready", self.names[parameter]))

        try:
            for module in self.model.modules():
                if next(module.parameters(recurse=False), None) is not None:
                    hooks.append(module.register_forward_pre_hook(needed))
            for parameter in self.names:
                if parameter.requires_grad:
                    hooks.append(parameter.register_post_accumulate_grad_hook(ready))
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def result(self, model: nn.Module) -> dict:
        """Seconds, from forward's and from backward's beginning. A parameter that was used without a call of the module
        that has it is needed when the one before it is; one that got no gradient is left out."""
        spans = {"forward_s": ("forward", "backward"), "backward_s": ("backward", "synchronize")}
        found = {name: [self.seconds(step, *ends) for step in self.steps] for name, ends in spans.items()}
        block_of = {
            f"{block}.{name}": block for block, module in blocks_of(model) for name, _ in module.named_parameters()
        }
        rows, before = [], [0.0] * len(self.steps)
        for name, parameter in model.named_parameters():
            needed = [
                self.seconds(step, "forward", ("needed", name)) if ("needed", name) in step else earlier
                for step, earlier in zip(self.steps, before, strict=True)
            ]
            before = needed
            if all(("ready", name) in step for step in self.steps):
                ready = [self.seconds(step, "backward", ("ready", name)) for step in self.steps]
                rows.append({"name": name, "shape": list(parameter.shape), "dtype": word(parameter),
                             "block": block_of.get(name, ""), "needed_s": needed, "ready_s": ready})  # fmt: skip
        sizes = {}
        for buffer in model.buffers():
            sizes[word(buffer)] = sizes.get(word(buffer), 0) + buffer.nbytes
        buffers = [{"dtype": dtype, "bytes": nbytes} for dtype, nbytes in sizes.items()]
        return found | {"parameters": rows, "buffers": buffers}

    def seconds(self, step: dict, start, end) -> float:
        """Between two moments of a step."""
        start, end = step[start], step[end]
        return round(start.elapsed_time(end) / 1000 if self.on_gpu else end - start, 7)


def word(tensor: torch.Tensor) -> str:
    """The type of its numbers: "float32"."""
    return str(tensor.dtype).removeprefix("torch.")
