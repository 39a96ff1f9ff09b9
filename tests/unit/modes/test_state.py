"""bench/modes/base.py: one road for the whole state, under the plain model's names whatever wraps it."""

import pytest
import torch
from torch import nn

from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes import load_mode


@pytest.fixture(params=["single", "dp"])
def trained(request):
    """A mode of one process with a model and an optimizer that have taken one step."""
    name = request.param
    config = RunConfig(mode=name, num_devices=MODES[name].max_devices or 2, device="cpu")
    mode = load_mode(name)(resolve(config, "cpu", 2))
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    model = mode.wrap_model(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    mode.step(optimizer)
    yield mode, plain, model, optimizer
    if hasattr(model, "close"):
        model.close()


def test_the_state_has_the_plain_models_names_and_comes_back(trained):
    mode, plain, model, optimizer = trained
    whole = mode.full_state(model)
    assert whole.keys() == plain.state_dict().keys()
    assert all(torch.equal(whole[key], value) for key, value in plain.state_dict().items())
    state = mode.full_optimizer_state(model, optimizer)
    momenta = [entry["momentum_buffer"].clone() for entry in state["state"].values()]
    other = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    mode.load_full_optimizer_state(model, other, state)
    assert other.param_groups[0]["lr"] == 0.1 and momenta
    assert all(map(torch.equal, momenta, (entry["momentum_buffer"] for entry in other.state.values())))
    with pytest.raises((ValueError, KeyError)):
        mode.load_full_optimizer_state(model, other, {"state": {}, "param_groups": []})


def test_a_sum_of_gradients_is_a_mistake_and_said_to_be():
    for mistake, sums in (("none", False), ("gradient-sum", True), ("no-reshuffle", False)):
        config = RunConfig(mode="dp", num_devices=2, device="cpu", epochs=2, mistake=mistake)
        mode = load_mode("dp")(resolve(config, "cpu", 2))
        assert mode.sums_gradients == sums and ("sum" in mode.gradient) == sums
