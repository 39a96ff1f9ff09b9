"""tutorials/scripts: one script in four forms, started as a person does. They use nothing of this project."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from tests.runs import ENGINE_PREFIXES, PATIENT, ROOT, needs_horovod

SCRIPTS = ROOT / "tutorials" / "scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HOROVODRUN = ("-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2", "--disable-cache")
HOROVODRUN += (sys.executable,)


def trained(folder, name: str, *launcher) -> dict:
    """Run a script in a folder; the weights that it has saved. It said the accuracy of all validation images, once."""
    folder.mkdir()
    shutil.copy(SCRIPTS / name, folder)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ENGINE_PREFIXES)}
    words = [sys.executable, *launcher, name]
    env = clean | PATIENT | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"epoch (\d): top-1 (0\.\d+) of (\d+) images", done.stdout)
    assert [(epoch, images) for epoch, _, images in said] == [(str(number), "261") for number in (1, 2, 3)]
    assert float(said[-1][1]) > 0.8
    return torch.load(folder / "model.pt")


@pytest.fixture(scope="module")
def ddp(tmp_path_factory) -> dict:
    """The weights of two processes under DDP."""
    return trained(tmp_path_factory.mktemp("scripts") / "ddp", "ddp.py", *TORCHRUN)


def same(one: dict, other: dict) -> bool:
    """Whether two trainings ended with the same weights, but for rounding."""
    return list(one) == list(other) and all(torch.allclose(one[key], other[key], atol=1e-4) for key in one)


def test_data_parallel_trains_as_one_device_does(tmp_path):
    assert same(trained(tmp_path / "single", "single.py"), trained(tmp_path / "dp", "dp.py"))


@pytest.mark.parametrize("other", [None, pytest.param("hvd.py", marks=needs_horovod)])
def test_ddp_trains_and_horovod_does_so_too(other, tmp_path, ddp):
    assert list(ddp) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert other is None or same(ddp, trained(tmp_path / "hvd", other, *HOROVODRUN))
