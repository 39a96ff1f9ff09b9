"""The learning rate of every step: whether it is equal on all ranks and to the recipe's, and whether the length of
torch's schedulers matches the training."""

import gc
import itertools
import sys
from typing import ClassVar

import torch
from torch.optim import lr_scheduler as torchs

from bench.observe.probe import NotObserved, Probe, finite
from bench.observe.weights import looked_at
from bench.record.observed import rate_of

MOST_RATES = 2048  # kept per optimizer; above this every second one is dropped
ZERO = 1e-7  # of the peak: a cosine ends at 0 up to rounding
LEVELS = 8  # different rates needed to judge the shape of a curve
CONVEX = 0.004  # of the drop: an exponential's middle is further below the mean of its ends
NEAR, LOW = 0.2, 0.02  # of the peak: still near it; practically 0
# Names for the number of steps in a scheduler, or among the arguments of a LambdaLR's function.
LENGTHS = ("total_steps", "T_max", "total_iters", "num_training_steps", "max_steps", "max_iters", "max_epochs")
FREE = ("StepLR", "ExponentialLR", "MultiplicativeLR", "CyclicLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau",
        "SWALR")  # fmt: skip
NO_STEP = "no optimizer step was observed"


def watched_rate(parts: list[dict]) -> dict | None:
    """A Watch's learning rate. images: of one optimizer step of one rank; used: the highest of each group."""
    part = parts[0]
    if part["rising"]:
        raise NotObserved("the learning rate was still rising at the end")
    used = part["used"]
    rate = rate_of(max(used), part["lr"], sum(part["images"] for part in parts), part["lr_batch"])
    return rate | {"groups": used, "optimizer": part["optimizer"]}


def rates_of(parts: list[dict]) -> dict:
    """Learning rates by rank: the first observed step in which they differ, if any, and their values in it."""
    common = [step for step in parts[0]["rates"] if all(step in part["rates"] for part in parts)]
    for step in common:
        found = [part["rates"][step] for part in parts]
        if any(rates != found[0] for rates in found):
            group = next((i for i, values in enumerate(zip(*found, strict=False)) if len(set(values)) > 1), 0)
            return {"looked_at": len(common), "apart_at": step, "by_rank": [rates[group] for rates in found]}
    return {"looked_at": len(common), "apart_at": None, "by_rank": []}


class Rates(Probe):
    joins: ClassVar = {"learning_rate": watched_rate, "rates": rates_of}
    silent: ClassVar = {"learning_rate": "no recipe: Watch(…, lr=, lr_batch=)", "rates": NO_STEP}

    def setup(self) -> None:
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
            return {"learning_rate": NotObserved(NO_STEP) if self.watch.recipe else None}
        return {"rates": {"rates": self.rates}, "learning_rate": self.watch.recipe and self.rate()}

    def rate(self) -> dict | NotObserved:
        images = self.watch.counts.images_per_step() if self.watch.counts.images else None
        if not images:
            return NotObserved("the length of a batch is unknown")
        rising = self.step > 1 and self.last > self.before
        kind = type(self.watch.optimizers[0]).__name__
        return self.watch.recipe | {"used": self.peaks, "images": images, "rising": rising, "optimizer": kind}


