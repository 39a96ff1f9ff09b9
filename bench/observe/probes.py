"""What can be seen of a training from the outside: one small probe for each thing, put up and taken down.

Used by every run of this bench (bench/observe/observer.py) and by a Watch in any script (bench/observe/watch.py). A
probe changes nothing in what is computed, and speaks to no other rank: what the ranks saw is put together at the end.
"""

import hashlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.record.observed import norm_of as described
from bench.workload.weights import PREFIXES

SAMPLED_GRADIENTS = 200_000  # numbers of a gradient that are compared, 0.8 MB per rank
WAITS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__array__", "__format__", "__repr__")
HERE = str(Path(__file__).parent)


# --- weights and buffers ------------------------------------------------------------------------------------------


def hash_of(pieces: Iterable[bytes]) -> str:
    """sha256 of bytes in pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def tensors_hash(tensors: Iterable[torch.Tensor]) -> str:
    """sha256 of all tensors' bytes, in order."""
    return hash_of(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def state_of(model: nn.Module, whole: dict[str, torch.Tensor] | None = None) -> dict[str, str]:
    """Parameters and buffers as hashes: two replicas agree when these agree. whole: name -> the whole tensor, where the
    model holds a part of it."""
    whole = whole or {}
    parameters = (whole.get(name, tensor) for name, tensor in model.named_parameters())
    buffers = (whole.get(name, tensor) for name, tensor in model.named_buffers())
    return {"parameters": tensors_hash(parameters), "buffers": tensors_hash(buffers)}


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The batch norms that normalise with their batch: those in training mode. A frozen one is in evaluation mode."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)]


def norm_of(norms: list[nn.Module], images: int) -> dict:
    """``batch_norms`` described. images: that one layer sees at once.

    means, variances: [channels of all layers], the running statistics of this rank.
    """
    kinds = Counter(type(norm).__name__ for norm in norms)
    kept = [norm for norm in norms if norm.running_mean is not None]
    statistics = {
        name: np.concatenate([getattr(norm, f"running_{kind}").float().cpu().numpy() for norm in kept] or [np.zeros(0)])
        for name, kind in (("means", "mean"), ("variances", "var"))
    }
    return described(", ".join(f"{kind} × {n}" for kind, n in sorted(kinds.items())), images) | statistics


# --- gradients ----------------------------------------------------------------------------------------------------


class GradientProbe:
    """A rank's own gradient of one step, and the one that its optimizer gets.

    A hook on a parameter sees what backward gives it, before any exchange. Over several backward passes (accumulation)
    the own gradients are summed up, as the parameters do. Of each parameter the first numbers are kept, equally for
    all, SAMPLED_GRADIENTS at the most.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self.parameters = [p for p in parameters if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        self.share = min(1.0, SAMPLED_GRADIENTS / max(1, total))
        self.own = [None] * len(self.parameters)
        self.final = None
        self.hooks = [p.register_hook(self.adder(number)) for number, p in enumerate(self.parameters)]

    def adder(self, number: int) -> Callable[[torch.Tensor], None]:
        """A hook that adds to a parameter's own gradient, and returns nothing: the gradient stays as it is."""

        def add(gradient: torch.Tensor) -> None:
            some = self.some(gradient)
            self.own[number] = some if self.own[number] is None else self.own[number] + some

        return add

    def some(self, gradient: torch.Tensor) -> torch.Tensor:
        """The first numbers of a gradient, copied."""
        flat = gradient.detach().reshape(-1)
        return flat[: max(1, int(self.share * flat.numel()))].float().clone()

    def look(self) -> None:
        """The gradients are final, as far as is known: the last look before ``close`` counts."""
        self.final = [None if p.grad is None else self.some(p.grad) for p in self.parameters]

    def close(self) -> None:
        """No more of this step, or of any other."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def result(self) -> dict | None:
        """Both as flat arrays; None where no step was seen whole."""
        if self.final is None or self.hooks:
            return None
        known = [pair for pair in zip(self.own, self.final, strict=True) if all(side is not None for side in pair)]
        if not known:
            return None
        own, final = (torch.cat(side).cpu().numpy() for side in zip(*known, strict=True))
        return {"own": own, "final": final}


# --- waits for the device -----------------------------------------------------------------------------------------


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
            self.on = bool(self.before)
            self.steps += self.on
            try:
                yield batch
            finally:
                self.on = False

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


# --- files that are written ---------------------------------------------------------------------------------------

listeners = []  # an audit hook stays for the life of its process, so there is one for all
installed = []
SYSTEM = {(os.sep, "dev"), (os.sep, "proc"), (os.sep, "sys")}


def audit(event: str, arguments: tuple) -> None:
    """Called by the interpreter for every audited event; all but the opening of files are of no interest."""
    if listeners and event == "open":
        for listener in listeners:
            listener(*arguments)


class Writers:
    """The files that this process writes: those that Python opens for writing, and what torch.save is given a path for.

    folder: only files below it, named from there; None: all, but hidden ones, locks and the system's. A library that
    opens its files in C is not seen.
    """

    def __init__(self, folder: Path | None = None):
        self.folder, self.names = folder and os.path.abspath(folder), set()
        if audit not in installed:
            sys.addaudithook(audit)
            installed.append(audit)
        listeners.append(self.opened)
        self.save = torch.save
        torch.save = self.saving

    def opened(self, path, mode: str | None, flags: int) -> None:
        """A file is opened, by ``open`` (mode) or by ``os.open`` (flags)."""
        writes = set("wax+") & set(mode) if mode else flags & (os.O_WRONLY | os.O_RDWR)
        if writes and not isinstance(path, int):
            self.note(path)

    def saving(self, state, file, *arguments, **options):
        """torch.save, which opens a path in C++."""
        if isinstance(file, str | os.PathLike):
            self.note(file)
        return self.save(state, file, *arguments, **options)

    def note(self, path) -> None:
        """Remember a file, if it is of interest."""
        name = os.path.abspath(os.fsdecode(path))
        if self.folder:
            if not name.startswith(self.folder + os.sep):
                return
            name = os.path.relpath(name, self.folder)
        parts = Path(name).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if not (hidden or name.endswith(".lock") or parts[:2] in SYSTEM):
            self.names.add(name)

    def close(self) -> None:
        """Look no longer."""
        if self.opened in listeners:
            listeners.remove(self.opened)
            torch.save = self.save

    def result(self) -> dict:
        """The files, and on which machine they lie: the same name on another is another file."""
        return {"host": socket.gethostname(), "names": sorted(self.names)}


# --- weights that are loaded --------------------------------------------------------------------------------------


class Loads:
    """Every ``load_state_dict`` of a module: how much of it found its place."""

    def __init__(self):
        self.loads, self.file = [], None
        self.read, self.load = torch.load, nn.Module.load_state_dict
        torch.load = self.reading
        nn.Module.load_state_dict = lambda module, *arguments, **options: self.loading(module, *arguments, **options)

    def reading(self, file, *arguments, **options):
        """torch.load: what is loaded next probably comes from there."""
        self.file = Path(file).name if isinstance(file, str | os.PathLike) else None
        return self.read(file, *arguments, **options)

    def loading(self, module: nn.Module, state_dict, strict: bool = True, *arguments, **options):
        """nn.Module.load_state_dict, which says what did not fit."""
        result = self.load(module, state_dict, strict, *arguments, **options)
        missing, unexpected = result
        self.loads.append({"file": self.file, "keys": len(state_dict), "missing": len(missing),
                           "unexpected": len(unexpected), "strict": bool(strict),
                           "prefix": prefix_of(missing, unexpected)})  # fmt: skip
        return result

    def close(self) -> None:
        """Give torch its own functions back."""
        torch.load, nn.Module.load_state_dict = self.read, self.load

    def result(self) -> list[dict]:
        """The loads, in order."""
        return self.loads


def prefix_of(missing: list[str], unexpected: list[str]) -> str | None:
    """The wrapper's prefix that one side's names have and the other's lack; None where it is not that.

    >>> prefix_of(["fc.bias"], ["module.fc.bias"]), prefix_of(["fc.bias"], ["head.bias"])
    ('module.', None)
    """
    for prefix in PREFIXES:
        for short, long in ((missing, unexpected), (unexpected, missing)):
            if {prefix + key for key in short} & set(long):
                return prefix
    return None
