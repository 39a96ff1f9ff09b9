"""bench/training/loop.py's optimizers: the fused ones take the plain ones' steps, or are refused in one line."""

import pytest
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.training.loop import build_optimizer

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
