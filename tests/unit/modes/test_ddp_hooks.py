"""bench/modes/ddp.py: what its hooks ask of the backend. The backend is made up, for NCCL needs GPUs."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from bench.modes import ddp


@pytest.mark.parametrize(("backend", "device", "waits"), [("gloo", "cpu", 1), ("gloo", "cuda", 1), ("nccl", "cuda", 0)])
def test_powersgd_ends_a_bucket_before_the_next_over_gloo(monkeypatch, backend, device, waits):
    """Its three collectives run in threads of their own there, whatever the gradients lie on: SHARE_GPU=1 is Gloo."""
    waited = []
    future = SimpleNamespace(wait=lambda: waited.append(1))
    monkeypatch.setattr(powerSGD_hook, "powerSGD_hook", lambda state, bucket: future)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    gradients = SimpleNamespace(device=torch.device(device))
    assert ddp.power_sgd(None, SimpleNamespace(buffer=lambda: gradients)) is future
    assert len(waited) == waits
