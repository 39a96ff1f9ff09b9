"""Clumsy surroundings of a run: variables left over, somebody else's launcher, signals to the wrong process."""

import os
import shutil
import subprocess
import sys

import psutil
import pytest

from bench.cli.actions import doctor
from bench.launch import supervise
from bench.process.heartbeat import read_status
from tests import runs
from tests.multiprocess.broken import ENDLESS, ENGINES, GONE_WITHIN, failure_of
from tests.multiprocess.test_faults import stepping
from tests.runs import ROOT, finish, left_behind, run, start_run


def test_inside_of_somebody_elses_launcher(tmp_path, copied_python):
    """A command of many runs does not join it: each process says one line, and none starts a benchmark."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "bench"]
    options = runs.flags(**runs.SMALL | {"gpus": 2} | {"baselines": None})
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "compare", *options, "--out", str(tmp_path)], cwd=ROOT, env=environment, text=True,
                          capture_output=True, timeout=240)  # fmt: skip
    assert done.returncode and "bench: torchrun has started 2 processes" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "HOROVOD_SIZE"])
def test_other_launchers_are_known_by_what_they_set(variable, tmp_path):
    result = run(tmp_path, env={variable: "4"}, mode="single")
    assert result.code == 2 and result.stderr.count("\n") == 1 and variable in result.stderr


def started(folder, ranks: int, **options):
    """A run that goes on and on, once every rank steps, with its folder."""
    process = start_run(folder, **options, **ENDLESS)
    runs.wait_for(stepping(folder, ranks), "every rank steps")
    (run_dir,) = folder.iterdir()
    return process, run_dir


def test_sigterm_to_one_rank_blames_that_rank(tmp_path, forked_programs):
    process, run_dir = started(tmp_path, 2, copies=forked_programs, **ENGINES["ddp by torchrun"])
    psutil.Process(read_status(run_dir, 1).pid).terminate()
    failure = failure_of(finish(process, tmp_path, timeout=150))
    assert failure["rank"] == 1 and failure["message"] == "rank 1 was ended by SIGTERM"


def test_a_launcher_that_is_killed_is_blamed_and_not_its_ranks(tmp_path, forked_programs):
    process, _ = started(tmp_path, 2, copies=forked_programs, **ENGINES["ddp by torchrun"])
    psutil.Process(process.pid).children()[0].kill()
    failure = failure_of(finish(process, tmp_path, timeout=150))
    assert (failure["kind"], failure["rank"]) == ("launcher", None) and "was killed (SIGKILL)" in failure["message"]
    assert left_behind(process.pid, within=GONE_WITHIN) == []


def test_the_folder_of_a_run_is_removed(tmp_path, forked_programs):
    process, run_dir = started(tmp_path, 2, copies=forked_programs, **ENGINES["ddp by spawn"])
    shutil.rmtree(run_dir)
    psutil.Process(process.pid).children()[0].terminate()
    result = finish(process, tmp_path, timeout=150)
    assert result.code == 2 and "was removed during the run" in result.stderr
    assert left_behind(result.pid, within=GONE_WITHIN) == []


def test_a_models_name_makes_no_folder_elsewhere(tmp_path, forked_programs):
    out = tmp_path / "a" / "out"
    result = run(out, copies=forked_programs, mode="single", model="../../x")
    assert result.code == 2 and "MODEL=../../x" in result.stderr
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", out]


def test_a_terminal_that_is_not_utf_8(tmp_path):
    result = run(tmp_path, env={"PYTHONIOENCODING": "ascii"}, mode="single")
    assert result.code == 0 and result.stdout.splitlines()[-1].startswith("record: "), result.stderr


def test_a_loader_without_shared_memory_is_said(tmp_path):
    """What the rank's log says of it is in the one line, with what to do."""
    run_dir = tmp_path
    (run_dir / "rank0.log").write_text("fine\n")
    (run_dir / "rank1.log").write_text(
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: ENOSPC\n"
    )
    said = supervise.without_shared_memory(run_dir, 2)
    assert "rank 1's loader got no shared memory" in said and "--shm-size" in said and "ENOSPC" in said
    (run_dir / "rank1.log").write_text("NCCL INFO opened /dev/shm/nccl-1 as shared memory\n")
    assert supervise.without_shared_memory(run_dir, 2) == ""


def test_the_doctor_looks_at_shared_memory(tmp_path):
    assert doctor.shared_memory(tmp_path, least_mib=10**12)[0].startswith(f"{tmp_path} has ")
    assert doctor.shared_memory(tmp_path / "none") == []
