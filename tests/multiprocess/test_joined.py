"""`bench run` inside of somebody else's launcher: its processes become the ranks of one run, with one record."""

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
from tests.cluster import on
from tests.multiprocess.broken import ENDLESS
from tests.multiprocess.test_data_kinds import images
from tests.multiprocess.test_faults import stepping
from tests.runs import SMALL, Result, finish, flags, needs_horovod
from tests.s3 import needs_s3

WITHIN = 120.0  # seconds in which every process of a broken run must have ended, on a busy machine


AT_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(['sh', '-c', sys.argv[1]])))"


def words(out: Path, **options) -> list[str]:
    """The command line of a process that joins. SMALL's options but for those that a launcher settles."""
    return ["-m", "bench", "run", *flags(**SMALL | {"mode": "ddp", "timeout": 100} | options), "--out", str(out)]


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


def ends(processes: list[subprocess.Popen], out: Path) -> list[Result]:
    """How they ended. None goes on, whatever became of the others."""
    return [finish(process, out, timeout=WITHIN) for process in processes]


def failure_of(results: list[Result], out: Path) -> dict:
    """What the record says, after what every failure must keep: all have failed, and one line says why."""
    assert all(result.code for result in results), results
    said = "".join(result.stderr for result in results)
    assert said.startswith("bench: ") and said.count("\n") == 1, said
    failed = results[0].loaded
    left = {path.name for path in results[0].run_dir.iterdir()}
    assert failed.status == "failed" and left == {"record.json", "rank0.log", "rank1.log"}
    return failed.failure


@needs_s3
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a folder of its own needs root: unshare")
def test_two_machines_without_a_shared_file_system(tmp_path, bucket, copied_python):
    """Two agents of torchrun, each a node; the second does not see the first one's folder. Each fetches the data once,
    and what the second has left goes to COPY_TO."""
    for name, content in images().items():
        bucket.put(f"v1/{name}", content)
    bucket.server.requests.clear()
    out, port = tmp_path / "out", free_port()
    out.mkdir()
    options = {"data": bucket.url("v1"), "data_dir": "~/data", "copy_to": bucket.url("results"), "snapshots": "2",
               "image_size": 16, "batch": 4, "timeout": 200, "baselines": None}  # fmt: skip
    agents = []
    for number in range(2):
        home = tmp_path / f"home{number}"
        home.mkdir()
        argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}",
                "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]  # fmt: skip
        argv += words(out, **options)
        if number:
            hide = f'mount -t tmpfs none "{out}" && exec "$@"'
            argv = ["unshare", "--mount", "sh", "-c", hide, "sh", *argv]
        named = {"HOME": str(home), "BENCH_NODE": f"node{number + 1}", "BENCH_NETWORK": "two halves of one machine"}
        agents.append(
            subprocess.Popen(argv, cwd=runs.ROOT, env=os.environ | runs.PATIENT | named, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )  # fmt: skip
    first, second = ends(agents, out)
    assert first.code == second.code == 0, first.stderr + second.stderr

    record = first.loaded
    assert [(node.name, node.ranks, node.devices) for node in record.nodes] == [("node1", [0], 1), ("node2", [1], 1)]
    one, other = record.nodes
    assert one.environment["source_sha256"] == other.environment["source_sha256"]
    assert (one.interface, other.interface) == ("lo", "lo") and other.link_speed_mbit is None
    assert [part.node for part in record.samples] == [0, 1]
    assert [part.load["machine"] for part in record.samples] == [0, 0]  # one processor, whatever the nodes are called
    assert [device["node"] for device in record.peak_memory] == [0, 1]
    assert (record.layout, record.network) == ("2 nodes × 1 device", "two halves of one machine")
    assert record.config.launcher == "auto" and record.config.num_devices == 2

    assert "joined to torchrun" in first.stdout and "the baselines are left out" in first.stdout
    assert "2 nodes × 1 device (node1, node2), two halves of one machine" in first.stdout
    assert first.stdout.splitlines()[-1] == f"record: {first.run_dir / 'record.json'}" and second.stdout == ""
    assert {path.name for path in first.run_dir.iterdir()} == {
        "record.json",
        "rank0.log",
        "rank1.log",
        "rank0-step2.npz",
    }

    fetched = collections.Counter(path for path in bucket.server.reads() if "/v1/" in path)
    assert len(fetched) == len(images()) and set(fetched.values()) == {2}  # once by each node
    found = {name.removeprefix(f"results/{first.run_dir.name}/") for name in bucket.objects() if "results" in name}
    assert found == {"record.json", "rank0.log", "rank1.log", "rank0-step2.npz", "rank1-step2.npz"}


def test_two_nodes_of_a_cluster(tmp_path, cluster):
    """Network namespaces: torchrun's agents meet over a link, and the record says which network it was. Rank 0 is at a
    terminal: its bar is gone before the table comes, and what it prints for its log is not on it."""
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=node1",
             "--master-port=29500"]  # fmt: skip
    both = [
        shlex.join([*agent, f"--node-rank={rank}", *words(tmp_path, timeout=200, model="resnet18")])
        for rank in range(2)
    ]
    at_a_terminal = shlex.join([sys.executable, "-c", AT_A_TERMINAL, both[0]])
    command = f"{on('node2', 'sh', '-c', both[1])} & {at_a_terminal} && wait"
    result = cluster(command, out=tmp_path, link="100mbit", env={"COLUMNS": "200"})
    assert result.code == 0, result.stderr
    assert "building the model" in result.stdout  # the bar; a smaller one is built sooner than it is drawn
    assert result.stdout.splitlines()[-1] == f"record: {result.run_dir / 'record.json'}"
    record = result.loaded
    assert [(node.name, node.interface) for node in record.nodes] == [("node1", "eth0"), ("node2", "eth0")]
    assert "2 namespaces of one machine" in record.network and record.network in result.stdout
    assert [part.load["machine"] for part in record.samples] == [0, 0]
    assert {path.name for path in result.run_dir.iterdir()} == {"record.json", "rank0.log", "rank1.log"}


