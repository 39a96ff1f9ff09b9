"""bench/modes/sync_batch_norm.py in one process; tests/multiprocess/test_training_modes.py has it between several."""

import copy
import inspect
from types import SimpleNamespace

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


def alone(value):
    """The sum over one rank."""
    return value.clone()


def norms(**options):
    """A batch norm with weights of its own, and a ReducedBatchNorm2d equal to it, for one rank."""
    own, reduced = nn.BatchNorm2d(4, **options), ReducedBatchNorm2d(alone, 4, **options)
    for parameter in own.parameters():
        nn.init.normal_(parameter)
    reduced.load_state_dict(own.state_dict())
    return own, reduced


def images(mean: float = 3.0) -> torch.Tensor:
    """[5, 4, 3, 3], the same each time."""
    return torch.randn(5, 4, 3, 3, generator=torch.Generator().manual_seed(0)) * 2 + mean


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.3, "eps": 0.1}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}],
)
def test_on_one_rank_it_is_batch_norm(options):
    own, reduced = norms(**options)
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


def test_the_running_variance_is_unbiased_for_the_images_of_all_ranks():
    """Two ranks with the same images: the mean and the variance of one, over twice as many values."""
    both = ReducedBatchNorm2d(lambda value: 2 * value, 4, momentum=1.0)
    x = images()
    both(x)
    joined = torch.cat([x, x])
    torch.testing.assert_close(both.running_mean, joined.mean((0, 2, 3)))
    torch.testing.assert_close(both.running_var, joined.var((0, 2, 3), unbiased=True))


def test_a_mean_far_above_the_deviation_costs_no_digits():
    """In one pass, as E[x²] - mean², float32 would lose the variance altogether."""
    reduced = norms(affine=False)[1]
    x = images(mean=10_000)
    exact = x.double()
    exact = (exact - exact.mean((0, 2, 3), keepdim=True)) / exact.std((0, 2, 3), keepdim=True, unbiased=False)
    assert float((reduced(x) - exact).detach().abs().max()) < 5e-3


def test_evaluation_asks_nobody():
    def nobody(value):
        raise AssertionError("a sum over ranks in evaluation")

    own, reduced = norms()
    own(images())
    reduced.load_state_dict(own.state_dict())
    reduced.sum_over_ranks = nobody
    assert torch.equal(own.eval()(images()), reduced.eval()(images()))
    with pytest.raises(AssertionError, match="a sum over ranks"):
        reduced.train()(images())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_type_of_the_images_is_kept_and_sums_are_exact(dtype):
    seen = []

    def note(value):
        seen.append(value.dtype)
        return value.clone()

    reduced = ReducedBatchNorm2d(note, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = reduced(images().to(dtype))
    assert output.dtype == dtype
    assert seen == [torch.float64 if dtype == torch.float64 else torch.float32] * 2


# --- replace_norms --------------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    """Batch norms at two depths."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)))


def reduced_norm(*options):
    return ReducedBatchNorm2d(alone, *options)


def test_every_batch_norm_is_replaced_and_every_tensor_kept():
    model = network()
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    assert replace_norms(model, reduced_norm) is model
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)
    assert [type(model[1]), type(model[2][1])] == [ReducedBatchNorm2d] * 2
    assert list(model.state_dict()) == list(network().state_dict())


def test_a_layers_options_and_its_state_go_over():
    model = nn.Sequential(nn.BatchNorm2d(4, eps=0.1, momentum=0.2), nn.BatchNorm2d(4).eval())
    model[0].weight.requires_grad_(False)
    replace_norms(model, reduced_norm)
    assert (model[0].eps, model[0].momentum) == (0.1, 0.2)
    assert model[0].training and not model[1].training
    assert not model[0].weight.requires_grad and model[1].weight.requires_grad


def test_it_takes_the_libraries_layers():
    model = replace_norms(network(), nn.SyncBatchNorm)
    assert type(model[2][1]) is nn.SyncBatchNorm
    assert list(model.state_dict()) == list(network().state_dict())


def test_a_copy_of_a_model_with_synced_norms_is_one_as_well():
    model = replace_norms(network(), reduced_norm)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(twin(x), model(x)) and twin[1].weight is not model[1].weight


class NormAndMore(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: it does more than normalise."""


@pytest.mark.parametrize("norm", [NormAndMore(4), nn.BatchNorm1d(4)])
def test_a_batch_norm_of_another_class_is_refused_in_one_line(norm):
    with pytest.raises(UserError) as refused:
        replace_norms(nn.Sequential(nn.ReLU(), nn.Sequential(norm)), reduced_norm)
    assert str(refused.value) == (
        f"NORM=sync knows nn.BatchNorm2d, and 1.0 of this model is a {type(norm).__name__}: "
        "use NORM=batch or another MODEL"
    )


# --- In a mode ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ddp(monkeypatch, tmp_path):
    """MODE=ddp with one rank, which is this process."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BENCH_INIT_METHOD", f"file://{tmp_path}/meet")
    mode = load_mode("ddp")(RunConfig(mode="ddp", device="cpu", norm="sync", timeout=30))
    yield mode
    mode.close()


def test_a_timeline_shows_the_sums_of_a_step(ddp):
    """Two in forward and two in backward, for each of two layers: a wait for other ranks is no computation."""
    ddp.timeline = StepTimeline(ddp.topology.device)
    model = ddp.sync_norms(network())
    ddp.timeline.on = True
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert [span[:2] for span in ddp.timeline.spans] == [("communication", "norm statistics")] * 8
    assert len(ddp.timeline.waits) == 8


def test_a_mode_of_one_device_leaves_the_model_alone():
    model = network()
    mode = load_mode("single")(RunConfig(mode="single", device="cpu", norm="sync"))
    assert mode.sync_norms(model) is model and type(model[1]) is nn.BatchNorm2d and mode.label == ""


@needs_horovod
@pytest.mark.parametrize(
    ("device", "last", "said"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_horovods_own_layer_is_said_to_copy_its_images(device, last, said):
    """Its forward pass calls `contiguous`, so N H W C is undone in every layer."""
    from bench.modes import horovod

    mode = object.__new__(horovod.Mode)
    mode.config = SimpleNamespace(channels_last=last)
    mode.topology = Topology(0, 0, 1, 1, torch.device(device))
    mode.sync_norms(nn.Sequential(nn.BatchNorm2d(2)))
    assert ("hvd.SyncBatchNorm copies its images" in mode.label) == said
    assert ".contiguous()" in inspect.getsource(inspect.getmodule(horovod.hvd.SyncBatchNorm))
