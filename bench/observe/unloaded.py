"""Checkpoints that are read and not loaded: their epoch is used, and the weights stay as they were drawn."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from bench.observe.listening import listen
from bench.observe.loads import dicts_of_tensors, stripped
from bench.observe.probe import Probe, Unheard
from bench.observe.weights import checksums

MOST_DICTS = 8  # of weights that are compared with the model
NOTHING = "torch.load read no weights since the Watch was made: Watch() before it, follow after it"


def unloaded_of(parts: list[dict]) -> dict:
    """What no rank that read it has loaded: where one has, it may have sent the weights to the others."""
    names = [{each["file"] for each in part["files"]} for part in parts if part["read"]]
    assigned = next((part["assigned"] for part in parts if part["assigned"]), "")
    if not names and not assigned:
        raise Unheard(NOTHING)
    every = {each["file"]: each for part in parts for each in part["files"]}
    return {"files": [each for name, each in every.items() if all(name in own for own in names)], "assigned": assigned}


class Unloaded(Probe):
    """Files with the model's weights that ``torch.load`` has read before the first epoch, and whether the model has
    them then. What was read before a ``load_state_dict`` of any module is taken to be loaded."""

    joins: ClassVar = {"unloaded": unloaded_of}
    silent: ClassVar = {"unloaded": "no epoch was seen: for batch in watch(loader)"}

    def __init__(self, watch):
        super().__init__(watch)
        self.read: list[tuple[str, dict]] = []  # (file, name -> checksums), of each dict of weights
        self.any, self.found = False, None
        guarded = watch.guarded
        self.ends = [listen(torch, "load", guarded(self, self.reading))]
        self.ends += [listen(nn.Module, "load_state_dict", guarded(self, self.loading))]

    def reading(self, arguments: tuple, options: dict) -> Callable:
        """torch.load is called."""
        file = options.get("f", arguments[0] if arguments else None)
        name = Path(os.fsdecode(file)).name if isinstance(file, str | os.PathLike) else "a file"
        return self.watch.guarded(self, lambda content: self.have_read(name, content))

    def have_read(self, name: str, content) -> None:
        """What torch.load returned. An optimizer's state has names without a dot."""
        for weights in dicts_of_tensors(content):
            if len(self.read) < MOST_DICTS and any("." in key or key == "weight" for key in weights):
                self.any = True
                self.read.append((name, dict(zip(weights, checksums(weights.values()).tolist(), strict=True))))

    def loading(self, arguments: tuple, options: dict) -> None:
        """nn.Module.load_state_dict, of any module."""
        self.read = []

    def start(self) -> None:
        self.close()
        files = {}
        for *_, model in self.watch.models:
            own = dict(model.named_parameters())
            # a fresh bias may be 0, as in a file
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

    def close(self) -> None:
        for end in self.ends:
            end()
        self.ends = []

    def part(self) -> dict:
        return {"unloaded": self.found}
