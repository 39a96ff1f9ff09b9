"""One step of every mode with the oldest torch that pyproject.toml allows, in an environment made for it.

Only with ``-m weekly``: pip downloads some gigabytes, and Horovod is compiled for that torch.
"""

import os
import re
import subprocess
import sys
from unittest import mock

import pytest

from bench.config.modes import MODES
from bench.install import packages
from tests.runs import run

pytestmark = [pytest.mark.weekly, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with the oldest torch and torchvision, and the newest of everything else."""
    with mock.patch.object(packages, "_version", lambda name: ""):
        wanted = packages.missing_requirements([])
    wanted = [re.sub(r"^(torch\w*)>=(.*)", r"\1==\2.*", line) for line in wanted]
    folder = tmp_path_factory.mktemp("oldest") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", *wanted], check=True, timeout=3000)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def horovod(python, tmp_path_factory):
    """Horovod in it, compiled for CPUs."""
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    command = [python, "-m", "bench", "install", "horovod", "--gpu", "none"]
    subprocess.run(command, cwd=packages.ROOT, env=env, check=True, timeout=1800)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_with_the_oldest_torch(python, request, tmp_path, monkeypatch, mode):
    if MODES[mode].needs:
        request.getfixturevalue("horovod")
    monkeypatch.setattr(sys, "executable", str(python))
    result = run(tmp_path, mode=mode, gpus=MODES[mode].max_devices or 2, warmup=0, steps=1).ok()
    (minimum,) = re.findall(r'"torch>=([\d.]+)"', (packages.ROOT / "pyproject.toml").read_text())
    assert result.record["environment"]["versions"]["torch"].startswith(f"{minimum}.")
