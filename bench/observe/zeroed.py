"""Gradients that are zeroed too rarely or too early: a step has those of earlier steps, too, or none at all."""

import functools
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from bench.observe.probe import Probe

STEPS = 4  # of each optimizer that are looked at


def nonzero(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Whether a gradient has a number other than zero, on its device: nothing waits for it."""
    if gradient is None:
        return None
    return (gradient._values() if gradient.is_sparse else gradient.detach()).any()


class Gradient:
    """What is known of one parameter's gradient between two steps of its optimizer.

    left: whether it still has what it had at the last step; None once it was zeroed. came: whether a backward pass has
    given it anything since then.
    """

    def __init__(self, name: str):
        self.name, self.left, self.came, self.accumulated = name, None, None, False


class ZeroGrads(Probe):
    """Whether gradients are zeroed between two steps, and not between a backward pass and the step.

    A hook sees a parameter's gradient before a backward pass adds to it: it must be zero, or None, at least once
    between two steps. What ``torch.autograd.grad`` returns is not added to it, and does not count.
    """

    joins: ClassVar = {"zero_grad": lambda parts: max(parts, key=lambda part: (len(part["kept"]), part["lost"]))}
    silent: ClassVar = {"zero_grad": "no optimizer took two steps after backward passes"}

    def __init__(self, watch):
        super().__init__(watch)
        self.gradients: dict[int, Gradient] = {}
        self.steps = {}
        self.kept: list[tuple[str, torch.Tensor]] = []
        self.lost: list[torch.Tensor] = []  # for each step whether all that came has gone

    def start(self) -> None:
        named = dict(self.watch.model.named_parameters()) | self.watch.outside()
        for name, p in named.items():
            if p.requires_grad and p.is_leaf:
                known = self.gradients[id(p)] = Gradient(name)
                adds, added = (functools.partial(self.adds, known, p), functools.partial(self.added, known))
                self.listening.append(p.register_hook(self.guarded(adds)).remove)
                self.listening.append(p.register_post_accumulate_grad_hook(self.guarded(added)).remove)

    @staticmethod
    def adds(known: Gradient, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        if known.left is not None:
            left = nonzero(parameter.grad)
            known.left = None if left is None else known.left & left
        came = nonzero(gradient)
        known.came = came if known.came is None else known.came | came

    @staticmethod
    def added(known: Gradient, parameter: nn.Parameter) -> None:
        known.accumulated = True

    def held(self, optimizer) -> Iterable[tuple[nn.Parameter, Gradient]]:
        if self.steps.get(id(optimizer), 0) >= STEPS:
            return
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) in self.gradients:
                    yield p, self.gradients[id(p)]

    def before_step(self, optimizer) -> None:
        if self.watch.stepping > 1:
            return
        lost = []
        for p, known in self.held(optimizer):
            if known.accumulated:
                if known.left is not None:
                    self.kept.append((known.name, known.left))
                has = nonzero(p.grad)
                lost.append(known.came if has is None else known.came & ~has)
        if lost:
            self.lost.append(torch.stack([each.to(lost[0].device) for each in lost]).all())

    def after_step(self, optimizer) -> None:
        if self.watch.stepping:
            return
        for p, known in self.held(optimizer):
            known.left, known.came, known.accumulated = nonzero(p.grad), None, False
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        if all(self.steps.get(id(each), 0) >= STEPS for each in self.watch.optimizers):
            self.close()

    def part(self) -> dict:
        if len(self.lost) < 2:
            return {}
        kept = list(dict.fromkeys(name for name, left in self.kept if left.item()))
        lost = sum(bool(step.item()) for step in self.lost)
        return {"zero_grad": {"steps": len(self.lost), "kept": kept, "lost": lost}}
