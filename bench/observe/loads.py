"""Weights that are loaded: how many of a checkpoint's keys found their place."""

import os
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from bench.observe.probe import Probe
from bench.workload.weights import PREFIXES


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


class LoadedWeights(Probe):
    """The loads from the making of the Watch on."""

    joins: ClassVar = {"loads": list}

    def __init__(self, watch):
        super().__init__(watch)
        self.loads = Loads()

    def close(self) -> None:
        self.loads.close()

    def part(self) -> dict:
        return {"loads": self.loads.result()}
