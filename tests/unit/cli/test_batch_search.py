"""BATCH=max: which batches are tried and taken. Real tries, also too large ones: tests/multiprocess/test_memory.py."""

import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from bench.cli.actions import batch_search
from bench.config.options import RunConfig
from bench.errors import RunFailed
from bench.studies.base import Flags
from bench.studies.compare.study import COMPARE
from bench.training import build
from tests import records
from tests.runs import TINY

QUIET = Console(quiet=True)
SMALL = {"image_size": 8, "device": "cpu", "num_devices": 2, "memory_gib": 0.1} | TINY


@pytest.mark.parametrize("fitting", [1, 3, 40, 97, 300, 718])
@pytest.mark.parametrize("start", [0, 1, 90, 718])
def test_the_batch_taken_fits_and_a_twentieth_more_does_not(start, fitting):
    tried = []
    found = batch_search.bisect(lambda batch: tried.append(batch) or batch <= fitting, start, 718)
    assert found in tried and 0.95 * fitting <= found <= fitting
    assert len(tried) == len(set(tried)) <= 16


def programs(asked: RunConfig) -> dict[str, RunConfig]:
    plans = COMPARE.plans(QUIET, asked, Flags(modes="single,dp,ddp,fsdp"))
    return {name: config for plan in plans for name, config in plan.programs.items()}


def test_a_comparison_takes_the_batch_that_fits_in_all_its_modes(tmp_path, monkeypatch):
    """single, which can take its step in passes, is not tried."""
    most, tried = {"dp": 90, "ddp": 120, "fsdp": 60}, []

    def try_run(config, folder):
        tried.append(config)
        return (0.5, "") if config.per_device_batch <= most[config.mode] else (None, "too large")

    monkeypatch.setattr(batch_search, "try_run", try_run)
    monkeypatch.setattr(batch_search, "predicted", lambda config: (most[config.mode] + 10, 718))
    found = batch_search.with_largest_batch(QUIET, RunConfig(**SMALL, out=str(tmp_path)), programs)
    tries = json.loads(found.label.batch_search)
    assert 57 <= found.per_device_batch <= 60 and [each["program"] for each in tries] == [c.mode for c in tried]
    last = {each["program"]: each for each in tries if each["fitted"]}
    assert all(each["batch"] >= found.per_device_batch for each in last.values()) and len(last) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_try_that_fails_for_another_reason_ends_the_search(tmp_path, monkeypatch):
    """Whatever its message says: only the failure's mark counts."""
    error = RunFailed("rank 1 raised RuntimeError: can't allocate memory")
    error.failure = {"kind": "raised", "message": str(error), "rank": 1}
    monkeypatch.setattr(batch_search, "launch", lambda config: (_ for _ in ()).throw(error))
    monkeypatch.setattr(batch_search, "predicted", lambda config: (1, 718))
    with pytest.raises(RunFailed, match="rank 1 raised"):
        batch_search.with_largest_batch(QUIET, RunConfig(**SMALL, out=str(tmp_path)), programs)


def test_the_limits_of_a_gpu(monkeypatch):
    """torch's allocator gets MEMORY_GIB without the memory of the context; the peak is that of the fullest GPU."""
    record = records.record("ddp", 100.0, 2, "cuda", 8)
    used = [next(d[name] for name in ("nvml_process", "torch_reserved") if d.get(name)) for d in record.peak_memory]
    assert batch_search.peak_of(record) == max(used) > 0
    shares = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 2**30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    for gib in (16.0, 90.0, 0.1):
        build.limit_cuda_memory(torch.device("cuda", 1), gib)
    assert shares == [15.5 / 80, 1.0, 0.0]
