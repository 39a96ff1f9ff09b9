"""bench/modes/sync_batch_norm.py in one process; tests/multiprocess/test_modes.py has it between several."""

import copy
import functools
import inspect
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.modes import load_mode
from bench.modes.base import Topology
from bench.modes.sync_batch_norm import ReducedBatchNorm2d, replace_norms
from bench.profile.timeline import StepTimeline
from tests.runs import needs_horovod

reduced_norm = functools.partial(ReducedBatchNorm2d, torch.clone)  # the sum over one rank


def images(mean: float = 3.0) -> torch.Tensor:
    """[5, 4, 3, 3], the same each time."""
    return torch.randn(5, 4, 3, 3, generator=torch.Generator().manual_seed(0)) * 2 + mean


def network() -> nn.Sequential:
    """Batch norms at two depths."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)))


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.3, "eps": 0.1}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}],
)
def test_on_one_rank_it_is_batch_norm(options):
    """And in evaluation, where nobody is asked."""
    own, reduced = nn.BatchNorm2d(4, **options), reduced_norm(4, **options)
    for parameter in own.parameters():
        nn.init.normal_(parameter)
    reduced.load_state_dict(own.state_dict())
    for step in range(3):
        inputs = [images(mean=step).requires_grad_() for _ in range(2)]
        outputs = [norm(x) for norm, x in zip((own, reduced), inputs, strict=True)]
        for output in outputs:
            (output**3).sum().backward()
        torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(dict(own.state_dict()), dict(reduced.state_dict()))
    for a, b in zip(own.parameters(), reduced.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=1e-4)
    reduced.sum_over_ranks = mock.Mock(side_effect=AssertionError)
    with pytest.raises(AssertionError):
        reduced(images())
    if options.get("track_running_stats", True):
        torch.testing.assert_close(own.eval()(images()), reduced.eval()(images()))


def test_the_running_variance_is_unbiased_for_the_images_of_all_ranks():
    """Two ranks with the same images: the mean and the variance of one, over twice as many values."""
    both, joined = ReducedBatchNorm2d(lambda value: 2 * value, 4, momentum=1.0), torch.cat([images()] * 2)
    both(images())
    torch.testing.assert_close(both.running_mean, joined.mean((0, 2, 3)))
    torch.testing.assert_close(both.running_var, joined.var((0, 2, 3), unbiased=True))


def test_a_mean_far_above_the_deviation_costs_no_digits():
    """In one pass, as E[x²] - mean², float32 would lose the variance altogether."""
    x = images(mean=10_000)
    exact = x.double()
    exact = (exact - exact.mean((0, 2, 3), keepdim=True)) / exact.std((0, 2, 3), keepdim=True, unbiased=False)
    assert float((reduced_norm(4, affine=False)(x) - exact).detach().abs().max()) < 5e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_type_of_the_images_is_kept_and_sums_are_exact(dtype):
    seen = []

    def note(value):
        seen.append(value.dtype)
        return value.clone()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ReducedBatchNorm2d(note, 4)(images().to(dtype))
    assert output.dtype == dtype
    assert seen == [torch.float64 if dtype == torch.float64 else torch.float32] * 2


@pytest.mark.parametrize("layer", [reduced_norm, nn.SyncBatchNorm])
def test_every_batch_norm_is_replaced_and_every_tensor_kept(layer):
    """With its options and its state; a copy of the model is one as well."""
    model = network()
    model[2][1] = nn.BatchNorm2d(4, eps=0.1, momentum=0.2).eval()
    model[1].weight.requires_grad_(False)
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    assert replace_norms(model, layer) is model
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)
    assert {type(model[1]), type(model[2][1])} == {ReducedBatchNorm2d if layer is reduced_norm else nn.SyncBatchNorm}
    assert list(model.state_dict()) == list(network().state_dict())
    assert (model[2][1].eps, model[2][1].momentum) == (0.1, 0.2)
    assert model[1].training and not model[2][1].training
    assert not model[1].weight.requires_grad and model[2][1].weight.requires_grad
    twin, x = copy.deepcopy(model.eval()), torch.randn(2, 3, 8, 8)
    assert torch.equal(twin(x), model(x)) and twin[1].weight is not model[1].weight


class NormAndMore(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: it does more than normalise."""


@pytest.mark.parametrize("norm", [NormAndMore(4), nn.BatchNorm1d(4)])
def test_a_batch_norm_of_another_class_is_refused(norm):
    with pytest.raises(UserError, match=rf"NORM=sync .* 1\.0 .* {type(norm).__name__}"):
        replace_norms(nn.Sequential(nn.ReLU(), nn.Sequential(norm)), reduced_norm)


def test_a_timeline_shows_the_sums_of_a_step(monkeypatch, tmp_path):
    """Two in forward and two in backward, for each of two layers: a wait for other ranks is not computation."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BENCH_INIT_METHOD", f"file://{tmp_path}/meet")
    mode = load_mode("ddp")(RunConfig(mode="ddp", device="cpu", norm="sync", timeout=30))
    mode.timeline = StepTimeline(mode.topology.device)
    model = mode.sync_norms(network())
    mode.timeline.on = True
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    mode.close()
    assert [span[:2] for span in mode.timeline.spans] == [("communication", "norm statistics")] * 8
    assert len(mode.timeline.waits) == 8


def test_a_mode_of_one_device_leaves_the_model_alone():
    model = network()
    mode = load_mode("single")(RunConfig(mode="single", device="cpu", norm="sync"))
    assert mode.sync_norms(model) is model and type(model[1]) is nn.BatchNorm2d and mode.label == ""


@needs_horovod
@pytest.mark.parametrize(("device", "last"), [("cuda", True), ("cuda", False), ("cpu", True)])
def test_horovods_own_layer_is_said_to_copy_its_images(device, last):
    """Its forward pass calls `contiguous`, so N H W C is undone in every layer."""
    from bench.modes import horovod

    mode = object.__new__(horovod.Mode)
    mode.config = SimpleNamespace(channels_last=last)
    mode.topology = Topology(0, 0, 1, 1, torch.device(device))
    mode.sync_norms(nn.Sequential(nn.BatchNorm2d(2)))
    assert ("hvd.SyncBatchNorm" in mode.label and "copies" in mode.label) == (device == "cuda" and last)
    assert ".contiguous()" in inspect.getsource(inspect.getmodule(horovod.hvd.SyncBatchNorm))
