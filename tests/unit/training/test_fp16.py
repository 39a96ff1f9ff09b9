"""bench/training/loop.py: whether the scaler of fp16 took a step, and how often the host waits to know it."""

from types import SimpleNamespace

import pytest
import torch

from bench.modes.base import Mode
from bench.training.loop import Trainer


class Waits(torch.amp.GradScaler):
    """A scaler that counts how often it is asked for its scale: on a GPU each is a wait."""

    count = 0

    def get_scale(self) -> float:
        self.count += 1
        return super().get_scale()


@pytest.fixture
def trainer():
    """``trainer(fused)``: as far as an update goes, with one weight. averages: whether there are averages of it."""

    def make(fused: bool, averages: bool = False) -> SimpleNamespace:
        weight = torch.nn.Parameter(torch.ones(2))
        made = object.__new__(Trainer)
        made.mode, made.guard, made.skipped_steps, made.loss_steps = object.__new__(Mode), None, 0, 0
        made.config, made.averages = SimpleNamespace(clip_norm=None), averages or None
        made.one, made.loss_sum, made.uncounted = torch.ones(()), torch.zeros(()), torch.zeros((), dtype=torch.long)
        made.optimizer = torch.optim.SGD([weight], lr=0.5, fused=fused)
        made.optimizer.register_step_post_hook(made.note_step)
        made.scaler = Waits("cpu", init_scale=1024.0, growth_interval=2)
        return made

    return make


def update(trainer, gradient: float) -> bool:
    """One step with this gradient, and a loss of its size."""
    (weight,) = trainer.optimizer.param_groups[0]["params"]
    weight.grad = None
    trainer.scaler.scale((weight * gradient).sum()).backward()
    if taken := trainer.update(torch.tensor(gradient)):
        trainer.add_loss(torch.tensor(gradient))
    return taken


GRADIENTS = (1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0)


@pytest.mark.parametrize(("fused", "averages"), [(False, False), (True, False), (True, True)])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted_once(trainer, fused, averages):
    """Also where the scale grows at the same time. torch's own wait, of an unfused optimizer, is the only one: of a
    fused one the device alone knows, until somebody asks, or averages are made on the host's word."""
    made = trainer(fused, averages)
    taken = [update(made, gradient) for gradient in GRADIENTS]
    waits = averages or not fused
    assert taken == ([True, True, False, True, False, True] if waits else [True] * 6)
    assert averages or made.scaler.count == 0
    for _ in range(2):
        made.count_left_out()
        assert (made.skipped_steps, made.loss_steps, made.loss_sum.item()) == (2, 4, 4.0)
    (weight,) = made.optimizer.param_groups[0]["params"]
    assert weight.tolist() == [1 - 4 * 0.5] * 2
    made.loss_steps = 0  # an epoch ends
    update(made, float("inf"))
    made.count_left_out()
    assert (made.skipped_steps, made.loss_steps) == (3, 0)
