"""Schedules of another length than the training are a question, and those that fit are let pass."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torchs

from bench.observe import Watch
from bench.observe.schedules import Curve

STEPS, EPOCHS = 80, 10


def cosine(step: int, total: int, low: float = 0.0) -> float:
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * step / total))


def linear(step: int, *, num_training_steps: int) -> float:  # as transformers makes them, by functools.partial
    return max(0.0, 1 - step / num_training_steps)


class Poly(torchs.LRScheduler):
    """A scheduler of somebody's own."""

    def __init__(self, optimizer, max_iters: int):
        self.max_iters = max_iters
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [base * max(0.0, 1 - self.last_epoch / self.max_iters) ** 0.9 for base in self.base_lrs]


def after_warm_up(optimizer, later, length: int):
    warm_up = torchs.LinearLR(optimizer, 0.1, total_iters=8)
    return torchs.SequentialLR(optimizer, [warm_up, later(optimizer, length - 8)], [8])


MAKE = {
    "one cycle": lambda optimizer, length: torchs.OneCycleLR(optimizer, 0.1, total_steps=length + 1),
    "cosine": torchs.CosineAnnealingLR,
    "milestones": lambda optimizer, length: torchs.MultiStepLR(optimizer, [length // 2, length]),
    "warm-up and cosine": lambda optimizer, length: after_warm_up(optimizer, torchs.CosineAnnealingLR, length),
    "transformers": lambda optimizer, length: torchs.LambdaLR(
        optimizer, functools.partial(linear, num_training_steps=length)
    ),
    "a lambda, cosine": lambda optimizer, length: torchs.LambdaLR(optimizer, lambda n: cosine(n, length)),
    "somebody's own": Poly,
}
FREE = {
    "none": lambda optimizer: None,
    "warm-up alone": lambda optimizer: torchs.LinearLR(optimizer, 0.1, total_iters=10),
    "a warm-up lambda": lambda optimizer: torchs.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20)),
    "exponential": lambda optimizer: torchs.ExponentialLR(optimizer, 0.99),
    "inverse root": lambda optimizer: torchs.LambdaLR(optimizer, lambda n: min((n + 1) / 10, (10 / (n + 1)) ** 0.5)),
    "cyclic": lambda optimizer: torchs.CyclicLR(optimizer, 0.001, 0.1, 15, cycle_momentum=False),
    "restarts": lambda optimizer: torchs.CosineAnnealingWarmRestarts(optimizer, 25),
    "to a low rate": lambda optimizer: torchs.LambdaLR(optimizer, lambda n: cosine(min(n, 60), 60, 0.1)),
}  # fmt: skip


def asked(make, times: int = 1, every: int = 1, cut: bool = False) -> str:
    """What is asked of a training with a schedule that is stepped N times every few steps."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = make(optimizer)
    watch = Watch(model, optimizer)
    for number, rows in enumerate(watch([torch.randn(4, 3)] * STEPS), 1):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        for _ in range(times if schedule and number % every == 0 else 0):
            schedule.step()
    watch.cut = cut
    found = [finding for finding in watch.report() if finding.name == "schedule-length"]
    assert all(finding.question for finding in found)
    return found[0].evidence if found else ""


@pytest.mark.parametrize("name", MAKE)
def test_a_schedule_of_the_right_length_passes_and_one_of_another_is_asked_about(name):
    make = MAKE[name]
    assert asked(lambda optimizer: make(optimizer, STEPS)) == ""
    assert asked(lambda optimizer: make(optimizer, EPOCHS), every=STEPS // EPOCHS) == ""
    twice = asked(lambda optimizer: make(optimizer, 2 * STEPS))
    assert str(STEPS) in twice and ("a lambda" in name or str(2 * STEPS) in twice.replace("161", "160"))
    if name != "one cycle":  # which raises
        assert asked(lambda optimizer: make(optimizer, STEPS), times=2)
        assert asked(lambda optimizer: make(optimizer, STEPS // 2)) or name == "milestones"


@pytest.mark.parametrize("name", FREE)
def test_a_schedule_without_an_end_passes(name):
    assert asked(FREE[name]) == ""


def test_a_schedule_without_an_end_that_is_stepped_too_often_is_asked_about():
    often = asked(FREE["exponential"], times=2)
    assert all(value in often for value in ("ExponentialLR", "160", "80"))
    assert asked(FREE["a warm-up lambda"], times=2)


def test_a_training_that_is_cut_is_not_judged():
    assert asked(lambda optimizer: torchs.CosineAnnealingLR(optimizer, 2 * STEPS), cut=True) == ""


def test_a_rate_of_zero_is_asked_about_and_one_that_rises_to_the_end():
    assert "20 of 80" in asked(lambda optimizer: torchs.LambdaLR(optimizer, lambda step: float(step < 60)))
    assert "80" in asked(lambda optimizer: torchs.LambdaLR(optimizer, lambda step: (step + 1) / 200))


def test_a_long_curve_keeps_its_shape():
    curve = Curve()
    for step in range(100_000):
        curve.add(0.1 * cosine(step, 200_000))
    assert len(curve.rates) < 2048 and curve.steps == 100_000 and curve.trend() == "falls"
    for step in range(100_000, 200_000):
        curve.add(0.1 * cosine(step, 200_000))
    assert curve.trend() is None and curve.peak == 0.1