class Curve:
    def __init__(self):
        self.steps, self.stride, self.rates = 0, 1, []
        self.peak = self.last = 0.0
        self.zeros, self.whole = 0, True

    def add(self, rate: float) -> None:
        self.peak, self.last = max(self.peak, rate), rate
        self.zeros += rate <= ZERO * self.peak and self.peak > 0
        if self.steps % self.stride == 0:
            self.rates.append(rate)
            if len(self.rates) == MOST_RATES:
                self.rates, self.stride = self.rates[::2], 2 * self.stride
        self.steps += 1

    def trend(self) -> str | None:
        """The shape of the curve: "falls" or "rises", smoothly and to the end, as a truncated schedule does; "again":
        it has fallen to 0 and rises; None: anything else. An exponential and an inverse root, which have no end, are
        convex."""
        rates = self.rates
        levels = [rate for place, rate in enumerate(rates) if place == 0 or rate != rates[place - 1]]
        if not self.whole or len(levels) < LEVELS:
            return None
        held = next((count for count, rate in enumerate(reversed(rates)) if rate != levels[-1]), len(rates))
        if held > 2 * len(rates) / len(levels):
            return None  # the end is a plateau
        top = levels.index(max(levels))
        fall = levels[top:]
        rise = fall[fall.index(min(fall)) :]
        if top == len(levels) - 1 and levels == sorted(levels):
            return "rises"
        near = self.last > NEAR * self.peak
        if near and rise[0] < LOW * self.peak and len(rise) >= LEVELS and rise == sorted(rise):
            return "again"
        fall = fall[1 - len(fall) % 2 :]  # with a level in the middle
        drop = fall[0] - fall[-1]
        if len(fall) < LEVELS or fall != sorted(fall, reverse=True) or drop < 0.05 * self.peak:
            return None
        concave = fall[len(fall) // 2] >= (fall[0] + fall[-1]) / 2 - CONVEX * drop
        tail = max(1, len(fall) // 10)
        steep = (fall[-1 - tail] - fall[-1]) / tail >= 0.5 * drop / (len(fall) - 1)
        return "falls" if concave and steep and near else None


class Schedules(Probe):
    joins: ClassVar = {"schedules": lambda parts: parts[0]}
    silent: ClassVar = {"schedules": NO_STEP}

    def setup(self) -> None:
        self.optimizers, self.curves, self.found, self.begun = {}, {}, {}, {}

    def before_step(self, optimizer) -> None:
        if self.watch.stepping > 1 or not self.watch.steps_model(optimizer):
            return
        if id(optimizer) not in self.curves:
            self.optimizers[id(optimizer)], self.curves[id(optimizer)] = optimizer, Curve()
            self.look()
            self.begun = {key: each.last_epoch for key, each in self.found.items()} | self.begun
        curve = self.curves[id(optimizer)]
        rates = [group["lr"] for group in optimizer.param_groups]
        if any(isinstance(rate, torch.Tensor) and rate.is_cuda for rate in rates):
            if not looked_at(curve.steps + 1):
                curve.steps += 1
                return  # to read it would make the host wait for the device
            curve.whole = False
        curve.add(max(map(float, rates)))

    def look(self) -> None:
        """Find the schedulers: torch has no reference from an optimizer to them."""
        groups = groups_of(*self.optimizers.values())
        for each in [item for item in gc.get_objects() if issubclass(type(item), torchs.LRScheduler)]:
            chained = isinstance(each, torchs.ChainedScheduler)  # its parts are found separately
            if not chained and hasattr(each, "last_epoch") and groups & groups_of(vars(each).get("optimizer")):
                self.found[id(each)] = each

    def part(self) -> dict:
        if not self.curves:
            return {}
        if self.watch.cut:
            return {"schedules": NotObserved("the training was interrupted")}
        self.look()
        return {"schedules": [self.described(optimizer) for optimizer in self.optimizers.values()]}

    def described(self, optimizer) -> dict:
        """An optimizer's curve and its schedulers: kind; length, in steps, None if it has none; ends, whether it must
        not be stepped further; taken, its steps in this process and before; here, those in this process, None if
        unknown."""
        curve, groups = self.curves[id(optimizer)], groups_of(optimizer)
        kinds = [each for each in self.found.values() if isinstance(each, torchs.SequentialLR)]
        within = {id(part) for each in kinds for part in each._schedulers}
        prepared = "accelerate.scheduler" in sys.modules  # steps them once per process, possibly correctly
        schedulers = []
        for key, each in self.found.items():
            if key not in within and groups & groups_of(each.optimizer):
                here = None if prepared else finite(each.last_epoch - self.begun.get(key, each.last_epoch))
                schedulers.append({"kind": type(each).__name__, "length": length_of(each), "ends": ends(each),
                                   "taken": finite(each.last_epoch), "here": here})  # fmt: skip
        shaped = not any(each["ends"] or each["kind"] in (*FREE, "MultiStepLR") for each in schedulers)
        return {"steps": curve.steps, "peak": finite(curve.peak), "last": finite(curve.last), "zeros": curve.zeros,
                "trend": curve.trend() if shaped else None, "schedulers": schedulers}  # fmt: skip


def groups_of(*optimizers) -> set[int]:
    """The ids of optimizers' parameter groups; a wrapper shares them with the wrapped optimizer."""
    return {id(group) for each in optimizers for group in getattr(each, "param_groups", ())}


def length_of(scheduler) -> int | float | None:
    if type(scheduler).__name__ in FREE:
        return None
    if isinstance(scheduler, torchs.SequentialLR):
        return scheduler._milestones[-1] + (length_of(scheduler._schedulers[-1]) or 0)
    if isinstance(scheduler, torchs.MultiStepLR):
        return max(scheduler.milestones, default=None)
    given = [vars(scheduler)]
    if isinstance(scheduler, torchs.LambdaLR):
        given = [getattr(function, "keywords", {}) for function in scheduler.lr_lambdas]
    found = [words[name] for words in given for name in LENGTHS if isinstance(words.get(name), int | float)]
    return finite(found[0]) if found else None


def ends(scheduler) -> bool:
    """Whether a scheduler defines no rate after its length; a warm-up and milestones do define one."""
    if isinstance(scheduler, torchs.SequentialLR):
        return ends(scheduler._schedulers[-1])
    if isinstance(scheduler, torchs.LinearLR):
        return scheduler.end_factor < scheduler.start_factor
    return length_of(scheduler) is not None and not isinstance(scheduler, torchs.MultiStepLR | torchs.ConstantLR)
