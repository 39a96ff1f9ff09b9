"""Horovod with NCCL, built where no GPU is, by NVIDIA's compiler from pip's wheels, and carried as a wheel. It
downloads 200 MB and compiles for minutes, so it runs only with -m weekly."""

import os
import shutil
import subprocess
import sys

import pytest

from bench.install import horovod_status
from tests.runs import ROOT

TORCH_CUDA = (horovod_status.torch_version() or (None, None))[1]
pytestmark = [
    pytest.mark.weekly,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not TORCH_CUDA, reason="the installed torch was built without CUDA"),
]

BUILD = """
import sys
from pathlib import Path
from bench.install import horovod_install
horovod_install.INSTALLED = Path("/nowhere")  # an installed toolkit is for another test
horovod_install.install("nccl", wheel_dir=sys.argv[1], timeout=3000)
"""
SAYS = "import horovod.torch as hvd; print(hvd.nccl_built(), hvd.gloo_built(), hvd.cuda_built(), hvd.__file__)"


def python(*words: str, **variables: str) -> str:
    hidden = [folder for folder in os.environ["PATH"].split(os.pathsep) if not shutil.which("nvcc", path=folder)]
    env = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    env |= {"PATH": os.pathsep.join(hidden)} | variables
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_a_wheel_with_nccl_is_built_without_a_gpu_and_can_be_carried(tmp_path):
    wheels, there = tmp_path / "wheels", tmp_path / "there"
    said = python("-c", BUILD, str(wheels), XDG_CACHE_HOME=str(tmp_path / "cache"))
    (wheel,) = wheels.iterdir()
    assert f"wheel: {wheel}" in said and ".nccl" in wheel.name and f"-cp{sys.version_info.major}" in wheel.name
    python("-m", "pip", "install", "--no-index", "--no-deps", "--target", str(there), str(wheel))
    (library,) = there.rglob("mpi_lib_v2*.so")
    assert b"libnccl.so.2" in library.read_bytes()  # linked, and looked for where torch has loaded it
    nccl, gloo, with_cuda, place = python("-c", SAYS, PYTHONPATH=str(there)).split()
    assert int(nccl) >= 20000 and gloo == with_cuda == "True" and place.startswith(str(there))
