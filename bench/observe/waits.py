"""Waits of the host for the device: which lines of a script make it wait, and how often."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import ClassVar

import torch

from bench.observe.probe import Probe

WAITS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__array__", "__format__", "__repr__")
HERE = str(Path(__file__).parent)
COUNTED_STEPS = 20


class HostSyncs:
    """Counts the calls that make the host wait for the device, by the line that makes them, while ``on``.

    Only lines of the script count: what torch and Horovod do within their own code is theirs. On a GPU only tensors
    that lie there count. only: the files or folders whose lines count; none: all others. waiting: names of functions
    that wait on purpose.
    """

    def __init__(self, on_gpu: bool, only: tuple[str, ...] = ("",), waiting: tuple[str, ...] = ()):
        engines = [sys.modules[name].__file__ for name in ("torch", "horovod") if name in sys.modules]
        self.on_gpu, self.only, self.waiting = on_gpu, only, waiting
        self.but = (HERE, *(str(Path(file).parent) for file in engines))
        self.calls, self.steps, self.on = Counter(), 0, False
        self.before = {name: vars(torch.Tensor).get(name) for name in WAITS}
        for name in WAITS:
            setattr(torch.Tensor, name, self.counting(name, getattr(torch.Tensor, name)))

    def counting(self, name: str, method: Callable) -> Callable:
        """The method, counted."""

        def counted(tensor, *arguments, **options):
            if self.on and (tensor.is_cuda or not self.on_gpu):
                self.count(sys._getframe(1), name)
            return method(tensor, *arguments, **options)

        return counted

    def count(self, caller: FrameType, name: str) -> None:
        """A line has called a method that waits."""
        file, function = caller.f_code.co_filename, caller.f_code.co_name
        if file.startswith(self.only) and not file.startswith(self.but) and function not in self.waiting:
            self.calls[f"{Path(file).name}:{caller.f_lineno} {name.strip('_')}"] += 1

    def steps_of(self, batches: Iterable) -> Iterator:
        """The batches; what happens between two of them is a step. What the loader does does not count."""
        for batch in batches:
            self.step_begins()
            try:
                yield batch
            finally:
                self.on = False

    def step_begins(self) -> None:
        """Count from here on, until ``on`` is taken back."""
        self.on = bool(self.before)
        self.steps += self.on

    def close(self) -> None:
        """Give torch its own methods back."""
        self.on = False
        for name, own in self.before.items():
            if own is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, own)
        self.before = {}

    def result(self) -> list[dict] | None:
        """The lines, most calls first; None before any step."""
        if not self.steps:
            return None
        return [{"where": where, "per_step": count / self.steps} for where, count in self.calls.most_common(20)]


class Waits(Probe):
    """The waits of the first COUNTED_STEPS steps."""

    joins: ClassVar = {"host_syncs": lambda ranks: ranks[0]}
    silent: ClassVar = {"host_syncs": "no step was seen"}
    waits = None

    def begin(self, loader) -> None:
        self.waits = HostSyncs(any(p.is_cuda for p in self.watch.model.parameters()))

    def fetched(self, epoch, batch) -> None:
        self.waits.step_begins()

    def trained(self, epoch) -> None:
        self.waits.on = False
        if self.waits.steps == COUNTED_STEPS:
            self.waits.close()

    def close(self) -> None:
        if self.waits:
            self.waits.close()

    def part(self) -> dict:
        return {"host_syncs": self.waits and self.waits.result()}
