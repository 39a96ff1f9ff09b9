"""bench/training/averages.py: against torch's own update, step by step; what is refused. (With batch norm and on
several ranks: tests/multiprocess/test_training.py.)"""

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
from tests.unit.training.test_checkpoint import same

STEPS = 5
BATCHES = [(torch.randn(10, 6), torch.zeros(10), []) for _ in range(3)]
TRAINER = SimpleNamespace(  # what estimating asks of one
    autocast=contextlib.nullcontext(), status=SimpleNamespace(phase=lambda name: None),
    config=SimpleNamespace(per_device_batch=5), device=torch.device("cpu"),
    workload=SimpleNamespace(prepare=lambda inputs: inputs, forward=lambda model, inputs, targets: model(inputs)),
)  # fmt: skip


def network() -> nn.Module:
    """A small classifier with a batch norm and a dropout."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def averages_of(model: nn.Module, name: str = "single", **options) -> Averages:
    """Those of a run of one process."""
    config = resolve(RunConfig(mode=name, epochs=3, per_device_batch=5, **options), "cpu", 2)
    mode = load_mode(name)(config)
    return Averages(config, mode, mode.wrap_model(model))


@pytest.mark.parametrize("name", ["single", "dp"])
def test_averages_are_torchs_and_come_back_from_a_checkpoint(name):
    """EMA bit by bit, but for the counter of batches, which is the model's and no average. SWA is the mean of the
    weights after epoch 2 and 3, with its own statistics; nothing in the training notices."""
    model, seen = network(), []
    averages = averages_of(model, name, ema=0.7, swa=2)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
    wrapped = averages.mode.wrap_model(network())
    assert not averages.ready() and stored(averages.mode, wrapped, averages.state()) == {}
    for epoch in (1, 2, 3):
        torch.manual_seed(epoch)
        model.train()(torch.randn(10, 6))  # buffers move
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        averages.step_taken()
        ema.update_parameters(model)
        seen.append(copy.deepcopy(model.state_dict()))
        before = torch.get_rng_state()
        averages.epoch_ended(TRAINER, epoch, BATCHES)
        assert torch.equal(torch.get_rng_state(), before) and same(model.state_dict(), seen[-1])
        assert set(averages.ready()) == ({"ema", "swa"} if epoch >= 2 else {"ema"})
    state, theirs = copy.deepcopy(averages.state()), ema.state_dict()
    counter = "module.1.num_batches_tracked"
    assert state["ema"][counter] == model[1].num_batches_tracked == 3
    assert same(state["ema"], theirs | {counter: state["ema"][counter]})
    swa = averages.models["swa"].module.state_dict()
    for key in ("0.weight", "3.bias"):
        assert torch.allclose(swa[key], (seen[1][key] + seen[2][key]) / 2)
    expected = network()
    expected.load_state_dict(swa)
    update_bn([part for inputs, _, _ in BATCHES for part in inputs.split(5)], expected)  # of one device each
    assert same(expected.state_dict(), swa)
    other = averages_of(network(), name, ema=0.7, swa=2)
    assert list(other.load(state, None)) == []
    assert all(same(other.state()[kind], state[kind]) for kind in ("ema", "swa"))
    assert stored(averages.mode, wrapped, state).keys() == {"ema", "swa"}
    (note,) = averages_of(network(), name, ema=0.7, swa=1).load({"ema": state["ema"]}, None)
    assert "SWA" in note


def test_averages_that_cannot_be_had_are_refused():
    """SWA would change statistics that are frozen; sharded weights no rank has whole."""
    model = network()
    model[1].requires_grad_(False)
    with pytest.raises(UserError, match=r"SWA .* 1 is frozen"):
        averages_of(model, swa=1)
    assert averages_of(model, ema=0.9)
    with pytest.raises(UserError, match="EMA"):
        Averages(RunConfig(epochs=1, ema=0.9), SimpleNamespace(replicated=False), network())
