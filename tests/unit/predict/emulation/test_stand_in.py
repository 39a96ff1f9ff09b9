"""The chain that stands in for a model: its order, the lengths of its waits, and gradients of the real sizes."""

import pytest
import torch

from bench.predict.emulation import stand_in
from bench.predict.emulation.stand_in import PACE, StandIn
from bench.predict.step.profile import Profile, Tensor
from bench.structure import blocks_of

# As torchvision's ResNets have them: a layer in no block at either end, and a block whose weights are ready crosswise.
TENSORS = (
    Tensor("conv", (2, 3), "", 0.1, 1.9),
    Tensor("one.weight", (4,), "one", 0.2, 1.5),
    Tensor("one.shortcut", (5,), "one", 0.4, 1.2),
    Tensor("one.bias", (6,), "one", 0.3, 1.4),
    Tensor("fc", (7,), "", 0.8, 0.3),
)
PROFILE = Profile("", "", "", "cpu", "images", 1, 1.0, 2.0, 0.5, 0.5, (1.0,), TENSORS, (("float32", 80), ("int64", 8)))


@pytest.fixture
def waited(monkeypatch):
    """Every wait that is asked for, in seconds, and none of it waited."""
    asked = []
    monkeypatch.setattr(PACE, "wait", lambda began, seconds: asked.append(round(seconds, 9)))
    return asked


def test_forward_and_backward_wait_as_long_as_the_profile_and_each_gradient_until_it_was_ready(waited):
    model = StandIn(PROFILE)
    ready = {}

    def note(parameter: torch.Tensor) -> None:
        ready[tuple(parameter.shape)] = sum(waited[forward:])

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    loss = model(torch.ones(1, requires_grad=True)).sum()
    assert sum(waited) == pytest.approx(PROFILE.forward_s)
    forward = len(waited)
    loss.backward()
    assert sum(waited[forward:]) == pytest.approx(PROFILE.backward_s)
    assert ready == pytest.approx({tensor.shape: tensor.ready_s for tensor in TENSORS})


def test_gradients_are_of_the_parameters_sizes_and_blocks_are_what_fsdp_shards(waited):
    model = StandIn(PROFILE)
    model(torch.ones(1, requires_grad=True)).sum().backward()
    sizes = sorted(tuple(p.grad.shape) for p in model.parameters())
    assert sizes == sorted(tensor.shape for tensor in TENSORS)
    assert [sum(p.numel() for p in block.parameters()) for _, block in blocks_of(model)] == [15]
    assert sorted((str(b.dtype), b.nbytes) for b in model.buffers()) == [("torch.float32", 80), ("torch.int64", 8)]


def test_a_wait_that_was_too_long_is_taken_off_the_next(monkeypatch):
    """A clock that is ours: each sleep takes 3 s more than it should, and the work before one wait 10 s."""
    now = [0.0]
    monkeypatch.setattr(stand_in.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(stand_in.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds + 3.0))
    pace = stand_in.Pace()
    pace.step(scale=2.0)
    pace.wait(0.0, 5.0)
    assert now == [13.0]
    pace.wait(13.0, 5.0)  # until 20 + 3
    assert now == [23.0] and pace.waited == [(0.0, 13.0), (13.0, 23.0)]
    pace.step(scale=1.0)
    began, now[0] = now[0], now[0] + 10.0
    pace.wait(began, 4.0)  # it is over already, by 6
    assert now == [33.0]
    pace.wait(33.0, 8.0)  # 2 are left, and 3 too many
    assert now == [38.0]
