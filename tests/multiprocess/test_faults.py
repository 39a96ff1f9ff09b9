"""What goes wrong is one line that names the rank and the cause, a failed record, and no process that is left: ranks
that break, requests that cannot be met, runs that somebody ends, clumsy surroundings, disks that fill up."""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from bench.cli.actions import doctor
from bench.cli.actions.run_output import copy_partial_results
from bench.config.options import RunConfig
from bench.launch import supervise
from bench.launch.node import Node, Placement
from bench.measure import cgroup
from bench.process.guard import alive
from bench.record.read import load
from tests import runs
from tests.multiprocess.broken import ENDLESS, ENGINES, GONE_WITHIN, bad_rank, engine, failure_of, one_line, refused
from tests.runs import LASTING, ROOT, finish, left_behind, run, start_run

WIDE = pytest.mark.wide


@pytest.fixture
def no_linux(tmp_path):
    """An environment without what only Linux has, /proc and CPU affinity, as on macOS. psutil, which has its own way on
    every system, keeps its /proc. A copy imports again what has looked for them."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\ndel os.sched_getaffinity, os.sched_setaffinity\n"
        "for name in [name for name in sys.modules if name.partition('.')[0] == 'bench']:\n    del sys.modules[name]\n"
    )
    return {"BENCH_PROC": "/nowhere", "PYTHONPATH": str(tmp_path)}


@contextlib.contextmanager
def going_on(out, name: str, **options):
    """A run that does not end by itself, once both ranks step: its process. It is ended in any case."""
    process = start_run(out, **ENGINES[name], **ENDLESS | options)
    try:
        runs.both_step(out)
        yield process
    finally:
        if process.poll() is None and not process.stdout.closed:
            process.kill()


@pytest.mark.parametrize(
    "name", [engine("horovod"), engine("horovod by mpirun", WIDE), engine("ddp by torchrun", WIDE)]
)
def test_a_rank_that_raises(name, tmp_path, forked_programs):
    """By the others: test_a_request_that_only_a_rank_can_judge."""
    rank = bad_rank(name)
    result = run(tmp_path, copies=forked_programs, **ENGINES[name], fault=f"raise:{rank}:2")
    failure = failure_of(result)
    assert (failure["rank"], failure["kind"]) == (rank, "raised")
    assert f"rank {rank} " in result.last_error_line and f"rank{rank}.log" in result.last_error_line
    assert "RuntimeError: broken on purpose" in result.last_error_line
    assert "inject_fault" in failure["traceback"]
    assert "broken on purpose" in (result.run_dir / f"rank{rank}.log").read_text()


@pytest.mark.parametrize("name", [engine(name) for name in ENGINES])
def test_a_rank_that_is_killed(name, tmp_path, no_linux, forked_programs):
    """And nobody is left. By torchrun: not on Linux, with loaders' workers asleep in a storage."""
    rank, slow = bad_rank(name), {"workers": 2, "storage_ms": 300} if name == "ddp by torchrun" else {}
    env = no_linux if slow else None
    result = run(tmp_path / "out", env=env, copies=forked_programs, **ENGINES[name], **slow, fault=f"kill:{rank}:2")
    assert left_behind(result.pid, within=3.0 if slow else GONE_WITHIN) == []  # alone a worker looks after five
    failure = failure_of(result)
    assert (failure["rank"], failure["kind"]) == (rank, "killed")
    assert f"rank {rank} was killed" in result.last_error_line and "step 3 of 3" in result.last_error_line


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGSEGV, "Segmentation fault")])
def test_a_rank_that_somebody_ends_or_that_crashes(tmp_path, forked_programs, number, said):
    with going_on(tmp_path, "ddp by torchrun", copies=forked_programs) as process:
        psutil.Process(runs.both_step(tmp_path)[1].pid).send_signal(number)
        failure = failure_of(finish(process, tmp_path, timeout=150))
    assert failure["rank"] == 1 and said in failure["message"]


def test_a_launcher_that_is_killed_is_blamed_and_not_its_ranks(tmp_path, forked_programs):
    with going_on(tmp_path, "ddp by torchrun", copies=forked_programs) as process:
        psutil.Process(process.pid).children()[0].kill()
        failure = failure_of(finish(process, tmp_path, timeout=150))
    assert (failure["kind"], failure["rank"]) == ("launcher", None) and "SIGKILL" in failure["message"]


