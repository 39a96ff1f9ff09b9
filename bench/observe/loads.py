"""Weights that are loaded: how many of a checkpoint's keys found their place."""

import contextlib
import hashlib
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
SAMPLED = 4096  # numbers of a tensor that tell its contents from another's
MOST_PARTS = 20_000  # of a file


class Loads:
    """Every ``load_state_dict`` of a module: how much of it found its place, and of the file that was read before."""

    def __init__(self, guarded: Callable = lambda call: call):
        self.loads, self.file, self.read, self.used = [], None, [], False
        self.path, self.contents, self.devices, self.step = None, [], set(), 0
        self.ends = [
            listen(torch, "load", guarded(self.reading)),
            listen(torch, "save", guarded(self.saving)),
            listen(nn.Module, "load_state_dict", guarded(self.loading)),
        ]
        self.guarded = guarded

    def reading(self, arguments: tuple, options: dict) -> Callable:
        """What is loaded next probably comes from there."""
        file = options.get("f", arguments[0] if arguments else None)
        self.path = os.path.abspath(os.fsdecode(file)) if isinstance(file, str | os.PathLike) else None
        self.file, self.read = self.path and Path(self.path).name, []
        self.used = False
        return self.guarded(self.have_read)

    def have_read(self, content) -> None:
        found = dicts_of_tensors(content)
        self.read = [{key: value.data_ptr() for key, value in each.items()} for each in found]
        self.devices |= {tensor.device.index for each in found for tensor in each.values() if tensor.is_cuda}
        if self.path:
            self.contents.append((self.path, self.step, True, digest_of(content)))

    def saving(self, arguments: tuple, options: dict) -> None:
        """What another rank should find in the file."""
        given = dict(zip(("obj", "f"), arguments, strict=False)) | options
        if isinstance(given.get("f"), str | os.PathLike):
            path = os.path.abspath(os.fsdecode(given["f"]))
            self.contents.append((path, self.step, False, digest_of(given["obj"])))

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
        for end in self.ends:
            end()

    def result(self) -> list[dict]:
        return self.loads


def dicts_of_tensors(content, depth: int = 0) -> list[dict]:
    """The tensors of each dict that a file holds, by name."""
    if not isinstance(content, dict) or depth > NESTED:
        return []
    tensors = {key: value for key, value in content.items() if isinstance(value, torch.Tensor) and isinstance(key, str)}
    inner = [found for value in content.values() for found in dicts_of_tensors(value, depth + 1)]
    return ([tensors] if tensors else []) + inner


def digest_of(content) -> str:
    """A hash of what a file holds: the plain values in its dicts and lists, and of each tensor some numbers."""
    digest, left = hashlib.sha256(), [content]
    for _ in range(MOST_PARTS):
        if not left:
            break
        item = left.pop()
        if isinstance(item, nn.Module):
            item = item.state_dict()
        if isinstance(item, dict):
            left += [part for pair in item.items() for part in pair]
        elif isinstance(item, list | tuple):
            left += item
        elif isinstance(item, str | bytes | int | float | bool):
            digest.update(repr(item).encode())
        elif isinstance(item, torch.Tensor):
            digest.update(repr(tuple(item.shape)).encode())
            with contextlib.suppress(Exception):  # a sparse one, or one of a kind without bytes
                flat = item.detach().reshape(-1)
                some = flat[:: max(1, len(flat) // SAMPLED)].contiguous().cpu()
                digest.update(some.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def contents_of(parts: list[list]) -> dict:
    """Whether the ranks had the same contents when they loaded a file after as many optimizer steps; of a rank that did
    not load it, what it had saved there last. A part: path, step, whether it was loaded, hash; in order. apart: the
    first difference: the file, the step, and by rank the number of the contents, None for a rank without any."""
    loads = sorted({(step, path) for part in parts for path, step, loaded, _ in part if loaded})
    if not loads:
        raise Unheard("torch.load read no file since the Watch was made: Watch() before it, follow after it")
    for step, path in loads:
        found = []
        for part in parts:
            own = [(at, loaded, contents) for place, at, loaded, contents in part if place == path and at <= step]
            last = [contents for at, loaded, contents in own if loaded and at == step]
            saved = [contents for _, loaded, contents in own if not loaded]
            found.append((last or saved or [None])[-1])
        different = list(dict.fromkeys(each for each in found if each))
        if len(different) > 1:
            by_rank = [different.index(each) if each else None for each in found]
            return {"apart": {"file": Path(path).name, "step": step, "by_rank": by_rank}}
    return {"apart": None}


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


NOTHING = "nothing was loaded since the Watch was made: Watch() before it, follow after it"


class LoadedWeights(Probe):
    """The loads from the making of the Watch on."""

    joins: ClassVar = {"loads": list, "contents": contents_of}

    def __init__(self, watch):
        super().__init__(watch)
        self.loads = Loads(self.guarded)

    def after_step(self, optimizer) -> None:
        self.loads.step += not self.watch.stepping

    def close(self) -> None:
        self.loads.close()

    def part(self) -> dict:
        return {"loads": self.loads.result() or Unheard(NOTHING), "contents": self.loads.contents}
