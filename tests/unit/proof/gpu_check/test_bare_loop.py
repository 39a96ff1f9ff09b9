"""The loop of the harness beside a bare one, as `bench doctor gpu` compares them on a GPU; here on a CPU: no figure."""

import dataclasses

import pytest

from bench.config.options import RunConfig
from bench.errors import RunFailed
from bench.proof.gpu_check import a2_single
from bench.proof.gpu_check.ground import Ground

SMALL = {"data": "synthetic", "image_size": 32, "per_device_batch": 2, "threads": 1, "warmup_steps": 1,
         "timed_steps": 2}  # fmt: skip


@pytest.mark.slow
def test_both_run_in_turns_with_the_settings_that_they_read(tmp_path):
    """The lines that a GPU will run: in fp32, as a CPU has it."""
    ground = Ground(RunConfig(out=str(tmp_path)), device="cpu")
    config = dataclasses.replace(ground.config(**SMALL), channels_last=True, fused=True)
    blocks = a2_single.blocks_of(ground, config, pairs=2)
    assert {name: len(seconds) for name, seconds in blocks.items()} == {"harness_s": 2, "bare_s": 2}
    assert all(seconds > 0 for each in blocks.values() for seconds in each)


def test_one_that_ends_early_is_no_figure(tmp_path, monkeypatch):
    ground = Ground(RunConfig(out=str(tmp_path)), device="cpu")
    monkeypatch.setattr(ground, "command", lambda words, limit_s, variables: (7, "a\nlast words\n"))
    with pytest.raises(RunFailed, match="exit code 7: last words"):
        a2_single.blocks_of(ground, ground.config(**SMALL), pairs=2)
