"""Waits of the host for the device: which lines of a script make it wait, and how often."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import ClassVar

import torch

from bench.observe.listening import listen
from bench.observe.origin import DEVICE, HOST, origin_of
from bench.observe.probe import Probe, Unheard

WAITS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__array__", "__format__", "__repr__")
COPIES = ("tolist", "cpu", "numpy", "__array__")  # of a tensor that lies on the CPU: no device has to be waited for
HERE = str(Path(__file__).parent)
DYNAMO = str(Path(torch.__file__).parent / "_dynamo" / "eval_frame.py")  # where what Dynamo must not compile is called
COUNTED_STEPS = 20


class HostSyncs:
    """Counts the steps in which a line makes the host wait for the device, while ``on``.

    Only lines of the script count: what torch and Horovod do within their own code is theirs. On a GPU only tensors
    that lie there count; where there is none, reading one number counts, as it would wait on a GPU, and copying does
    not. only: the files or folders whose lines count; none: all others. waiting: names of functions that wait on
    purpose. evaluates: whether the model is being evaluated, which reads results by design. origin: of the tensor that
    a frame reads (bench/observe/origin.py).
    """

    def __init__(
        self,
        on_gpu: bool,
        only: tuple[str, ...] = ("",),
        waiting: tuple[str, ...] = (),
        evaluates: Callable[[], bool] = lambda: False,
        guarded: Callable = lambda call: call,
        origin: Callable[[FrameType], int] = lambda frame: DEVICE,
    ):
        engines = [sys.modules[name].__file__ for name in ("torch", "horovod") if name in sys.modules]
        self.on_gpu, self.only, self.waiting, self.evaluates = on_gpu, only, waiting, evaluates
        self.but = (HERE, *(str(Path(file).parent) for file in engines))
        self.calls, self.lines, self.steps, self.on = Counter(), set(), 0, False
        self.origin, self.origins = origin, {}  # where a line's tensor comes from
        self.of_graph = False  # on a CPU: only tensors that a backward pass could begin at count
        names = [name for name in WAITS if on_gpu or name not in COPIES]
        self.ends = [listen(torch.Tensor, name, guarded(self.counter(name))) for name in names]

    def counter(self, name: str) -> Callable:
        def called(arguments: tuple, options: dict) -> None:
            tensor = arguments[0]
            waits = tensor.is_cuda or (not self.on_gpu and (tensor.requires_grad or not self.of_graph))
            if self.on and waits and not self.evaluates():
                self.count(outside(sys._getframe(1)), name)

        return called

    def count(self, caller: FrameType, name: str) -> None:
        file, function = caller.f_code.co_filename, caller.f_code.co_name
        if file.startswith(self.only) and not file.startswith(self.but) and function not in self.waiting:
            where = f"{Path(file).name}:{caller.f_lineno} {name.strip('_')}"
            if where not in self.origins:
                self.origins[where] = self.origin(caller)
            self.lines.add(where)

    def steps_of(self, batches: Iterable) -> Iterator:
        """The batches; what happens between two of them is a step. What the loader does does not count."""
        for batch in batches:
            self.step_begins()
            try:
                yield batch
            finally:
                self.step_ends()

    def step_begins(self) -> None:
        self.on = bool(self.ends)

    def step_ends(self, counts: bool = True) -> None:
        """The step has ended. counts: it was one of a training."""
        if self.on and counts:
            self.steps += 1
            self.calls.update(self.lines)
        self.on, self.lines = False, set()

    def close(self) -> None:
        self.on = False
        for end in self.ends:
            end()
        self.ends = []

    def result(self) -> list[dict] | None:
        """The lines that wait, most steps first; None before any step."""
        if not self.steps:
            return None
        return [{"where": where, "per_step": count / self.steps} for where, count in self.calls.most_common(20)
                if self.origins[where] == DEVICE]  # fmt: skip

    def unknown(self) -> list[str]:
        """Lines of which it is not known whether they wait, of those that would in at least every other step."""
        often = [where for where, count in self.calls.most_common(20) if 2 * count >= self.steps]
        return [where for where in often if self.origins[where] not in (HOST, DEVICE)]


def outside(frame: FrameType) -> FrameType:
    """The frame that called a method which is heard, whoever hears it."""
    while frame.f_back and frame.f_code.co_filename.startswith((HERE, DYNAMO)):
        frame = frame.f_back
    return frame


class Waits(Probe):
    """The waits of the first COUNTED_STEPS steps of a training; what is merely evaluated is none. A step lasts from a
    batch to the end of its training, and without a loader from one step of an optimizer to the next."""

    joins: ClassVar = {"host_syncs": lambda ranks: ranks[0]}
    silent: ClassVar = {"host_syncs": "no step was seen"}
    waits, walks, enabled = None, False, False

    def start(self) -> None:
        on_gpu = any(p.is_cuda for p in self.watch.model.parameters())
        origin = {} if on_gpu else {"origin": origin_of}
        self.waits = HostSyncs(on_gpu, evaluates=lambda: not self.watch.training, guarded=self.guarded, **origin)

    def fetched(self, epoch, batch) -> None:
        self.walks = True
        self.begins()

    def trained(self, epoch) -> None:
        self.ends()

    def after_step(self, optimizer) -> None:
        if self.waits and not self.walks and not self.watch.stepping:
            self.waits.of_graph = True  # what draws the batches reads numbers, too, and is not known from the rest
            self.ends()
            self.begins()

    def begins(self) -> None:
        if self.waits:
            self.waits.step_begins()
            self.enabled = torch.is_grad_enabled() and self.watch.training

    def ends(self) -> None:
        if self.waits:
            self.waits.step_ends(self.enabled)
            if self.waits.steps == COUNTED_STEPS:
                self.waits.close()

    def close(self) -> None:
        if self.waits:
            self.waits.close()

    def part(self) -> dict:
        found, unknown = (self.waits.result(), self.waits.unknown()) if self.waits else (None, [])
        if unknown and not any(2 * line["per_step"] >= 1 for line in found):
            raise Unheard(f"whether a GPU would have to be waited for is not known on a CPU: {', '.join(unknown[:3])}")
        return {"host_syncs": found}
