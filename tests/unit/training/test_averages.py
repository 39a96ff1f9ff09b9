"""bench/training/averages.py: against torch's own update, step by step; batch norm's statistics; what is refused."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.modes import load_mode
from bench.training.averages import Averages, stored

STEPS = 5


def network() -> nn.Module:
    """A small classifier with a batch norm and a dropout."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def averages_of(model: nn.Module, name: str = "single", **options) -> Averages:
    """Those of a run of one process."""
    config = resolve(RunConfig(mode=name, epochs=3, per_device_batch=5, **options), "cpu", 2)
    mode = load_mode(name)(config)
    return Averages(config, mode, mode.wrap_model(model))


def step(model: nn.Module, number: int) -> None:
    """Weights and buffers move."""
    torch.manual_seed(number)
    model.train()
    model(torch.randn(10, 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)


def same(a: dict, b: dict) -> bool:
    """Whether two state dicts are equal, names and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_ema_is_torchs():
    """Bit by bit, but for the counter of batches, which is the model's and no average."""
    model = network()
    averages = averages_of(model, ema=0.7)
    expected = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
    assert not averages.ready()
    for number in range(STEPS):
        step(model, number)
        averages.step_taken()
        expected.update_parameters(model)
    state, theirs = averages.state()["ema"], expected.state_dict()
    assert state.pop("module.1.num_batches_tracked") == model[1].num_batches_tracked == STEPS
    theirs.pop("module.1.num_batches_tracked")
    assert same(state, theirs) and list(averages.ready()) == ["ema"]


def trainer() -> SimpleNamespace:
    """What estimating asks of a Trainer."""
    return SimpleNamespace(
        autocast=contextlib.nullcontext(), status=SimpleNamespace(phase=lambda name: None),
        config=SimpleNamespace(per_device_batch=5), device=torch.device("cpu"),
        workload=SimpleNamespace(prepare=lambda inputs: inputs, forward=lambda model, inputs, targets: model(inputs)),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["single", "dp"])
def test_swa_is_the_mean_of_its_epochs_with_statistics_of_its_own(name):
    model, seen = network(), []
    averages = averages_of(model, name, swa=2)
    batches = [(torch.randn(10, 6), torch.zeros(10), []) for _ in range(3)]
    for epoch in (1, 2, 3):
        step(model, epoch)
        seen.append(copy.deepcopy(model.state_dict()))
        before = torch.get_rng_state()
        averages.epoch_ended(trainer(), epoch, batches)
        assert torch.equal(torch.get_rng_state(), before) and same(model.state_dict(), seen[-1])
        assert ("swa" in averages.ready()) == (epoch >= 2)
    state = averages.models["swa"].module.state_dict()
    for key in ("0.weight", "3.bias"):
        assert torch.allclose(state[key], (seen[1][key] + seen[2][key]) / 2)
    expected = network()
    expected.load_state_dict(state)
    update_bn([part for inputs, _, _ in batches for part in inputs.split(5)], expected)  # of one device each
    assert same(expected.state_dict(), state)


def test_averages_come_back_from_a_checkpoint():
    model = network()
    averages = averages_of(model, ema=0.7, swa=1)
    for number in range(STEPS):
        step(model, number)
        averages.step_taken()
    averages.epoch_ended(trainer(), 1, [(torch.randn(10, 6), torch.zeros(10), [])])
    state = copy.deepcopy(averages.state())
    other = averages_of(network(), ema=0.7, swa=1)
    assert list(other.load(state, None)) == []
    assert all(same(other.state()[name], state[name]) for name in ("ema", "swa"))
    assert stored(averages.mode, model, state)["ema"].state_dict().keys() == model.state_dict().keys()
    (said,) = averages_of(network(), ema=0.7, swa=1).load({"ema": state["ema"]}, None)
    assert said == "SWA starts here: the checkpoint does not contain it"
    assert stored(averages.mode, model, averages_of(network(), swa=1).state()) == {}  # nothing has gone into it


def test_a_frozen_batch_norm_keeps_its_statistics():
    model = network()
    model[1].requires_grad_(False)
    with pytest.raises(UserError, match=r"SWA .* 1 is frozen"):
        averages_of(model, swa=1)
    assert averages_of(model, ema=0.9)


def test_weights_that_no_rank_has_whole_are_refused():
    sharded = SimpleNamespace(replicated=False)
    with pytest.raises(UserError, match="leave EMA and SWA out"):
        Averages(RunConfig(epochs=1, ema=0.9), sharded, network())
