"""The whole step on a GPU, without one: what a GPU gets by default runs in each mode of torch, and lies there. In a
separate process. tests/fake_cuda.py lists what this shows and what it does not."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from bench.config.modes import MODES
from tests.runs import ROOT, TINY

COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available() or COMPILER is None,
    reason="it needs a torch with CUDA, a C compiler, and no GPU: tests/gpu has the real ones",
)

TWO, SMALL = {"num_devices": 2}, {"model": TINY["model"], "per_device_batch": 256}
ADAMW = {"mode": "fsdp", "optimizer": "adamw"} | TWO
GPT = {"model": "gpt", "per_device_batch": 4, "layers": 1}
LABELS_STAY = "labels stay on the CPU"  # a mistake, which tests/fake_cuda.py makes
WHOLE = {
    "single": {"mode": "single", "model": TINY["model"]},
    "single, adamw, 4 passes": {"mode": "single", "optimizer": "adamw", "accumulate": 4, "clip_norm": 1.0} | SMALL,
    "single, tf32, N C H W": {"mode": "single", "precision": "tf32", "channels_last": False} | SMALL,
    "local": {"mode": "local", "local_steps": 1} | TWO | SMALL,
    "independent": {"mode": "independent"} | TWO | SMALL,
    "fsdp, adamw, gpt": ADAMW | GPT,
    "fsdp, adamw, kept, prefetched, gathered in bf16, reduced in fp32":
        ADAMW | SMALL | {"reshard": False, "prefetch": 1, "param_dtype": "bf16", "reduce_dtype": "fp32"},
}  # fmt: skip
FORWARD = {mode: {"mode": mode} | TWO | SMALL for mode in ("ddp", "zero1")}


@pytest.fixture(scope="module")
def lies(tmp_path_factory):
    """Name -> where everything lies after its steps."""
    driver = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    build = [COMPILER, "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{driver.name}"]
    subprocess.run([*build, "-o", str(driver), "tests/stubs/cuda_stub.c"], cwd=ROOT, check=True, timeout=60)
    rows = WHOLE | {LABELS_STAY: {"mode": "single"} | SMALL} | FORWARD
    command, env = [sys.executable, "-m", "tests.fake_cuda", json.dumps(rows)], os.environ | {"LD_PRELOAD": str(driver)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", WHOLE)
def test_a_step_with_a_gpus_defaults_lies_on_it(lies, name):
    where = lies[name]
    assert "error" not in where, where["error"]
    assert where["parameters"].keys() == where["gradients"].keys() == {"cuda:0 float32"}
    assert sum(where["parameters"].values()) == sum(where["gradients"].values())
    assert where["optimizer"].keys() == where["loss"].keys() == {"cuda:0 float32"}
    assert all(place.startswith("cuda:0 ") for place in where["buffers"])


def test_the_defaults_are_those_of_a_recent_gpu(lies):
    assert lies["single"]["defaults"] == "precision=bf16 channels_last=1 cudnn_benchmark=1 fused=1 batch=64"


@pytest.mark.parametrize("name", FORWARD)
def test_a_forward_pass_under_ddp_lies_on_a_gpu(lies, name):
    where = lies[name]
    assert "error" not in where, where["error"]
    assert where["parameters"].keys() == where["loss"].keys() == {"cuda:0 float32"}


def test_every_mode_of_torch_is_tried():
    tried = {options["mode"] for table in (WHOLE, FORWARD) for options in table.values()}
    assert tried == set(MODES) - {"dp", "horovod"}  # several devices in one process; not torch's


def test_a_tensor_on_another_device_is_found(lies):
    assert "cuda:0" in lies[LABELS_STAY]["error"] and "cpu" in lies[LABELS_STAY]["error"]


def test_what_torch_runs_a_batch_norm_by(lies):
    """The fact on which the default of PRECISION rests (tutorials/manual/options.md)."""
    assert {name for name, kernel in lies["batch norm"].items() if kernel != "Cudnn"} == {
        "bf16 contiguous_format", "bf16 channels_last",
    }  # fmt: skip
