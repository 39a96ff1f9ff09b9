"""`bench run` inside of somebody else's launcher: its processes become the ranks of one run, with one record. By srun,
over two nodes: test_slurm.py. By mpirun: test_mpi.py."""

import collections
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.launch.ports import free_port
from tests import runs
from tests.multiprocess.broken import ENDLESS
from tests.multiprocess.test_data_kinds import images
from tests.runs import SMALL, Result, finish, flags, needs_horovod
from tests.s3 import needs_s3

WITHIN = 120.0  # seconds in which every process of a broken run must have ended, on a busy machine
LOGS = {"rank0.log", "rank1.log"}
AT_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(['sh', '-c', sys.argv[1]])))"


def words(out: Path, **options) -> list[str]:
    """The command line of a process that joins. SMALL's options but for those that a launcher settles."""
    return ["-m", "bench", "run", *flags(**SMALL | {"mode": "ddp", "timeout": 100} | options), "--out", str(out)]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def ended_by(process: subprocess.Popen, number: int, out: Path) -> Result:
    """What a launcher leaves that is sent a signal when both its ranks train; they are gone."""
    ranks = [psutil.Process(beat.pid) for beat in runs.both_step(out)]
    ranks += psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    result = finish(process, out, timeout=WITHIN)
    assert not psutil.wait_procs(ranks, timeout=WITHIN)[1]
    assert result.code and result.loaded.status == "failed"
    return result


