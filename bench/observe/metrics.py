"""What a script says of itself: the figures that each rank would print, and the learning rate."""

import itertools
from typing import ClassVar

import torch

from bench.observe.probe import Probe, Unheard
from bench.observe.together import columns
from bench.observe.weights import looked_at
from bench.record.observed import rate_of


class Metrics(Probe):
    """What ``Watch.metric`` was told after each epoch."""

    joins: ClassVar = {"reported": lambda parts: columns(parts) | {"val_images": parts[0].get("val_images")}}
    silent: ClassVar = {"reported": "watch.metric was not called"}

    def __init__(self, watch):
        super().__init__(watch)
        self.reported = {}

    def metric(self, values: dict) -> None:
        for name, value in values.items():
            if name == "val_images":
                self.reported[name] = value
            else:
                self.reported.setdefault(name, []).append(value)

    def part(self) -> dict:
        return {"reported": self.reported or None}


def watched_rate(parts: list[dict]) -> dict | None:
    """A Watch's learning rate. images: of one optimizer step of one rank; used: the highest of each group."""
    part = parts[0]
    if part["rising"]:
        raise Unheard("the learning rate was still rising at the end")
    used = part["used"]
    rate = rate_of(max(used), part["lr"], sum(part["images"] for part in parts), part["lr_batch"])
    return rate | {"groups": used, "optimizer": part["optimizer"]}


def rates_of(parts: list[dict]) -> dict:
    """Learning rates by rank: the first step looked at in which they differ, if any, and what they are there."""
    common = [step for step in parts[0]["rates"] if all(step in part["rates"] for part in parts)]
    for step in common:
        found = [part["rates"][step] for part in parts]
        if any(rates != found[0] for rates in found):
            group = next((i for i, values in enumerate(zip(*found, strict=False)) if len(set(values)) > 1), 0)
            return {"looked_at": len(common), "apart_at": step, "by_rank": [rates[group] for rates in found]}
    return {"looked_at": len(common), "apart_at": None, "by_rank": []}


class Rates(Probe):
    """The learning rates of the optimizers that step with the model's parameters, and the recipe's."""

    joins: ClassVar = {"learning_rate": watched_rate, "rates": rates_of}
    silent: ClassVar = {"learning_rate": "no recipe: Watch(…, lr=, lr_batch=)", "rates": "no optimizer step was seen"}

    def __init__(self, watch):
        super().__init__(watch)
        self.step, self.rates, self.peaks, self.last, self.before = 0, {}, [], 0.0, 0.0

    def before_step(self, optimizer) -> None:
        if self.watch.stepping > 1 or not self.watch.steps_model(optimizer):
            return
        self.step += 1
        look = looked_at(self.step)
        rates = [group["lr"] for group in optimizer.param_groups]
        if any(isinstance(rate, torch.Tensor) for rate in rates):
            if not look:
                return  # to read it would make the host wait for the device
            rates = [float(rate) for rate in rates]
        if look:
            self.rates[self.step] = rates
        self.peaks = [max(pair) for pair in itertools.zip_longest(self.peaks, rates, fillvalue=0.0)]
        self.before, self.last = self.last, max(rates)

    def part(self) -> dict:
        if not self.peaks:
            unseen = Unheard("no optimizer step was seen")
            return {"learning_rate": unseen if self.watch.recipe else None}
        return {"rates": {"rates": self.rates}, "learning_rate": self.watch.recipe and self.rate()}

    def rate(self) -> dict | Unheard:
        images = self.watch.counts.images_per_step() if self.watch.counts.images else None
        if not images:
            return Unheard("the length of a batch is not known")
        rising = self.step > 1 and self.last > self.before
        kinds = [type(each).__name__ for each in self.watch.optimizers]
        return self.watch.recipe | {"used": self.peaks, "images": images, "rising": rising, "optimizer": kinds[0]}
