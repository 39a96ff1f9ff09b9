"""bench/training/loop.py: fused optimizers take the plain ones' steps, or are refused; skipped steps of fp16."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.modes.base import Mode
from bench.training.loop import Trainer, build_optimizer

RECIPES = [
    {"optimizer": "sgd", "nesterov": True, "weight_decay": 1e-4},
    {"optimizer": "adam"},
    {"optimizer": "adamw", "weight_decay": 0.05},
]


def made(model: nn.Module, **options) -> torch.optim.Optimizer:
    """The optimizer of a run with these options."""
    return build_optimizer(resolve(RunConfig(**options), "cpu", 2), model)


def trained(fused: bool, scaled: bool, **options) -> torch.Tensor:
    """A small network's weights after five steps; in one of them, when the loss is scaled, a gradient is infinite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer, scaler = made(model, fused=fused, **options), torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scaled)
    for step, batch in enumerate(torch.randn(5, 10, 6).double()):
        optimizer.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        if scaled and step == 2:
            model[0].weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.param_groups[0]["fused"] in (fused, None)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("options", RECIPES, ids=lambda options: options["optimizer"])
def test_fused_steps_are_the_plain_ones(options, scaled):
    plain, fused = trained(False, scaled, **options), trained(True, scaled, **options)
    assert plain.isfinite().all() and torch.allclose(plain, fused, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_device_without_fused_kernels(optimizer):
    """What was asked for is refused, what was chosen for the GPU gives way."""
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    assert made(model, optimizer=optimizer)
    with pytest.raises(UserError, match=f"FUSED=1: .* {optimizer} "):
        made(model, optimizer=optimizer, fused=True)
    config = resolve(RunConfig(optimizer=optimizer, fused=True), "cpu", 2)
    chosen = build_optimizer(config.labelled(gpu_defaults="precision=bf16 fused=1"), model)
    assert not chosen.param_groups[0]["fused"]


class Waits(torch.amp.GradScaler):
    """A scaler that counts how often it is asked for its scale: on a GPU each is a wait."""

    count = 0

    def get_scale(self) -> float:
        self.count += 1
        return super().get_scale()


def trainer(fused: bool, averages: bool) -> SimpleNamespace:
    """As far as an update goes, with one weight. averages: whether there are averages of it."""
    weight = nn.Parameter(torch.ones(2))
    made = object.__new__(Trainer)
    made.mode, made.guard, made.skipped_steps, made.loss_steps = object.__new__(Mode), None, 0, 0
    made.config, made.averages = SimpleNamespace(clip_norm=None), averages or None
    made.one, made.loss_sum, made.uncounted = torch.ones(()), torch.zeros(()), torch.zeros((), dtype=torch.long)
    made.optimizer = torch.optim.SGD([weight], lr=0.5, fused=fused)
    made.optimizer.register_step_post_hook(made.note_step)
    made.scaler = Waits("cpu", init_scale=1024.0, growth_interval=2)
    return made


def update(trainer, gradient: float) -> bool:
    """One step with this gradient, and a loss of its size."""
    (weight,) = trainer.optimizer.param_groups[0]["params"]
    weight.grad = None
    trainer.scaler.scale((weight * gradient).sum()).backward()
    if taken := trainer.update(torch.tensor(gradient)):
        trainer.add_loss(torch.tensor(gradient))
    return taken


@pytest.mark.parametrize(("fused", "averages"), [(False, False), (True, False), (True, True)])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted_once(fused, averages):
    """Also where the scale grows at the same time. torch's own wait, of an unfused optimizer, is the only one: of a
    fused one the device alone knows, until somebody asks, or averages are made on the host's word."""
    made = trainer(fused, averages)
    taken = [update(made, gradient) for gradient in (1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0)]
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