@needs_s3
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a folder of its own needs root: unshare")
def test_two_machines_without_a_shared_file_system(tmp_path, bucket, copied_python):
    """Two agents of torchrun, each a node; the second does not see the folder of the first. Each fetches the data once,
    and what the second has left goes to COPY_TO. Rank 0 is at a terminal: its bar is gone before the table comes."""
    for name, content in images().items():
        bucket.put(f"v1/{name}", content)
    bucket.server.requests.clear()
    out, slow, port, agents = tmp_path / "out", tmp_path / "slow.py", free_port(), []
    out.mkdir()
    slow.write_text("import time, tests.small_resnets as s\nslow = lambda n: time.sleep(1) or s.two_blocks(n)\n")
    options = {"data": bucket.url("v1"), "data_dir": "~/data", "copy_to": bucket.url("results"), "snapshots": "2",
               "image_size": 16, "batch": 4, "timeout": 200, "baselines": None, "model": f"{slow}:slow"}  # fmt: skip
    for number in range(2):
        (tmp_path / f"home{number}").mkdir()
        argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}",
                "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]  # fmt: skip
        argv += words(out, **options)
        hide = f'mount -t tmpfs none "{out}" && exec "$@"'
        around = ["unshare", "--mount", "sh", "-c", hide, "sh"] if number else [sys.executable, "-c", AT_A_TERMINAL]
        named = {"HOME": str(tmp_path / f"home{number}"), "BENCH_NODE": f"node{number + 1}",
                 "BENCH_NETWORK": "two halves of one machine", "COLUMNS": "200"}  # fmt: skip
        agents.append(
            subprocess.Popen([*around, *(argv if number else [shlex.join(argv)])], cwd=runs.ROOT,
                             env=os.environ | runs.PATIENT | named, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        )  # fmt: skip
    first, second = (finish(agent, out, timeout=WITHIN) for agent in agents)
    assert first.code == second.code == 0, first.stdout + second.stderr

    record = first.loaded
    assert [(node.name, node.ranks, node.devices) for node in record.nodes] == [("node1", [0], 1), ("node2", [1], 1)]
    one, other = record.nodes
    assert one.environment["source_sha256"] == other.environment["source_sha256"]
    assert (one.interface, other.interface) == ("lo", "lo") and other.link_speed_mbit is None
    assert [part.node for part in record.samples] == [device["node"] for device in record.peak_memory] == [0, 1]
    assert [part.load["machine"] for part in record.samples] == [0, 0]  # one processor, whatever the nodes are called
    assert (record.layout, record.network) == ("2 nodes × 1 device", "two halves of one machine")
    assert record.config.launcher == "auto" and record.config.num_devices == 2

    assert "building the model" in first.stdout  # the bar, if that takes its time
    assert first.stdout.splitlines()[-1] == f"record: {first.run_dir / 'record.json'}" and second.stdout == ""
    assert files(first.run_dir) == LOGS | {"record.json", "rank0-step2.npz"}
    fetched = collections.Counter(path for path in bucket.server.reads() if "/v1/" in path)
    assert len(fetched) == len(images()) and set(fetched.values()) == {2}  # once by each node
    found = {name.removeprefix(f"results/{first.run_dir.name}/") for name in bucket.objects() if "results" in name}
    assert found == LOGS | {"record.json", "rank0-step2.npz", "rank1-step2.npz"}


@needs_horovod
def test_horovodrun(tmp_path, copied_python):
    _, module, *arguments = words(tmp_path, mode="horovod", cycle_time_ms=5, profile=1)
    command = ["--gloo", "-np", "2", "-H", "localhost:2", "--disable-cache", sys.executable, "-m", module, *arguments]
    result = finish(runs.start(*command, module="horovod.runner.launch"), tmp_path).ok()
    record = result.loaded
    assert (record.config.mode, record.world_size, record.num_devices) == ("horovod", 2, 2)
    assert not record.several_machines and record.environment["variables"]["HOROVOD_CYCLE_TIME"] == "5.0"
    lanes = [{span["lane"] for span in part.timeline["spans"]} for part in record.samples]
    assert all("communication" in lane for lane in lanes)  # of Horovod's own timeline, from rank 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "torchrun is killed"])
def test_the_launcher_ends(number, tmp_path, copied_python):
    """Its ranks end, and a record shows how. Nobody is left who could end them."""
    agent = ["--standalone", "--nproc-per-node=2", *words(tmp_path, **ENDLESS)]
    failure = ended_by(runs.start(*agent, module="torch.distributed.run"), number, tmp_path).loaded.failure
    kinds = {"interrupted"} if number == signal.SIGINT else {"launcher", "interrupted", "killed", "raised"}
    assert failure["kind"] in kinds, failure


def as_tasks(out: Path, second: dict | None = None, **options) -> list[subprocess.Popen]:
    """Two processes with the variables that srun would give them: nobody ends one when the other fails. second: options
    that the second one is given otherwise."""
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NODEID": "0", "SLURM_JOB_ID": "7", "MASTER_PORT": str(free_port())}  # fmt: skip
    started = []
    for rank in range(2):
        _, module, *arguments = words(out, **options | ((second or {}) if rank else {}))
        place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        started.append(runs.start(*arguments, module=module, env=step | place))
    return started


def said_by(processes: list[subprocess.Popen]) -> tuple[list[int], str]:
    """How they ended, each whatever became of the others: their exit codes, and the one line that one of them said."""
    results = [finish(process, timeout=WITHIN) for process in processes]
    said = "".join(result.stderr for result in results)
    assert said.startswith("bench: ") and said.count("\n") == 1, said
    return [result.code for result in results], said


@pytest.mark.parametrize(
    ("fault", "timeout", "kind"), [("raise", 100, "raised"), ("hang", 20, "hung"), ("kill", 100, "killed")]
)
def test_a_rank_that_breaks(fault, timeout, kind, tmp_path, copied_python):
    """And the others end without a launcher that ends them; every rank watches itself, and what they say together names
    the one that the others wait for. All ranks of one machine share its cores."""
    codes, said = said_by(as_tasks(tmp_path, fault=f"{fault}:1:2", timeout=timeout))
    (folder,) = tmp_path.iterdir()
    failed = Result(1, "", said, 0, tmp_path).loaded
    assert all(codes) and files(folder) == LOGS | {"record.json"} and failed.status == "failed"
    assert (failed.failure["rank"], failed.failure["kind"]) == (1, kind) and "rank 1" in said
    assert failed.config.threads == len(psutil.Process().cpu_affinity())
    if fault == "raise":
        assert "inject_fault" in failed.failure["traceback"] and "on purpose" in (folder / "rank1.log").read_text()
    if fault == "hang":
        assert failed.failure["where"][1]["function"] == "inject_fault" and "TIMEOUT" in said


def test_options_that_differ(tmp_path, copied_python):
    """They are found before anything starts; nothing is left."""
    codes, said = said_by(as_tasks(tmp_path, second={"steps": 7}))
    assert codes == [2, 2] and "STEPS=7" in said and not list(tmp_path.iterdir())


def test_a_rank_that_does_not_come(tmp_path, copied_python):
    first, second = as_tasks(tmp_path, timeout=6)
    second.kill()
    second.communicate()
    codes, said = said_by([first])
    assert codes == [2] and "rank 1 of 2" in said and "6 s" in said
