"""What goes wrong is told in one line, with the rank and the cause, in a failed record; and nobody is left behind."""

import re
import signal
import socket
import time

import pytest

from bench.cli.actions.run_output import copy_what_is_there
from bench.config.options import RunConfig
from bench.process.heartbeat import read_status
from bench.record.read import load
from tests import runs
from tests.multiprocess.broken import ENDLESS, ENGINES, EVERY_ENGINE, GONE_WITHIN, bad_rank, engine, failure_of
from tests.runs import finish, left_behind, needs_horovod, needs_mpi, run, start_run

WIDE = pytest.mark.wide


# --- One rank breaks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [engine("horovod"), engine("horovod by mpirun", WIDE), engine("ddp by torchrun", WIDE)]
)
def test_a_rank_that_raises(name, tmp_path, forked_programs):
    """By the other two: test_an_unknown_model. By torchrun: what its ranks raise is in test_data_kinds.py."""
    rank = bad_rank(name)
    result = run(tmp_path, copies=forked_programs, **ENGINES[name], fault=f"raise:{rank}:2")
    failure = failure_of(result)
    assert (failure["rank"], failure["kind"]) == (rank, "raised")
    assert f"rank {rank} raised RuntimeError: broken on purpose" in result.last_error_line
    assert f"rank{rank}.log" in result.last_error_line
    assert "inject_fault" in failure["traceback"] and "broken on purpose" in failure["traceback"]
    assert "broken on purpose" in (result.run_dir / f"rank{rank}.log").read_text()


@pytest.mark.parametrize("name", EVERY_ENGINE)
def test_a_rank_that_is_killed(name, tmp_path):
    """And nobody is left behind, the loader's workers of torchrun's ranks among them, which are asleep in a storage."""
    rank, slow = bad_rank(name), {"workers": 2, "storage_ms": 300} if name == "ddp by torchrun" else {}
    result = run(tmp_path, **ENGINES[name], **slow, fault=f"kill:{rank}:2")
    left = left_behind(result.pid, within=3.0 if slow else GONE_WITHIN)  # left alone a worker looks after five
    assert left == []
    failure = failure_of(result)
    assert (failure["rank"], failure["kind"]) == (rank, "killed")
    assert f"rank {rank} was killed" in result.last_error_line and "step 3 of 3" in result.last_error_line


def test_what_a_broken_run_leaves_is_copied_back(tmp_path, ranks):
    """Logs, the checkpoint so far and the failed record; the exit code stays the failure's."""
    there = tmp_path / "there"
    options = {"mode": "single", "batch": 240, "epochs": 1, "checkpoint_steps": 2, "copy_to": f"file://{there}"}
    result = ranks.run(tmp_path / "out", **options, fault="raise:0:3")
    assert result.code == 1 and "broken on purpose" in result.last_error_line, result.stderr
    assert f"copied to: file://{there}" in result.stdout and result.stderr.count("\n") == 1
    copied = there / result.run_dir.name
    assert {path.name for path in copied.iterdir()} == {path.name for path in result.run_dir.iterdir()}
    assert {"latest.pt", "record.json", "rank0.log"} <= {path.name for path in copied.iterdir()}
    assert load(copied / "record.json").status == "failed"


@pytest.mark.parametrize("failed", ["a-run-that-failed", None])
def test_a_copy_that_fails_after_a_failure_hides_nothing(tmp_path, capsys, failed):
    """It is said, and raises nothing. Of a run that left nothing, nothing is copied."""
    folder = failed and tmp_path / failed
    if folder:
        folder.mkdir()
        (folder / "record.json").write_text("{}")
    copy_what_is_there(RunConfig(epochs=1, copy_to="file:///proc/nowhere"), folder)
    said = capsys.readouterr()
    assert said.out == "" and ("bench: not copied: file:///proc/nowhere" in said.err) == bool(failed)


# --- The request cannot be met --------------------------------------------------------------------------------------


def refused(result, *words: str) -> None:
    """Exit code 2, one line with these words, and no run folder."""
    assert result.code == 2, result.stderr
    assert result.stderr.startswith("bench: ") and result.stderr.count("\n") == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert result.out is None or result.run_dirs == []
    assert left_behind(result.pid, within=GONE_WITHIN) == []


