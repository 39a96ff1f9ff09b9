"""The metrics that a script reports after each epoch, and its training losses: the number of targets in each mean, and
their mean between two reports.

torch's losses are observed where all calls meet: in the functions that torch.nn.functional calls. A hook on the result
gives the factor of a loss on its way to the backward pass, so a mean weighted by its targets is recognised.
"""

import functools
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from bench.observe.examples import length_of
from bench.observe.probe import Probe, columns, finite, listen

LOOKED_AT = 16  # optimizer steps whose losses are observed
MOST_LOSSES = 200  # of these steps
MOST_PASSES = 100_000  # whose losses are summed
REPORTS = 8  # calls of Watch.metric, after which the sum stops
EPOCHS = 3  # without a report, after which the sum stops
MEAN = 1  # torch's number of this reduction
UNREPORTED = "watch.metric was not called"
# The functions, with the positions of reduction and of ignore_index among their arguments.
FUNCTIONS = (
    (torch._C._nn, "cross_entropy_loss", 3, 4), (torch._C._nn, "nll_loss_nd", 3, 4),
    (torch, "binary_cross_entropy_with_logits", 4, None), (torch._C._nn, "binary_cross_entropy", 3, None),
    (torch._C._nn, "mse_loss", 2, None), (torch._C._nn, "l1_loss", 2, None), (torch._C._nn, "smooth_l1_loss", 2, None),
)  # fmt: skip


class Metrics(Probe):
    joins: ClassVar = {"reported": lambda parts: columns(parts) | {"val_images": parts[0].get("val_images")}}
    silent: ClassVar = {"reported": UNREPORTED}

    def setup(self) -> None:
        self.reported = {}

    def metric(self, values: dict) -> None:
        for name, value in values.items():
            if name == "val_images":
                self.reported[name] = value
            else:
                self.reported.setdefault(name, []).append(value)

    def part(self) -> dict:
        return {"reported": self.reported or None}


def targets_of(parts: list[dict]) -> dict | None:
    """A target's weight on different ranks in the first steps. A part: by step the number of targets of its losses,
    and their total weight. counts: by rank, the mean number of targets per step; ratio, most: the highest weight of a
    target over the lowest, as median and maximum over the steps."""
    common = [step for step in parts[0] if all(step in part for part in parts)]
    counts, weights = (np.array([[part[step][i] for step in common] for part in parts], np.float64) for i in (0, 1))
    with np.errstate(all="ignore"):
        each = weights / counts  # [ranks, steps]
    good = (np.isfinite(each) & (each > 0)).all(axis=0)
    if not good.any():
        return None
    ratios = each[:, good].max(axis=0) / each[:, good].min(axis=0)
    means = counts[:, good].mean(axis=1).tolist()
    return {"steps": len(ratios), "counts": means, "ratio": float(np.median(ratios)), "most": float(ratios.max())}


