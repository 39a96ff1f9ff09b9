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
    """``trainer(fused)``: as far as an update goes, with one weight."""

    def make(fused: bool) -> SimpleNamespace:
        weight = torch.nn.Parameter(torch.ones(2))
        made = object.__new__(Trainer)
        made.mode, made.guard, made.skipped_steps, made.scale = object.__new__(Mode), None, 0, None
        made.config = SimpleNamespace(clip_norm=None)
        made.optimizer = torch.optim.SGD([weight], lr=0.5, fused=fused)
        made.optimizer.register_step_post_hook(made.note_step)
        made.scaler = Waits("cpu", init_scale=1024.0, growth_interval=2)
        return made

    return make


def update(trainer, gradient: float) -> bool:
    """One step with this gradient."""
    (weight,) = trainer.optimizer.param_groups[0]["params"]
    weight.grad = None
    trainer.scaler.scale((weight * gradient).sum()).backward()
    return trainer.update(torch.zeros(()))


@pytest.mark.parametrize(("fused", "waits"), [(False, 0), (True, 1)])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(trainer, fused, waits):
    """Also where the scale grows at the same time. torch's own wait, of an unfused optimizer, comes to it."""
    made = trainer(fused)
    update(made, 1.0)  # the first asks once more what the scale was
    made.scaler.count = 0
    taken = [update(made, gradient) for gradient in (1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0)]
    assert taken == [True, True, False, True, False, True] and made.skipped_steps == 2
    assert made.scaler.count == waits * len(taken)
    (weight,) = made.optimizer.param_groups[0]["params"]
    assert weight.tolist() == [1 - 5 * 0.5] * 2
