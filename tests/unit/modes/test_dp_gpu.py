"""bench/modes/dp.py on GPUs, as far as that can be tested without one."""

import pytest
import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.measure.facts import memory_format
from bench.modes import base, dp


def mode_on(device: str, num_devices: int, monkeypatch) -> dp.Mode:
    """MODE=dp with CHANNELS_LAST=1, on devices that need not be there."""
    monkeypatch.setattr(base, "device_of", lambda config, rank: torch.device(device, 0))
    return dp.Mode(resolve(RunConfig(mode="dp", num_devices=num_devices, channels_last=True), device, 4))


def test_a_copied_weight_is_contiguous_whatever_it_was():
    """What broadcast_coalesced, by which DataParallel copies the weights, does with them between two GPUs."""
    weight = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)
    (copied,) = _unflatten_dense_tensors(_flatten_dense_tensors([weight]), [weight])
    assert copied.is_contiguous() and not copied.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("device", "num_devices", "last"), [("cuda", 2, False), ("cuda", 1, True), ("cpu", 2, True)])
def test_weights_lie_on_all_devices_as_the_record_says(device, num_devices, last, monkeypatch):
    """Several GPUs have contiguous weights on each; one calls the module itself, and CPU replicas keep the order."""
    assert (not mode_on(device, num_devices, monkeypatch).contiguous_weights) is last
    layout = torch.channels_last if last else torch.contiguous_format
    model = torch.nn.Conv2d(4, 8, 3).to(memory_format=layout)  # as the worker makes it
    said = "channels_last" if last else "channels_last images, contiguous weights"
    assert memory_format(model, images_last=True) == said