class Losses(Probe):
    joins: ClassVar = {"targets": targets_of, "trained": columns}
    silent: ClassVar = {
        "targets": "no loss of torch.nn.functional was observed in the first steps",
        "trained": UNREPORTED,
    }

    def setup(self) -> None:
        self.passes_end, self.losses, self.steps, self.epochs = lambda: None, [], 0, 0
        self.reports = []
        self.begin_sum()

    def begin_sum(self) -> None:
        self.sum = self.weighted = 0.0
        self.passes = self.taken = self.examples = self.batch = self.fresh = 0

    def begin(self, loader) -> None:
        for owner, name, *places in FUNCTIONS:
            if hasattr(owner, name):
                self.listen(owner, name, functools.partial(self.called, *places))
        self.passes_end = listen(torch.Tensor, "backward", self.guarded(self.backward))

    def fetched(self, epoch, batch) -> None:
        if torch.is_grad_enabled() and self.watch.training:
            self.batch = length_of(batch) or 0
            self.fresh += self.batch

    def after_step(self, optimizer) -> None:
        if not self.watch.stepping and self.watch.steps_model(optimizer):
            self.steps += 1
            self.taken += 1
            if self.steps == LOOKED_AT:
                super().close()  # of single losses

    def epoch_ended(self, epoch) -> None:
        self.epochs += bool(epoch.optimizer_steps)
        if self.epochs == EPOCHS and not self.reports:
            self.passes_end()

    # --- the targets of the first steps ---------------------------------------------------------------------------

    def called(self, reduction: int, ignore: int | None, arguments: tuple, options: dict) -> Callable | None:
        """One of ``FUNCTIONS`` is called. reduction, ignore: their positions among the arguments."""
        if options or len(self.losses) == MOST_LOSSES or not (torch.is_grad_enabled() and eager(*arguments[:2])):
            return None
        target = arguments[1]
        indices = ignore is not None and not target.is_floating_point()
        count = (target != arguments[ignore]).sum() if indices else target.numel()
        loss = {"step": self.steps, "count": count, "mean": arguments[reduction] == MEAN, "gradient": None}
        return self.guarded(lambda result: self.computed(result, loss))

    def computed(self, result: torch.Tensor, loss: dict) -> None:
        """A loss was computed. Its gradient in the backward pass gives the loss's factor."""

        def came_back(gradient: torch.Tensor) -> None:
            sizes = gradient.detach().abs().float()
            used = sizes > 0
            least = torch.where(used, sizes, float("inf")).min()
            loss["gradient"] = torch.stack([used.sum(), sizes.max(), least])
            loss["alone"] = sizes.ndim > 0

        if result.requires_grad:
            self.losses.append(loss)
            result.register_hook(self.guarded(came_back))

    def targets(self) -> dict[int, tuple[float, float]] | None:
        """By step the number of targets of the losses in a backward pass, and their total weight. Single losses, as
        with reduction="none", must have equal weights: the used ones are the targets."""
        steps = {}
        for loss in self.losses:
            if loss["gradient"] is not None:
                used, most, least = loss["gradient"].tolist()
                count = used if loss["alone"] else float(loss["count"])
                if most - least <= 1e-3 * most:
                    targets, weight = steps.get(loss["step"], (0.0, 0.0))
                    steps[loss["step"]] = targets + count, weight + (most if loss["mean"] else most * count)
        return steps or None

    # --- the mean loss between two reports ------------------------------------------------------------------------

    def backward(self, arguments: tuple, options: dict) -> None:
        loss = arguments[0]
        if loss.ndim or not eager(loss):
            return
        loss = loss.detach().float()
        self.sum, self.weighted = self.sum + loss, self.weighted + loss * self.batch
        self.passes, self.examples, self.fresh = self.passes + 1, self.examples + self.fresh, 0
        if self.passes == MOST_PASSES:
            self.passes_end()

    def metric(self, values: dict) -> None:
        if len(self.reports) < REPORTS:
            self.reports.append((self.sum, self.weighted, self.passes, self.taken, self.examples))
        self.begin_sum()

    def close(self) -> None:
        super().close()
        self.passes_end()

    def part(self) -> dict:
        trained = {"loss": [], "by_examples": [], "examples": []}
        for total, weighted, passes, taken, examples in self.reports:
            one_each = 0 < passes == taken < MOST_PASSES  # an accumulation divides its losses
            trained["loss"].append(finite(float(total) / passes) if one_each else None)
            trained["by_examples"].append(finite(float(weighted) / examples) if one_each and examples else None)
            trained["examples"].append(examples or None)
        return {"targets": self.targets(), "trained": trained if self.reports else None}


def eager(*tensors) -> bool:
    """Whether these are tensors with values now: not traced, transformed or captured."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if not all(type(each) in (torch.Tensor, nn.Parameter) and not wrapped(each) for each in tensors):
        return False
    return not (tensors[0].is_cuda and torch.cuda.is_current_stream_capturing())
