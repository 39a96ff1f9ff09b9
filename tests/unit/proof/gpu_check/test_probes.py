"""What `bench doctor gpu` tries in one process, on a CPU, where that can be: so it is not broken on its first day on a
GPU. ``nn.DataParallel`` and NVML cannot be tried here."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from bench.config.options import RunConfig
from bench.config.sections import CACHE
from bench.errors import RunFailed
from bench.measure import nccl
from bench.proof.gpu_check import a2_single, a3_training, answers, b1_shared, probes
from bench.proof.gpu_check import ground as ground_module
from bench.proof.gpu_check.ground import Ground
from tests.runs import ROOT, needs_horovod, refuses

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def test_the_compute_lane_of_a_known_sequence():
    """The pause is in neither figure. A busy CPU may stand still between two operators, and within one."""
    busy, known = probes.kernel_lane(CPU, size=512)
    assert known / 2 < busy < 1.05 * known


def test_batches_arrive_as_they_were_made():
    assert probes.batches(CPU, CACHE) == {"wrong batches": 0, "missing batches": 0}


def found_by(function: str) -> dict[str, float]:
    """By a separate process: torch keeps the group of a DDP model, with its threads, after the group's end."""
    code = "import functools, json, torch; from bench.proof.gpu_check import probes; from tests.runs import TINY; "
    code += "probes.plain = functools.partial(probes.plain, **TINY); "
    code += f"print(json.dumps(probes.{function}(torch.device('cpu'))))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_hooks_of_ddp_at_one_rank(copied_python):
    found = found_by("hooks")
    bounds = {name: bound for name, (_, bound) in probes.HOOKS.items()} | {"powersgd later": 10}
    assert answers.within(found, bounds).ok, found
    assert found["fp16"] > 0 and found["powersgd later"] > 1e-3  # they were there


@needs_horovod
def test_the_hooks_of_horovod_at_one_rank(copied_python):
    found = found_by("horovod_hooks")
    assert found["gradients"] < 1e-3 and found["not sent"] == 0


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this torch has no NCCL")
def test_the_nccl_that_is_loaded_and_torchs(copied_python):
    found = probes.nccl_versions()
    assert found["nccl of torch"] == ".".join(map(str, torch.cuda.nccl.version()[:3]))
    assert found["nccl"] == ".".join(map(str, nccl.version()))


OPTIONS = {"data": "synthetic", "per_device_batch": 2, "warmup_steps": 1, "timed_steps": 2}


def ground_in(folder) -> Ground:
    return Ground(RunConfig(out=str(folder), model="resnet18", image_size=32, threads=2), device="cpu")


def test_a_bare_loop_and_the_harness_run_in_turns_with_their_settings(tmp_path, monkeypatch, copied_python):
    """The lines that a GPU will run, in fp32, as a CPU has it; one that ends early gives no value."""
    ground = ground_in(tmp_path)
    config = dataclasses.replace(ground.config(**OPTIONS), channels_last=True, fused=True)
    blocks = a2_single.blocks_of(ground, config, pairs=1)
    assert {name: len(seconds) for name, seconds in blocks.items()} == {"harness_s": 1, "bare_s": 1}
    assert all(seconds > 0 for each in blocks.values() for seconds in each)
    monkeypatch.setattr(ground, "command", lambda words, limit_s, variables: (7, "a\nlast words\n"))
    with refuses("7", "last words", error=RunFailed):
        a2_single.blocks_of(ground, config, pairs=1)


def test_a_run_is_made_once(tmp_path, monkeypatch, copied_python):
    ground = ground_in(tmp_path)
    first = ground.run(**OPTIONS)
    assert answers.clocks(first).ok and answers.phases(first).ok
    monkeypatch.setattr(ground_module, "launch", lambda config: pytest.fail("another run"))
    again = Ground(ground.asked, runs=ground.runs, device="cpu")
    assert again.run(**OPTIONS).run_id == first.run_id
    with pytest.raises(pytest.fail.Exception, match="another run"):
        again.run(**OPTIONS, seed=1)


@pytest.mark.wide
def test_a_training_on_photographs_and_its_resume(tmp_path, monkeypatch, copied_python):
    monkeypatch.setattr(a3_training, "IMAGES", 40)
    monkeypatch.setattr(a3_training, "PHOTOGRAPHS", a3_training.PHOTOGRAPHS | {"image_size": 32, "workers": 1})
    answer = a3_training.photographs(ground_in(tmp_path))
    assert answer.ok, answer
    assert not list(tmp_path.rglob("*.pt")) and len(list(tmp_path.rglob("record.json"))) == 2


def test_a_rank_that_is_killed_is_named(tmp_path, monkeypatch, copied_python):
    monkeypatch.setattr(b1_shared, "SMALL", {"data": "digits", "image_size": 16, "per_device_batch": 2})
    (check,) = [check for check in b1_shared.PART.checks if check.name == "fault kill"]
    answer = check.run(ground_in(tmp_path))
    assert answer.ok, answer
    assert not list(tmp_path.iterdir())
