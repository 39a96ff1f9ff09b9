"""Weights that are read and loaded: how many keys of a checkpoint matched, whether all ranks read the same, and whether
the weights that were read were loaded at all."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from bench.observe.probe import NotObserved, Probe, listen
from bench.observe.weights import NO_EPOCH, checksums
from bench.workload.weights import PREFIXES

NESTED = 4  # levels of nested dicts that are searched for weights
SAMPLED = 4096  # numbers of a tensor with which contents are compared
MOST_PARTS = 20_000  # of a file
MOST_DICTS = 8  # of weights, compared with the model
BEFORE = "after the Watch was created: call Watch() before loading, and its follow() after it"


def path_in(file) -> str | None:
    """The absolute path of a file passed to torch.load or torch.save; None for an open file."""
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, str | os.PathLike) else None


class Loads:
    """Every ``load_state_dict`` of a module: how many of its keys matched, and how many of the file that was read."""

    def __init__(self, guarded: Callable = lambda call: call):
        self.loads, self.file, self.read, self.used = [], None, [], False
        self.contents, self.devices, self.step = [], set(), 0
        self.ends = [
            listen(torch, "load", guarded(self.reading)),
            listen(torch, "save", guarded(self.saving)),
            listen(nn.Module, "load_state_dict", guarded(self.loading)),
        ]
        self.guarded = guarded

    def reading(self, arguments: tuple, options: dict) -> Callable:
        path = path_in(options.get("f", arguments[0] if arguments else None))
        self.file, self.read, self.used = path and Path(path).name, [], False

        def have_read(content) -> None:
            found = dicts_of_tensors(content)
            self.read = [{key: value.data_ptr() for key, value in each.items()} for each in found]
            self.devices |= {tensor.device.index for each in found for tensor in each.values() if tensor.is_cuda}
            if path:
                self.contents.append((path, self.step, True, digest_of(content)))

        return self.guarded(have_read)

    def saving(self, arguments: tuple, options: dict) -> None:
        given = dict(zip(("obj", "f"), arguments, strict=False)) | options
        if path := path_in(given.get("f")):
            self.contents.append((path, self.step, False, digest_of(given["obj"])))

    def loading(self, arguments: tuple, options: dict) -> Callable:
        """nn.Module.load_state_dict, whose result names the keys that did not match."""
        given = dict(zip(("module", "state_dict", "strict"), arguments, strict=False)) | options
        model, state = given["module"], given["state_dict"]
        own = model.state_dict()
        kept = sum(key in own and is_same_tensor(value, own[key]) for key, value in state.items())
        file = max(self.read, key=lambda each: len(stripped(each) & stripped(own)), default={})
        from_file = set(file.values())
        self.used |= any(isinstance(v, torch.Tensor) and v.data_ptr() in from_file for v in state.values())
        found = {"file": self.file, "keys": len(state), "strict": bool(given.get("strict", True))}
        filtered = {}
        prefixed = not set(file) & set(own) and names_match(file, own)
        if not self.used and kept == len(state) and prefixed:  # nothing was loaded
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
    """A hash of a file's content: the plain values in its dicts and lists, and some numbers of each tensor."""
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
            with contextlib.suppress(Exception):  # a sparse tensor, or one without bytes
                flat = item.detach().reshape(-1)
                some = flat[:: max(1, len(flat) // SAMPLED)].contiguous().cpu()
                digest.update(some.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def contents_of(parts: list[list]) -> dict:
    """Whether the ranks loaded the same contents of a file after the same number of optimizer steps; for a rank that
    did not load it, what it last saved there. A part: path, step, whether it was loaded, hash; in order. apart: the
    first difference: the file, the step, and by rank the number of the contents, None for a rank without any."""
    loads = sorted({(step, path) for part in parts for path, step, loaded, _ in part if loaded})
    if not loads:
        raise NotObserved(f"torch.load read no file {BEFORE}")
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


def names_match(file, own) -> bool:
    """Whether at least half of a file's names are the model's except for a prefix.

    >>> names_match(["module.fc.bias"], ["fc.bias"]), names_match(["x", "y"], ["fc.bias"])
    (True, False)
    """
    own, longer = set(own), {tail for name in own for tail in name_suffixes(name)}
    return 0 < len(file) <= 2 * sum(name in longer or any(tail in own for tail in name_suffixes(name)) for name in file)


def name_suffixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(1, len(parts))]


def stripped(names) -> set[str]:
    for prefix in PREFIXES:
        names = {name.removeprefix(prefix) for name in names}
    return names


def is_same_tensor(value, own) -> bool:
    """Whether a tensor is identical to the model's, in memory or in value."""
    if not (isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor)) or value.shape != own.shape:
        return False
    return value.data_ptr() == own.data_ptr() or (value.device == own.device and torch.equal(value, own))


def prefix_of(missing: list[str], unexpected: list[str]) -> str | None:
    """The wrapper's prefix that only one side's names have; None if there is another difference.

    >>> prefix_of(["fc.bias"], ["module.fc.bias"]), prefix_of(["fc.bias"], ["head.bias"])
    ('module.', None)
    """
    for prefix in PREFIXES:
        for short, long in ((missing, unexpected), (unexpected, missing)):
            if {prefix + key for key in short} & set(long):
                return prefix
    return None


class LoadedWeights(Probe):
    joins: ClassVar = {"loads": list, "contents": contents_of}

    def setup(self) -> None:
        self.loads = Loads(self.guarded)
        self.listening.append(self.loads.close)

    def after_step(self, optimizer) -> None:
        self.loads.step += not self.watch.stepping

    def part(self) -> dict:
        loads = self.loads.result() or NotObserved(f"nothing was loaded {BEFORE}")
        return {"loads": loads, "contents": self.loads.contents}


def unloaded_of(parts: list[dict]) -> dict:
    """Files that no rank loaded after reading: a rank that did load them may have sent the weights to the others."""
    names = [{each["file"] for each in part["files"]} for part in parts if part["read"]]
    assigned = next((part["assigned"] for part in parts if part["assigned"]), "")
    if not names and not assigned:
        raise NotObserved(f"torch.load read no weights {BEFORE}")
    every = {each["file"]: each for part in parts for each in part["files"]}
    return {"files": [each for name, each in every.items() if all(name in own for own in names)], "assigned": assigned}


class Unloaded(Probe):
    """Files with the model's weights that ``torch.load`` read before the first epoch, and whether the model then has
    these weights. Files that were read before a ``load_state_dict`` of any module count as loaded."""

    joins: ClassVar = {"unloaded": unloaded_of}
    silent: ClassVar = {"unloaded": NO_EPOCH}

    def setup(self) -> None:
        self.read: list[tuple[str, dict]] = []  # (file, name -> checksums), of each dict of weights
        self.any, self.found = False, None
        self.listen(torch, "load", self.reading)
        self.listen(nn.Module, "load_state_dict", lambda arguments, options: self.read.clear())

    def reading(self, arguments: tuple, options: dict) -> Callable:
        path = path_in(options.get("f", arguments[0] if arguments else None))
        return self.guarded(lambda content: self.have_read(Path(path).name if path else "a file", content))

    def have_read(self, name: str, content) -> None:
        for weights in dicts_of_tensors(content):  # an optimizer's state has names without a dot
            if len(self.read) < MOST_DICTS and any("." in key or key == "weight" for key in weights):
                self.any = True
                self.read.append((name, dict(zip(weights, checksums(weights.values()).tolist(), strict=True))))

    def start(self) -> None:
        self.close()
        files = {}
        for *_, model in self.watch.models:
            own = dict(model.named_parameters())
            # a new bias may be 0, as in a file
            weights = [p for p in own.values() if p.ndim > 1] or list(own.values())
            sums = {tuple(each) for each in checksums(weights).tolist()}
            for name, read in self.read:
                if len(stripped(read) & stripped(own)) >= len(own) / 2:
                    file = files.setdefault(name, {"file": name, "keys": len(read), "kept": 0})
                    file["kept"] += sum(tuple(each) in sums for each in read.values())
        lost = [{"file": each["file"], "keys": each["keys"]} for each in files.values() if not each["kept"]]
        every = self.watch.model.modules()
        assigned = [type(m).__name__ for m in every if not callable(vars(m).get("state_dict", len))]
        self.found = {"read": self.any, "files": lost, "assigned": assigned[0] if assigned else ""}
        self.read = []

    def part(self) -> dict:
        return {"unloaded": self.found}
