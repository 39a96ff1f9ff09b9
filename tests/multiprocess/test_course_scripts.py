"""tutorials/scripts: one script in four forms, started as a person does. They use nothing of this project."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from tests.runs import ENGINE_PREFIXES, PATIENT, ROOT, needs_horovod

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HOROVODRUN = ("-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2", "--disable-cache")
LAUNCHERS = {"single.py": (), "dp.py": (), "ddp.py": TORCHRUN, "hvd.py": (*HOROVODRUN, "python")}


def trained(folder, name: str) -> dict:
    """Run a script in a folder; the weights that it has saved. It said the accuracy of all validation images, once."""
    shutil.copy(ROOT / "tutorials" / "scripts" / name, folder)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ENGINE_PREFIXES)}
    words = [sys.executable, *(sys.executable if word == "python" else word for word in LAUNCHERS[name]), name]
    env = clean | PATIENT | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"epoch (\d): top-1 (0\.\d+) of (\d+) images", done.stdout)
    assert [(epoch, images) for epoch, _, images in said] == [(str(number), "261") for number in (1, 2, 3)]
    assert float(said[-1][1]) > 0.8
    return torch.load(folder / "model.pt")


@pytest.mark.parametrize(("one", "other"), [("single.py", "dp.py"),
                                            pytest.param("ddp.py", "hvd.py", marks=needs_horovod)])  # fmt: skip
def test_two_forms_end_with_the_same_weights_but_for_rounding(one, other, tmp_path, copied_python):
    first, second = trained(tmp_path, one), trained(tmp_path, other)
    assert list(first) == list(second) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert all(torch.allclose(first[key], second[key], atol=1e-4) for key in first)