@needs_horovod
def test_horovodrun(tmp_path, copied_python):
    _, module, *arguments = words(tmp_path, mode="horovod", cycle_time_ms=5, profile=1)
    command = ["--gloo", "-np", "2", "-H", "localhost:2", "--disable-cache", sys.executable, "-m", module, *arguments]
    result = finish(runs.start(*command, module="horovod.runner.launch"), tmp_path)
    assert result.code == 0, result.stderr
    record = result.loaded
    assert (record.config.mode, record.world_size, record.num_devices) == ("horovod", 2, 2)
    assert "joined to horovodrun" in result.stdout and not record.several_machines
    assert record.environment["variables"]["HOROVOD_CYCLE_TIME"] == "5.0"
    lanes = [{span["lane"] for span in part.timeline["spans"]} for part in record.samples]
    assert all("communication" in lane for lane in lanes)  # of Horovod's own timeline, from rank 0


def test_a_rank_that_raises(tmp_path, copied_python):
    """And the others end without a launcher that ends them. All ranks of one machine share its cores."""
    results = ends(as_tasks(tmp_path, fault="raise:1:2"), tmp_path)
    failure = failure_of(results, tmp_path)
    assert (failure["rank"], failure["kind"]) == (1, "raised") and "inject_fault" in failure["traceback"]
    assert "rank 1 raised RuntimeError: broken on purpose" in results[0].stderr
    assert "broken on purpose" in (results[0].run_dir / "rank1.log").read_text()
    assert results[0].loaded.config.threads == len(psutil.Process().cpu_affinity())


def test_a_rank_that_hangs(tmp_path, copied_python):
    """Every rank watches itself, and what they say together names the one that the others wait for."""
    results = ends(as_tasks(tmp_path, fault="hang:1:2", timeout=25), tmp_path)
    failure = failure_of(results, tmp_path)
    assert (failure["rank"], failure["kind"]) == (1, "hung")
    assert "rank 1 hangs and the others wait for it" in failure["message"] and "TIMEOUT" in failure["message"]
    assert [place["function"] for place in failure["where"]][1] == "inject_fault"


def test_a_rank_that_is_killed(tmp_path):
    results = ends(as_tasks(tmp_path, fault="kill:1:2"), tmp_path)
    failure = failure_of(results, tmp_path)
    assert (failure["rank"], failure["kind"]) == (1, "killed") and "rank 1 ended without a report" in failure["message"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "torchrun is killed"])
def test_the_launcher_ends(tmp_path, number):
    """Its ranks end, and a record says how. Nobody is left who could end them."""
    agent = ["--standalone", "--nproc-per-node=2", *words(tmp_path, **ENDLESS)]
    process = runs.start(*agent, module="torch.distributed.run")
    runs.wait_for(stepping(tmp_path, 2), "every rank steps")
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    result = finish(process, tmp_path, timeout=WITHIN)
    assert not psutil.wait_procs(ranks, timeout=WITHIN)[1]
    assert result.code and result.loaded.status == "failed"
    kinds = {"interrupted"} if number == signal.SIGINT else {"launcher", "interrupted", "killed", "raised"}
    assert result.loaded.failure["kind"] in kinds, result.loaded.failure


def test_options_that_differ(tmp_path, copied_python):
    """They are found before anything starts; nothing is left."""
    results = ends(as_tasks(tmp_path, second={"steps": 7}), tmp_path)
    said = "".join(result.stderr for result in results)
    assert [result.code for result in results] == [2, 2] and said.count("\n") == 1, said
    assert "has STEPS=7, but rank 0 has STEPS=2" in said and not list(tmp_path.iterdir())


def test_a_rank_that_does_not_come(tmp_path, copied_python):
    first, second = as_tasks(tmp_path, timeout=6)
    second.kill()
    second.communicate()
    (result,) = ends([first], tmp_path)
    assert (
        result.code == 2 and result.stderr.count("\n") == 1 and "rank 1 of 2 did not start within 6 s" in result.stderr
    )
