"""bench/modes/ddp.py: what its hooks ask of the backend. The backend is made up, for NCCL needs GPUs."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.measure import nccl
from bench.modes import base, collectives, ddp


@pytest.mark.parametrize(("backend", "device", "waits"), [("gloo", "cpu", 1), ("gloo", "cuda", 1), ("nccl", "cuda", 0)])
def test_powersgd_ends_a_bucket_before_the_next_over_gloo(monkeypatch, backend, device, waits):
    """Its three collectives run in threads of their own there, whatever the gradients lie on (SHARE_GPU=1)."""
    waited = []
    future = SimpleNamespace(wait=lambda: waited.append(1))
    monkeypatch.setattr(powerSGD_hook, "powerSGD_hook", lambda state, bucket: future)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    gradients = SimpleNamespace(device=torch.device(device))
    assert ddp.power_sgd(None, SimpleNamespace(buffer=lambda: gradients)) is future
    assert len(waited) == waits


@pytest.mark.parametrize(
    ("device", "shared", "told", "minor", "backend", "label"),
    [
        ("cpu", False, "", 30, "gloo", ""),
        ("cuda", False, "", 30, "nccl", ""),
        ("cuda", True, "1", 30, "nccl", "all ranks share one GPU, over NCCL"),
        ("cuda", True, "1", 28, "gloo", "all ranks share one GPU, over Gloo"),  # by the user, of an NCCL that cannot
        ("cuda", True, "0", 30, "gloo", "all ranks share one GPU, over Gloo"),
        ("cuda", True, "", 30, "gloo", "all ranks share one GPU, over Gloo"),
    ],
)
def test_ranks_on_one_gpu_talk_nccl_where_they_are_told_so(monkeypatch, device, shared, told, minor, backend, label):
    """And the record's label says which it was. A GPU is made up: nothing is joined."""
    joined = {}
    monkeypatch.setattr(dist, "init_process_group", lambda name, **options: joined.update(options, backend=name))
    monkeypatch.setattr(collectives, "device_of", lambda config, local_rank: torch.device(device, 0))
    monkeypatch.setattr(nccl, "loaded_version", lambda: (2, minor, 7))
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", nccl.SHARING: told}.items():
        monkeypatch.setenv(name, value)
    config = resolve(RunConfig(mode="ddp", num_devices=2, share_gpu=shared), device, 4)
    collectives.join(config)
    assert joined["backend"] == backend and (joined["device_id"] is not None) == (backend == "nccl")
    assert base.shared_label(config, backend).startswith(label) and bool(base.shared_label(config, backend)) == shared
