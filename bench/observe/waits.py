"""Waits of the host for the device: the lines of a script that cause them, and how often.

Without a GPU all tensors are on the CPU. Tensors computed from weights or by a module would be on the GPU, but those
that are drawn or made from numbers, e.g. ``torch.rand(1)``, would not. So the expression of a line is looked up in the
source, with the assignments of its names. Nothing is called.
"""

import ast
import builtins
import functools
import itertools
import linecache
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from bench.observe.probe import NotObserved, Probe, listen

WAITS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__array__", "__format__", "__repr__")
COPIES = ("tolist", "cpu", "numpy", "__array__")  # of a tensor on the CPU: no wait for a device
HERE = str(Path(__file__).parent)
DYNAMO = str(Path(torch.__file__).parent / "_dynamo" / "eval_frame.py")  # calls the code that Dynamo must not compile
COUNTED_STEPS = 20

HOST, UNKNOWN, DEVICE = range(3)
MISSING = object()
NUMBERS = (int, float, complex, bool, type(None), type, torch.dtype, types.ModuleType, types.FunctionType,
           types.BuiltinFunctionType)  # fmt: skip


@functools.lru_cache(maxsize=64)
def parsed(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def origin_of(frame: types.FrameType) -> int:
    reading = Reading(frame)
    return max(map(reading.origin, reading.expressions()), default=UNKNOWN)


class Reading:
    def __init__(self, frame: types.FrameType):
        self.frame, self.tree, self.seen = frame, parsed(frame.f_code.co_filename), set()

    def expressions(self) -> list[ast.AST]:
        code, line, place = self.frame.f_code, self.frame.f_lineno, None
        if hasattr(code, "co_positions"):
            place = next(itertools.islice(code.co_positions(), self.frame.f_lasti // 2, None))
        around = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr):
                if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == place:
                    return [node]
            elif isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
                around = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return around

    def origin(self, node: ast.AST) -> int:
        if isinstance(node, ast.Call) and isinstance(self.value(node.func), nn.Module):
            return DEVICE
        if not isinstance(node, ast.Name | ast.Attribute):
            return max(map(self.origin, ast.iter_child_nodes(node)), default=HOST)
        value = self.value(node)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            return DEVICE
        if isinstance(value, NUMBERS):
            return HOST
        if isinstance(node, ast.Attribute):  # of a tensor, as its methods, or of an object
            return self.origin(node.value) if value is MISSING else UNKNOWN
        if isinstance(value, str | torch.device):
            return UNKNOWN
        if node.id in self.seen:
            return HOST
        self.seen.add(node.id)
        return max(map(self.origin, self.assigned(node.id)), default=UNKNOWN)

    def assigned(self, name: str) -> Iterator[ast.AST]:
        """The assignments of a name in the frame's function, or in the whole script for an outer name."""
        line, scope = self.frame.f_lineno, self.tree
        for node in ast.walk(self.tree) if name in self.frame.f_locals else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= node.end_lineno:
                scope = node
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    pairs = zip(target.elts, node.value.elts, strict=False) if several else [(target, node.value)]
                    for to, value in pairs:
                        if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(to)):
                            yield value

    def value(self, node: ast.AST):
        """The current value of a name or an attribute; MISSING if it cannot be read without calling other code."""
        if isinstance(node, ast.Name):
            places = (self.frame.f_locals, self.frame.f_globals, vars(builtins))
            return next((place[node.id] for place in places if node.id in place), MISSING)
        if not isinstance(node, ast.Attribute):
            return MISSING
        own = getattr(self.value(node.value), "__dict__", {})
        places = (own, own.get("_modules", {}), own.get("_parameters", {}), own.get("_buffers", {}))
        return next((place[node.attr] for place in places if node.attr in place), MISSING)


class HostSyncs:
    """Counts the steps in which a line makes the host wait for the device, while ``on``.

    Only lines of the script count, not waits inside torch and Horovod. On a GPU only tensors on it count; without one,
    reading one number counts, because it would wait on a GPU, but copying does not. only: the files or folders whose
    lines count; none: all others. waiting: names of functions that wait on purpose. evaluates: whether the model is
    being evaluated, which reads results by design. origin: of the tensor that a frame reads, see ``origin_of``.
    """

    def __init__(
        self,
        on_gpu: bool,
        only: tuple[str, ...] = ("",),
        waiting: tuple[str, ...] = (),
        evaluates: Callable[[], bool] = lambda: False,
        guarded: Callable = lambda call: call,
        origin: Callable[[types.FrameType], int] = lambda frame: DEVICE,
    ):
        engines = [sys.modules[name].__file__ for name in ("torch", "horovod") if name in sys.modules]
        self.on_gpu, self.only, self.waiting, self.evaluates = on_gpu, only, waiting, evaluates
        self.but = (HERE, *(str(Path(file).parent) for file in engines))
        self.calls, self.lines, self.steps, self.on = Counter(), set(), 0, False
        self.origin, self.origins = origin, {}  # the origin of a line's tensor
        self.of_graph = False  # on a CPU: only tensors at which a backward pass could begin count
        names = [name for name in WAITS if on_gpu or name not in COPIES]
        self.ends = [listen(torch.Tensor, name, guarded(functools.partial(self.called, name))) for name in names]

    def called(self, name: str, arguments: tuple, options: dict) -> None:
        tensor = arguments[0]
        waits = tensor.is_cuda or (not self.on_gpu and (tensor.requires_grad or not self.of_graph))
        if not (self.on and waits) or self.evaluates():
            return
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith((HERE, DYNAMO)):  # frames of the listener
            frame = frame.f_back
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(self.only) and not file.startswith(self.but) and function not in self.waiting:
            where = f"{Path(file).name}:{frame.f_lineno} {name.strip('_')}"
            if where not in self.origins:
                self.origins[where] = self.origin(frame)
            self.lines.add(where)

    def step_begins(self) -> None:
        self.on = bool(self.ends)

    def step_ends(self, counts: bool = True) -> None:
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
        """The waiting lines, sorted by number of steps, highest first; None before any step."""
        if not self.steps:
            return None
        return [{"where": where, "per_step": count / self.steps} for where, count in self.calls.most_common(20)
                if self.origins[where] == DEVICE]  # fmt: skip

    def unknown(self) -> list[str]:
        """Lines that may or may not wait in at least every other step."""
        often = [where for where, count in self.calls.most_common(20) if 2 * count >= self.steps]
        return [where for where in often if self.origins[where] not in (HOST, DEVICE)]


class Waits(Probe):
    """The waits of the first COUNTED_STEPS steps of a training, without evaluations. A step lasts from a batch to the
    end of its training, or without a loader from one optimizer step to the next."""

    joins: ClassVar = {"host_syncs": lambda ranks: ranks[0]}
    silent: ClassVar = {"host_syncs": "no step was observed"}
    waits, walks, enabled = None, False, False

    def start(self) -> None:
        on_gpu = any(p.is_cuda for p in self.watch.model.parameters())
        origin = {} if on_gpu else {"origin": origin_of}
        self.waits = HostSyncs(on_gpu, evaluates=lambda: not self.watch.training, guarded=self.guarded, **origin)
        self.listening.append(self.waits.close)

    def fetched(self, epoch, batch) -> None:
        self.walks = True
        self.begins()

    def trained(self, epoch) -> None:
        self.ends()

    def after_step(self, optimizer) -> None:
        if self.waits and not self.walks and not self.watch.stepping:
            self.waits.of_graph = True  # code that draws the batches also reads numbers, and cannot be distinguished
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

    def part(self) -> dict:
        found, unknown = (self.waits.result(), self.waits.unknown()) if self.waits else (None, [])
        if unknown and not any(2 * line["per_step"] >= 1 for line in found):
            lines = ", ".join(unknown[:3])
            raise NotObserved(f"on a CPU it is unknown whether these lines would wait for a GPU: {lines}")
        return {"host_syncs": found}