@pytest.mark.parametrize("name", [name for name in EVERY_ENGINE if name.id != "ddp by torchrun"])
def test_an_unknown_model(name, tmp_path, forked_programs):
    """Only the worker knows torchvision's names; its answer is the user's error all the same. (With torchrun: a data
    set that is not there, in test_data_kinds.py.)"""
    result = run(tmp_path, copies=forked_programs, **ENGINES[name] | {"model": "resnet81"})
    refused(result, "unknown MODEL=resnet81", "did you mean resnet18")


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_busy_port(launcher, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        refused(run(tmp_path, mode="ddp", gpus=2, launcher=launcher, dist_url=url), url, "Address already in use")


def test_a_port_that_is_none(tmp_path):
    refused(run(tmp_path, mode="ddp", gpus=2, dist_url="tcp://127.0.0.1:70000"), "DIST_URL=tcp://127.0.0.1:70000")


def test_horovod_is_missing(tmp_path):
    result = run(tmp_path / "out", env=runs.without_horovod(tmp_path), mode="horovod", gpus=2)
    refused(result, "MODE=horovod needs Horovod", "bench install-horovod")


def test_what_checks_records_is_missing(tmp_path):
    """Said before the run: at its end, its record would be lost."""
    result = run(tmp_path / "out", env=runs.without_horovod(tmp_path, "msgspec"), mode="single")
    refused(result, "msgspec", "pip install msgspec", "VENV=none")


@pytest.mark.parametrize("where", ["file/below", "/proc/nowhere"])
def test_a_folder_that_cannot_be_written(where, tmp_path):
    (tmp_path / "file").write_text("")
    refused(run(tmp_path / where, mode="single"), "OUT=", "cannot be written to")


def test_more_gpus_than_there_are(nvml_stub, tmp_path):
    result = run(tmp_path, env=nvml_stub.environ(), device="auto", mode="ddp", gpus=8)
    refused(result, "GPUS=8, but 4 visible here", "GPUS=4 or fewer", "DEVICE=cpu")


def test_fewer_visible_gpus_than_asked_for(nvml_stub, tmp_path):
    result = run(tmp_path, env=nvml_stub.environ(visible="1,3"), device="cuda", mode="ddp", gpus=3)
    refused(result, "GPUS=3, but 2 visible here", "GPUS=2 or fewer", "DEVICE=cpu")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "auto", "share_gpu": 1}, ["SHARE_GPU=1 needs a GPU"]),
        ({"device": "cuda"}, ["DEVICE=cuda, but no GPU is visible", "DEVICE=cpu"]),
        ({"device": "auto", "precision": "tf32"}, ["PRECISION=tf32"]),
    ],
)
def test_a_gpu_is_needed_and_none_is_visible(options, words, tmp_path):
    result = run(tmp_path, env={"CUDA_VISIBLE_DEVICES": ""}, mode="ddp", gpus=2, **options)
    refused(result, *words)


# --- Somebody stops it ----------------------------------------------------------------------------------------------


def stepping(out, ranks: int):
    """A condition: every rank of the one run below ``out`` has taken a step."""

    def check() -> bool:
        folders = list(out.iterdir()) if out.is_dir() else []
        signs = [read_status(folder, rank) for folder in folders for rank in range(ranks)]
        return bool(signs) and all(sign is not None and sign.step > 1 for sign in signs)

    return check


@pytest.mark.parametrize(
    ("name", "number", "times"),
    [
        pytest.param("horovod", signal.SIGINT, 1, id="Ctrl-C, horovod", marks=needs_horovod),
        pytest.param("horovod by mpirun", signal.SIGINT, 1, id="Ctrl-C, mpirun", marks=needs_mpi),
        pytest.param("ddp by spawn", signal.SIGINT, 1000, id="Ctrl-C again and again, spawn"),
    ],
)
def test_the_run_is_interrupted(name, number, times, tmp_path, forked_programs):
    """By SIGTERM, with torchrun: test_somebody_else_watches_a_run_and_ends_it, in test_progress.py."""
    copies = forked_programs if times == 1 else None  # who presses it again and again ends fresh processes
    process = start_run(tmp_path, copies=copies, **ENGINES[name], **ENDLESS)
    try:
        runs.wait_for(stepping(tmp_path, 2), "every rank steps")
        asked = time.monotonic()
        for _ in range(times):
            process.send_signal(number)
            if times > 1 and process.poll() is None:
                time.sleep(0.05)
    finally:
        result = finish(process, tmp_path, timeout=150)
    assert time.monotonic() - asked < 100  # of a run that has hours before it
    failure = failure_of(result, code=130)
    assert failure["kind"] == "interrupted" and result.last_error_line == "bench: interrupted"


def test_ctrl_c_before_anything_runs(tmp_path):
    """The ranks are still importing torch."""
    process = start_run(tmp_path, **ENGINES["ddp by torchrun"])
    runs.wait_for(lambda: list(tmp_path.glob("*/launcher.log")), "the engine is started")
    process.send_signal(signal.SIGINT)
    assert failure_of(finish(process, tmp_path, timeout=150), code=130)["kind"] == "interrupted"


@pytest.mark.parametrize("name", [engine(name, *[WIDE] * (name == "ddp by spawn")) for name in ENGINES if name != "dp"])
def test_bench_itself_is_killed(name, tmp_path):
    """Nobody is there to end the ranks, so they end by themselves; also while nobody has taken note of the death."""
    process = start_run(tmp_path, **ENGINES[name], **ENDLESS)
    try:
        runs.wait_for(stepping(tmp_path, 2), "every rank steps")
        process.kill()
        left = left_behind(process.pid, within=GONE_WITHIN)
    finally:
        finish(process)
    left_at_last = left_behind(process.pid, within=GONE_WITHIN)
    assert (left, left_at_last) == ([], [])


# --- The disk is full -----------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_from_the_start(small_disk):
    disk = small_disk(1)
    (disk / "ballast").write_bytes(bytes(4096))
    result = run(disk / "out", mode="single")
    refused(result, "OUT=", "No space left on device")


@pytest.mark.parametrize("pages", [1, 3])
def test_a_disk_that_fills_up_leaves_no_half_record(pages, small_disk, forked_programs):
    """One page holds the config alone; three hold all but the record."""
    out = small_disk(pages)
    result = run(out, copies=forked_programs, mode="single")
    assert result.code == 1 and result.stderr.startswith("bench: "), result.stderr
    assert result.stderr.count("\n") == 1 and re.search("is full|No space left", result.stderr), result.stderr
    assert not list(out.glob("*/record.json.tmp"))
    for path in out.glob("*/record.json"):
        assert load(path).status == "failed"
