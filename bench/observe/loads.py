"""Weights that are loaded: how many of a checkpoint's keys found their place."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from bench.observe.listening import listen
from bench.observe.probe import Probe, Unheard
from bench.workload.weights import PREFIXES

NESTED = 4  # dicts in one another in which a file's weights are looked for


class Loads:
    """Every ``load_state_dict`` of a module: how much of it found its place, and of the file that was read before."""

    def __init__(self, guarded: Callable = lambda call: call):
        self.loads, self.file, self.read, self.used = [], None, [], False
        self.ends = [
            listen(torch, "load", guarded(self.reading)),
            listen(nn.Module, "load_state_dict", guarded(self.loading)),
        ]
        self.guarded = guarded

    def reading(self, arguments: tuple, options: dict) -> Callable:
        """torch.load: what is loaded next probably comes from there."""
        file = options.get("f", arguments[0] if arguments else None)
        self.file, self.read = Path(file).name if isinstance(file, str | os.PathLike) else None, []
        self.used = False
        return self.guarded(self.have_read)

    def have_read(self, content) -> None:
        """What torch.load returned: the names and places of its weights, dict by dict."""
        self.read = [{key: value.data_ptr() for key, value in each.items()} for each in dicts_of_tensors(content)]

    def loading(self, arguments: tuple, options: dict) -> Callable:
        """nn.Module.load_state_dict, which says what did not fit."""
        names = ("module", "state_dict", "strict")
        given = dict(zip(names, arguments, strict=False)) | options
        model, state = given["module"], given["state_dict"]
        own = model.state_dict()
        kept = sum(key in own and same(value, own[key]) for key, value in state.items())
        file = max(self.read, key=lambda each: len(stripped(each) & stripped(own)), default={})
        from_file = set(file.values())
        placed = sum(isinstance(v, torch.Tensor) and v.data_ptr() in from_file for v in state.values())
        found = {"file": self.file, "keys": len(state), "strict": bool(given.get("strict", True))}
        filtered = {}
        self.used = self.used or bool(placed)
        if not self.used and kept == len(state) and not set(file) & set(own) and akin(file, own):  # nothing got in
            filtered = {"keys": len(file), "missing": len(own), "unexpected": len(file), "strict": False,
                        "picked": True, "prefix": prefix_of(list(own), list(file))}  # fmt: skip

        def loaded(result) -> None:
            missing, unexpected = result
            fit = {"missing": len(missing), "unexpected": len(unexpected), "prefix": prefix_of(missing, unexpected)}
            self.loads.append(found | fit | filtered)

        return self.guarded(loaded)

    def close(self) -> None:
        """Listen no longer."""
        for end in self.ends:
            end()

    def result(self) -> list[dict]:
        """The loads, in order."""
        return self.loads


def dicts_of_tensors(content, depth: int = 0) -> list[dict]:
    """The tensors of each dict that a file holds, by name."""
    if not isinstance(content, dict) or depth > NESTED:
        return []
    tensors = {key: value for key, value in content.items() if isinstance(value, torch.Tensor) and isinstance(key, str)}
    inner = [found for value in content.values() for found in dicts_of_tensors(value, depth + 1)]
    return ([tensors] if tensors else []) + inner


def akin(file, own) -> bool:
    """Whether at least half of a file's names are the model's but for something before them.

    >>> akin(["module.fc.bias"], ["fc.bias"]), akin(["x", "y"], ["fc.bias"])
    (True, False)
    """
    own, longer = set(own), {tail for name in own for tail in tails(name)}
    return 0 < len(file) <= 2 * sum(name in longer or any(tail in own for tail in tails(name)) for name in file)


def tails(name: str) -> list[str]:
    """a.b.c -> b.c, c."""
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(1, len(parts))]


def stripped(names) -> set[str]:
    """Names without their wrappers' prefixes."""
    for prefix in PREFIXES:
        names = {name.removeprefix(prefix) for name in names}
    return names


def same(value, own) -> bool:
    """Whether a tensor is, in place or in value, the one that the model has already."""
    if not (isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor)) or value.shape != own.shape:
        return False
    return value.data_ptr() == own.data_ptr() or (value.device == own.device and torch.equal(value, own))


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


class LoadedWeights(Probe):
    """The loads from the making of the Watch on."""

    joins: ClassVar = {"loads": list}

    def __init__(self, watch):
        super().__init__(watch)
        self.loads = Loads(lambda call: watch.guarded(self, call))

    def close(self) -> None:
        self.loads.close()

    def part(self) -> dict:
        if not self.loads.result():
            return {"loads": Unheard("nothing was loaded since the Watch was made: Watch() before it, follow after it")}
        return {"loads": self.loads.result()}
