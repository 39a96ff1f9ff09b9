"""Buffers, as batch norm's statistics, with which the ranks evaluate the model: are they the same on all of them?"""

from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import dataloader

from bench.observe.listening import BEGINS
from bench.observe.probe import Probe, Unheard
from bench.observe.weights import checksums

LOOKS = 16  # evaluations that are looked at
UNSEEN = "no evaluation was seen: model.eval(), then batches of a DataLoader, or a forward of the wrapped model"


def evaluations_of(parts: list[dict]) -> dict:
    """The first evaluation in which buffers differ by rank, in optimizer steps, and which ones. A part: looks, after
    how many steps -> [buffers, 2] checksums; names. Ranks that did not evaluate then are left out."""
    if any(part["names"] != parts[0]["names"] for part in parts):
        raise Unheard("the ranks' models have different buffers")
    steps = sorted({step for part in parts for step in part["looks"]})
    if not steps:
        raise Unheard(UNSEEN)
    found = {"looked_at": steps, "apart_at": None, "buffers": [], "ranks": 0}
    for step in steps:
        looks = [part["looks"][step] for part in parts if step in part["looks"]]
        differ = (np.stack(looks) != looks[0]).any(axis=(0, 2))
        if differ.any():
            names = [name for name, other in zip(parts[0]["names"], differ, strict=True) if other]
            return found | {"apart_at": step, "buffers": names, "ranks": len(looks)}
    return found


class Evaluations(Probe):
    """Checksums of the buffers at the end of each evaluation: ``model.train()`` is called, or the training is over.
    Several models are compared where none of them is in training mode.

    A rank that calls ``model.eval()`` and then waits for another one evaluates nothing. That it does is seen by the
    batches that any DataLoader fetches meanwhile, or by a forward of the wrapped model.
    """

    joins: ClassVar = {"evaluation": evaluations_of}
    silent: ClassVar = {"evaluation": UNSEEN}

    def __init__(self, watch):
        super().__init__(watch)
        self.evaluates, self.looks, self.plain = False, {}, None

    def follow(self, model, optimizer) -> None:
        self.close()
        layers = self.watch.models
        self.models = [module for each in layers for module in each]
        self.plain = nn.ModuleList(each[-1] for each in layers) if len(layers) > 1 else layers[0][-1]
        self.listen(nn.Module, "train", self.switches)
        self.listen(DistributedDataParallel, BEGINS, self.called)
        kind = getattr(dataloader, "_BaseDataLoaderIter", None)
        if hasattr(kind, "_next_index"):
            self.listen(kind, "_next_index", self.fetches)

    def fetches(self, arguments: tuple, options: dict) -> None:
        self.evaluates = self.evaluates or not self.watch.training

    def called(self, arguments: tuple, options: dict) -> None:
        if any(arguments[0] is model for model in self.watch.ddp_models):
            self.fetches(arguments, options)

    def switches(self, arguments: tuple, options: dict) -> None:
        """model.train(mode) or model.eval() is called; of the models within the mode changes afterwards."""
        mode = options.get("mode", arguments[1] if len(arguments) > 1 else True)
        if mode and any(arguments[0] is model for model in self.models):
            self.evaluated()

    def evaluated(self) -> None:
        if self.evaluates and not self.watch.training and len(self.looks) < LOOKS:
            self.looks[self.watch.counts.optimizer_steps] = checksums(self.buffers().values())
        self.evaluates = False

    def buffers(self) -> dict[str, torch.Tensor]:
        """Those that a forward computes with: batch norm's count of batches is none of them."""
        return {name: buffer for name, buffer in self.plain.named_buffers() if buffer.is_floating_point()}

    def part(self) -> dict:
        if self.plain is None:
            return {}
        self.evaluated()
        looks = {step: sums.cpu().numpy() for step, sums in self.looks.items()}
        return {"evaluation": {"names": list(self.buffers()), "looks": looks}}
