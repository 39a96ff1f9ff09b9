"""Gradients: a rank's own, before any exchange, and the ones that its optimizer gets."""

import sys
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from bench.observe.probe import Probe
from bench.observe.together import finite

SAMPLED_GRADIENTS = 200_000  # numbers of a gradient that are compared, 0.8 MB per rank


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


def gradient_of(parts: list[dict]) -> dict | None:
    """The exchanged gradient G compared with m, the mean of the ranks' own: <G, m> / <m, m>, which is 1 for G = m."""
    if len({len(part["own"]) for part in parts}) > 1:
        return None
    mean = np.mean([part["own"] for part in parts], axis=0, dtype=np.float64)
    final = parts[0]["final"].astype(np.float64)
    with np.errstate(all="ignore"):
        ratio = finite(final @ mean / (mean @ mean))
    same = all(np.array_equal(part["final"], parts[0]["final"], equal_nan=True) for part in parts)
    return None if ratio is None else {"over_mean": ratio, "same_on_all_ranks": same, "kind": parts[0]["kind"]}


class Gradients(Probe):
    """The gradients of the first step of the optimizer."""

    joins: ClassVar = {"gradient": gradient_of}
    silent: ClassVar = {"gradient": "no step of the optimizer was seen whole"}

    def follow(self, model, optimizer) -> None:
        self.probe = GradientProbe(model.parameters())

    def before_step(self, optimizer) -> None:
        if self.probe.hooks and optimizer is self.watch.optimizer:  # Horovod steps twice: the inner has final gradients
            self.probe.look()

    def after_step(self, optimizer) -> None:
        if optimizer is self.watch.optimizer:
            self.probe.close()

    def close(self) -> None:
        if self.watch.model is not None:
            self.probe.close()

    def part(self) -> dict:
        if self.watch.model is None:
            return {}
        found = self.probe.result()
        return {"gradient": found and found | {"kind": kind_of(self.watch.model, self.watch.optimizer)}}


def kind_of(model: nn.Module, optimizer) -> str:
    """How gradients are exchanged: "mean" but for what is known to be none."""
    horovod = sys.modules.get("horovod.torch")
    if horovod and (getattr(optimizer, "op", None) is horovod.Adasum or hasattr(optimizer, "_starting_models")):
        return "Adasum"
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", [])]  # DDP's; torch's name for it is its own
    return "PowerSGD" if any("power" in getattr(hook, "__name__", "").lower() for hook in hooks) else "mean"