def test_the_folder_of_a_run_is_removed(tmp_path, forked_programs):
    with going_on(tmp_path, "ddp by spawn", copies=forked_programs) as process:
        shutil.rmtree(*tmp_path.iterdir())
        psutil.Process(process.pid).children()[0].terminate()
        one_line(finish(process, tmp_path, timeout=150), code=2)


def test_what_a_broken_run_leaves_is_copied_back(tmp_path, ranks):
    """Logs, the checkpoint so far and the failed record; the exit code stays the failure's."""
    there = tmp_path / "there"
    options = {"mode": "single", "batch": 240, "epochs": 1, "checkpoint_steps": 2, "copy_to": f"file://{there}"}
    result = ranks.run(tmp_path / "out", **options, fault="raise:0:3")
    one_line(result, code=1)
    assert f"file://{there}" in result.stdout
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
    copy_partial_results(RunConfig(epochs=1, copy_to="file:///proc/nowhere"), folder)
    said = capsys.readouterr()
    assert said.out == "" and ("file:///proc/nowhere" in said.err) == bool(failed)


LIMIT_GIB = 1  # more than `bench` takes

# A network whose rank 1 joins the group, and takes memory without end once it steps: a leak.
LEAK = """
import os, sys, threading, time
from pathlib import Path
from bench.process.heartbeat import read_status
from tests.small_resnets import two_blocks

def leak(kept=[]):
    while not ((beat := read_status(Path(sys.argv[1]), 1)) and beat.step > 2):
        time.sleep(0.1)
    while True:
        kept.append(b"x" * (64 << 20))

def leaking(num_outputs):
    if os.environ["RANK"] == "1":
        Path("/proc/self/oom_score_adj").write_text("1000")
        Path({!r}, "cgroup.procs").write_text(str(os.getpid()))
        threading.Thread(target=leak).start()
    return two_blocks(num_outputs)
"""
# Until a killed rank's memory is free, the kernel may kill a second process: this one, before `bench`.
SECOND = "import time; open('/proc/self/oom_score_adj', 'w').write('500'); time.sleep(300)"
DOCTOR = """
import os, pathlib, sys
from bench.cli.actions.doctor import collect_machine, memory_words
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print(memory_words(collect_machine()["machine"]))
"""


@pytest.fixture
def group():
    """A separate control group with that limit, below this process's: as a container or a batch system sets it."""
    made = None
    for parent in [folder for folder in cgroup.groups("memory") if (folder / "cgroup.procs").exists()]:
        with contextlib.suppress(OSError):
            made = parent / f"bench-test-{os.getpid()}"
            made.mkdir()
            name = "memory.max" if (made / "memory.max").exists() else "memory.limit_in_bytes"
            (made / name).write_text(str(LIMIT_GIB * 2**30))
            break
    else:
        if made and made.is_dir():
            made.rmdir()
        pytest.skip("a control group with a limit needs the right to make one: run as root, outside of a sandbox")
    with subprocess.Popen([sys.executable, "-c", SECOND]) as second:
        (made / "cgroup.procs").write_text(str(second.pid))
        yield made
        second.kill()
    runs.wait_for(lambda: not (made / "cgroup.procs").read_text(), "the group is empty", 60)
    made.rmdir()


def test_a_rank_that_the_kernel_kills_for_want_of_memory(group, tmp_path, forked_programs):
    """And the doctor knows the limit; a rank that somebody kills was not out of memory."""
    (tmp_path / "leak.py").write_text(LEAK.format(str(group)))
    options = ENGINES["ddp by torchrun"] | ENDLESS | {"model": f"{tmp_path / 'leak.py'}:leaking"}
    process = start_run(tmp_path / "out", copies=forked_programs, **options)
    (group / "cgroup.procs").write_text(str(process.pid))
    failure = failure_of(finish(process, tmp_path / "out", timeout=240))
    assert (failure["rank"], failure["kind"], failure["out_of_memory"]) == (1, "killed", True)
    assert "signal 9" in failure["message"] and f"limit of {LIMIT_GIB}.00 GiB" in failure["message"]
    said = subprocess.check_output([forked_programs.python, "-c", DOCTOR, group], cwd=ROOT, text=True, timeout=120)
    assert f" {LIMIT_GIB}.0" in said
    assert Node(Placement(range(2)), tmp_path).out_of_memory() == ""


