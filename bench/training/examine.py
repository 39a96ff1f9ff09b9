"""The steps after the timed ones: a device profile and a timeline (PROFILE=1), memory by kind (MEMORY=1)."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from torch.utils.data import Dataset

from bench.config.options import RunConfig
from bench.measure.clock import moment
from bench.modes.base import Mode
from bench.profile.allocations import address_of, record_step
from bench.profile.memory_parts import Note
from bench.profile.timeline import PROFILED_STEPS
from bench.structure import blocks_of, module_tensors, tensors
from bench.training.hooks import Hook
from bench.training.loop import Trainer

STEPS = 5  # of the device profile
KEPT = "rank{}-torch-profile.json"  # in the run's folder, with PROFILE=torch


def examine(trainer: Trainer, stream: Iterator, train_set: Dataset, done: int, profiled: int, devices: list) -> dict:
    """PROFILE=1 and MEMORY=1: a few more steps after ``done``. profiled: those of the device profile. devices: get the
    content of each device's memory at its peak."""
    mode, found = trainer.mode, {}
    take_step = functools.partial(trainer.train_steps, stream, 1)
    if profiled:  # before a profiler, which slows down a step
        found["profile"] = profile_device(trainer, take_step, profiled)
    if mode.timeline:
        until_exchange = -(done + profiled + PROFILED_STEPS) % mode.period
        trainer.train_steps(stream, until_exchange)  # the watched step exchanges
        phases = Hook()
        phases.on_phase = mode.timeline.phase
        with trainer.hooked(phases):
            kept = trainer.run_dir / KEPT.format(mode.topology.rank) if trainer.config.profile_kept else None
            mode.timeline.record(take_step, mode.barrier, kept=kept)
        found["timeline"] = mode.timeline.result(trainer.step - 1)
    if trainer.config.memory:
        mode.compute_in_calling_thread(trainer.model)
        mode.barrier()
        kept = functools.partial(holdings, trainer, train_set)
        with notes_of(trainer, address_of) as noted:
            filled = record_step(take_step, mode.topology.devices, kept, noted, mode.buckets)
        for device, parts in zip(devices, filled, strict=True):
            device["memory_parts"] = parts
    return found


def profiled_steps(config: RunConfig, mode: Mode) -> int:
    """None for a compiled model, which has no modules to watch, and with ACCUMULATE (several passes per step)."""
    one = config.profile and mode.topology.num_devices == 1 and mode.replicated  # a sharded model has other parameters
    return STEPS if one and not config.compile and config.accumulate == 1 else 0


def profile_device(trainer: Trainer, run_step: Callable[[], None], steps: int) -> dict:
    """The record's ``samples[0].profile``: when a step of one device needs each parameter and has its gradient, for
    `bench predict step`. Lists have a value for each call of ``run_step``."""
    watch = Moments(trainer.mode.unwrap(trainer.model), trainer.device)
    with watch.on_modules(), trainer.hooked(watch):
        for _ in range(steps):
            watch.steps.append({})
            run_step()
    if watch.on_gpu:
        torch.cuda.synchronize(trainer.device)
    return watch.result()


class Moments(Hook):
    """The times of each step's phases, by name, and of each parameter, by ("needed" or "ready", name)."""

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
        """Seconds from the start of forward and of backward. A parameter used without a call of its module gets the
        time of the one before it; one without a gradient is left out."""
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


# --- memory -----------------------------------------------------------------------------------------------------------


def holdings(trainer: Trainer, train_set=None) -> Iterator[tuple[str, torch.Tensor]]:
    """(kind, tensor) of memory that stays between two steps; of two tensors that share memory the first counts. kind:
    see bench/profile/memory_parts.py."""
    plain = trainer.mode.unwrap(trainer.model)
    for parameter in plain.parameters():
        yield "weights", local(parameter)
        if parameter.grad is not None:
            yield "gradients", local(parameter.grad)
    yield from (("buffers", buffer) for buffer in plain.buffers())
    for state in trainer.mode.state_of(trainer.optimizer).values():
        yield from (("optimizer state", local(value)) for value in state.values() if torch.is_tensor(value))
    for replica in trainer.mode.kept_replicas(trainer.model):
        yield from (("replicas", tensor) for tensor in module_tensors(replica))
    for averaged in trainer.averages.models.values() if trainer.averages else ():
        yield from (("averages", tensor) for tensor in module_tensors(averaged))
    if getattr(train_set, "bytes_on_device", 0):
        yield from (("data", tensor) for tensor in (train_set.images, train_set.labels))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@contextlib.contextmanager
def notes_of(trainer: Trainer, address_of: Callable[[torch.Tensor], int]) -> Iterator[list[Note]]:
    """Tensors that exist only during a step: the batch, and the mode's."""
    noted, batches = [], Hook()

    def note(kind: str, tensors: Iterable[torch.Tensor]) -> None:
        noted.extend(Note(kind, address_of(tensor), time.time_ns()) for tensor in tensors)

    batches.after_prepare = lambda inputs, prepared: note("images", tensors((inputs, prepared)))
    with trainer.hooked(batches), trainer.mode.step_only_tensors(trainer.model, note):
        yield noted
