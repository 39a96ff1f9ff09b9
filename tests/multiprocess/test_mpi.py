"""Horovod over MPI: Adasum against its formula, a training with it, and `bench run` inside of mpirun.

They run where Horovod has MPI. What LAUNCHER=mpirun does with ranks that raise, die, hang or are interrupted is with
the other engines, and that it computes the same update, too: broken.py, test_modes.py.
"""

import re
import signal
import subprocess
import sys

import pytest

from tests import runs
from tests.multiprocess import adasum_step
from tests.multiprocess.broken import ENDLESS
from tests.multiprocess.test_joined import LOGS, WITHIN, ended_by, files, words
from tests.runs import finish, left_behind, needs_mpi, run

pytestmark = needs_mpi
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
MPIRUN += ["--mca", "odls_base_sigkill_timeout", "5"]  # a busy machine needs more than its second to end


def start(ranks: int, *program: str) -> subprocess.Popen:
    """Start ``python *program`` on ranks of mpirun."""
    return subprocess.Popen(
        [*MPIRUN, "-np", str(ranks), sys.executable, *map(str, program)], cwd=runs.ROOT, env=runs.environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_step_of_horovods_adasum_is_the_formulas(ranks):
    result = finish(start(ranks, "-m", adasum_step.__name__, ranks), timeout=WITHIN)
    found = re.search(r"largest difference (\S+)", result.stdout)
    assert found and result.code == 0, result.stdout + result.stderr
    assert float(found[1]) < 1e-4, result.stdout  # of float32; a mean would be off by a half


def test_a_training_with_adasum(tmp_path):
    """Replicas stay equal, and the record shows what was done. Watched: it is not a mean, and nothing is wrong."""
    result = run(tmp_path, mode="horovod", gpus=2, adasum=1, watch=1, momentum=0.9, accumulate=2).ok()
    record = result.loaded
    assert record.config.launcher == "mpirun" and record.config.adasum
    assert {part.facts["gradient"] for part in record.samples} == {"Adasum"}
    assert len({part.final_weights_sha256 for part in record.samples}) == 1
    assert record.data["observed"]["gradient"]["kind"] == "Adasum"
    assert record.environment["variables"]["OMPI_MCA_btl"] == "^openib"
    runs.bench("mistake", "check", tmp_path).ok()


def test_verify_shows_adasum_and_does_not_judge_it():
    result = runs.bench("verify", "--gpus=2", "--model=resnet18", "--image-size=8", timeout=400).ok()
    (row,) = (line for line in result.stdout.splitlines() if line.strip().startswith("single – horovod, Adasum"))
    assert float(row.split()[4]) > 1e-5 and row.split()[-3:] == ["yes"] * 3, row


def joined(out, **options) -> list[str]:
    return words(out, mode="horovod", **options)[1:]


def test_joined(tmp_path):
    result = finish(start(2, "-m", *joined(tmp_path, adasum=1, cycle_time_ms=5)), tmp_path).ok()
    record = result.loaded
    assert (record.config.mode, record.world_size, record.num_devices) == ("horovod", 2, 2)
    assert not record.several_machines and record.environment["variables"]["HOROVOD_CYCLE_TIME"] == "5.0"
    assert result.stdout.splitlines()[-1] == f"record: {result.run_dir / 'record.json'}"  # mpirun gives a terminal
    assert {part.facts["gradient"] for part in record.samples} == {"Adasum"}
    assert files(result.run_dir) == LOGS | {"record.json"}


@pytest.mark.parametrize(("fault", "kind"), [("raise:1:2", "raised"), ("kill:1:2", "killed")])
def test_joined_ranks_that_break(tmp_path, fault, kind):
    """mpirun ends the others at once, and prints its own message; rank 0 leaves a record all the same."""
    result = finish(start(2, "-m", *joined(tmp_path, fault=fault)), tmp_path, timeout=WITHIN)
    assert result.code and left_behind(result.pid) == []
    failed = result.loaded
    assert (failed.status, failed.failure["rank"], failed.failure["kind"]) == ("failed", 1, kind), result.stderr
    assert files(result.run_dir) == LOGS | {"record.json"}


def test_mpirun_is_interrupted(tmp_path):
    result = ended_by(start(2, "-m", *joined(tmp_path, **ENDLESS)), signal.SIGINT, tmp_path)
    assert result.loaded.failure["kind"] == "interrupted", result.stderr