def test_a_loader_without_shared_memory(tmp_path):
    """What the rank's log says of it is in the one line, with what to do; the doctor looks, too."""
    said = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: ENOSPC\n"
    (tmp_path / "rank0.log").write_text("fine\n")
    for log, words in ((said, ("rank 1", "--shm-size", "ENOSPC")), ("opened /dev/shm/nccl-1 as shared memory\n", ())):
        (tmp_path / "rank1.log").write_text(log)
        found = supervise.without_shared_memory(tmp_path, 2)
        assert bool(found) == bool(words) and all(word in found for word in words)
    assert str(tmp_path) in doctor.shared_memory(tmp_path, least_mib=10**12)[0]
    assert doctor.shared_memory(tmp_path / "none") == []


@pytest.mark.parametrize("name", [engine("ddp by spawn"), engine("ddp by torchrun"), engine("horovod by mpirun", WIDE)])
def test_a_request_that_only_a_rank_can_judge(name, tmp_path, forked_programs):
    """Only the worker knows torchvision's names. All of torchrun's ranks end, and it has more to say."""
    result = run(tmp_path, copies=forked_programs, **ENGINES[name] | {"model": "resnet81"})
    refused(result, "MODEL=resnet81", "resnet18")


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_busy_port(launcher, tmp_path, ranks):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        refused(ranks.run(tmp_path, mode="ddp", gpus=2, launcher=launcher, dist_url=url), url)


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"device": "auto", "share_gpu": 1}, ["SHARE_GPU=1"]),
        ({"device": "cuda"}, ["DEVICE=cuda", "DEVICE=cpu"]),
        ({"dist_url": "tcp://127.0.0.1:70000"}, ["DIST_URL=tcp://127.0.0.1:70000"]),
        ({"mode": "fsdp", "fused": 1}, ["FUSED=1"]),
        ({"model": "../../x"}, ["MODEL=../../x"]),
    ],
)
def test_options_that_cannot_be_had_here(options, values, tmp_path, ranks, monkeypatch):
    """Others: tests/unit/cli/test_refusals.py. No folder is made elsewhere."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = tmp_path / "a" / "out"
    refused(ranks.run(out, **{"mode": "ddp", "gpus": 2} | options), *values)
    assert {*tmp_path.rglob("*")} <= {tmp_path / "a", out}


@pytest.mark.parametrize(
    ("absent", "mode", "values"),
    [("horovod", "horovod", ["MODE=horovod"]), ("msgspec", "single", ["pip install msgspec"])],
)
def test_a_package_is_missing(absent, mode, values, tmp_path):
    """Said before the run: without what checks records, its record would be lost at its end."""
    refused(run(tmp_path / "out", env=runs.without_horovod(tmp_path, absent), mode=mode), *values)


def test_a_folder_that_cannot_be_written(ranks):
    """One below a file: tests/unit/test_hostile.py."""
    refused(ranks.run("/proc/nowhere", mode="single"), "OUT=/proc/nowhere")


@pytest.mark.parametrize(("visible", "asked", "there"), [(None, 8, 4), ("1,3", 3, 2)])
def test_more_gpus_than_are_visible(nvml_stub, tmp_path, visible, asked, there):
    env = nvml_stub.environ(**{"visible": visible} if visible else {})
    result = run(tmp_path, env=env, device="cuda" if visible else "auto", mode="ddp", gpus=asked)
    refused(result, f"GPUS={asked}", f"GPUS={there}", "DEVICE=cpu")


@pytest.mark.parametrize("name", [engine("horovod"), engine("horovod by mpirun"), engine("ddp by spawn")])
def test_ctrl_c(name, tmp_path, forked_programs):
    """By spawn it comes again and again. By SIGTERM, with torchrun: the test after this one."""
    times = 1000 if name == "ddp by spawn" else 1
    with going_on(tmp_path, name, copies=forked_programs) as process:
        asked = time.monotonic()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            if times > 1 and process.poll() is None:
                time.sleep(0.05)
        result = finish(process, tmp_path, timeout=150)
    assert time.monotonic() - asked < 100  # of a run that has hours before it
    assert failure_of(result, code=130)["kind"] == "interrupted"


def test_somebody_else_watches_a_run_and_ends_it(tmp_path, ranks, forked_programs):
    """An epoch is printed when it ends; `bench status` shows every rank, while the run continues."""
    options = LASTING | {"gpus": 2, "batch": 120, "epochs": 1000, "track": "none", "checkpoint": 0}
    process = start_run(tmp_path, copies=forked_programs, mode="ddp", **options | {"steps": None})
    try:
        next(line for line in process.stdout if line.startswith("epoch 1"))
        look = functools.partial(ranks.bench, "status", tmp_path, "--once")
        seen = runs.wait_for(lambda: (found := look()).stdout.count("images/s") == 2 and found, "status")
        assert seen.code == 0 and "rank 1: step " in seen.stdout and process.poll() is None
    finally:
        process.terminate()
        result = finish(process, tmp_path, timeout=150)
    one_line(result, code=130)
    assert result.loaded.failure["kind"] == "interrupted"
    refused(look())


def test_ctrl_c_before_anything_runs(tmp_path):
    """The ranks are still importing torch."""
    process = start_run(tmp_path, **ENGINES["ddp by torchrun"])
    runs.wait_for(lambda: list(tmp_path.glob("*/launcher.log")), "the engine is started")
    process.send_signal(signal.SIGINT)
    assert failure_of(finish(process, tmp_path, timeout=150), code=130)["kind"] == "interrupted"


@pytest.mark.parametrize("name", [engine(name, *[WIDE] * (name == "ddp by spawn")) for name in ENGINES if name != "dp"])
def test_bench_itself_is_killed(name, tmp_path, forked_programs):
    """Nobody is there to end the ranks, so they end by themselves; also while nobody has taken note of the death."""
    with going_on(tmp_path, name, copies=forked_programs) as process:
        process.kill()
        left = left_behind(process.pid, within=GONE_WITHIN)
        finish(process)
    assert (left, left_behind(process.pid, within=GONE_WITHIN)) == ([], [])


def test_a_terminal_that_is_not_utf_8_on_a_system_that_is_not_linux(no_linux, tmp_path):
    """What can be measured there is measured, of a fresh process: a copy shares most of its memory."""
    result = run(tmp_path / "out", env=no_linux | {"PYTHONIOENCODING": "ascii"}, mode="single")
    assert result.code == 0 and result.stdout.splitlines()[-1].startswith("record: "), result.stderr
    record, sample = result.loaded, result.record["samples"][0]
    assert all(0.05 < peak["uss"] < peak["rss_hwm"] < 50 and "pss" not in peak for peak in record.peak_memory)
    assert any("pss" in note and "uss" in note for note in sample["devices"][0]["notes"])
    assert sample["load"]["pressure_s"] is None and sample["load"]["machine_cpu_s"] > 0
    assert record["environment"]["machine"]["usable_cores"] == os.cpu_count()
    assert left_behind(result.pid, within=GONE_WITHIN) == []


def test_a_process_that_has_ended_and_was_not_waited_for_is_not_alive():
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = alive(child.pid)
    assert (zombie, alive(child.pid), alive(os.getpid()), alive(1)) == (False, False, True, True)


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_inside_of_somebody_elses_launcher(variable, tmp_path, ranks, monkeypatch):
    """A command of many runs does not join it. (Real launchers: test_joined.py.)"""
    monkeypatch.setenv(variable, "4")
    refused(ranks.bench("compare", "--gpus=2", "--out", tmp_path, out=tmp_path), variable)


def test_a_disk_that_is_full_from_the_start(small_disk, ranks):
    disk = small_disk(1)
    (disk / "ballast").write_bytes(bytes(4096))
    refused(ranks.run(disk / "out", mode="single"), f"OUT={disk / 'out'}")


@pytest.mark.parametrize("pages", [1, 3])
def test_a_disk_that_fills_up_leaves_no_half_record(pages, small_disk, ranks):
    """One page holds the config alone; three hold all but the record."""
    out = small_disk(pages)
    one_line(ranks.run(out, mode="single"), code=1)
    assert not list(out.glob("*/record.json.tmp"))
    for path in out.glob("*/record.json"):
        assert load(path).status == "failed"
