"""HOSTS between network namespaces, with real ranks: what a run leaves, and what is said when it breaks."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from bench.process.heartbeat import every_status
from bench.record.read import find_records
from bench.training.checkpoint import read
from tests import runs
from tests.cluster import bench, on, start
from tests.multiprocess import hangs
from tests.multiprocess.broken import ENDLESS

LONG = runs.SMALL | ENDLESS | {"timeout": 25}
HANGING = {"fault": "hang:1:2", "steps": 5, "timeout": 20}
WAITING = {"link_down": {}, "untouched": HANGING}
# DDP's ranks in every test, Horovod's with -m wide.
BOTH = pytest.mark.parametrize("mode", ["ddp", pytest.param("horovod", marks=[runs.needs_horovod, pytest.mark.wide])])


@pytest.fixture
def scene(cluster, tmp_path):
    """Plays a scene of this file in a fresh cluster: ``scene("node_killed", mode="ddp")``; what it tells as JSON."""
    return lambda name, **given: told(begun(tmp_path, name, **given), tmp_path)


def begun(folder: Path, name: str, **given) -> subprocess.Popen:
    """A scene that begins."""
    words = [sys.executable, "-m", __name__, name, str(folder / "out"), *runs.flags(**LONG | given)]
    return start(subprocess.list2cmdline(words))


def told(process: subprocess.Popen, folder: Path) -> dict:
    """What a scene tells at its end."""
    result = runs.finish(process, timeout=500).ok()
    story = json.loads(result.stdout.strip().splitlines()[-1])
    assert not story["left"], story
    (run_dir,) = (folder / "out").iterdir()
    record = run_dir / "record.json"
    return story | {"folder": run_dir, "record": json.loads(record.read_text()) if record.exists() else None}


@pytest.fixture(scope="module")
def waiting(cluster, tmp_path_factory, forked_programs):
    """``waiting(name)``: what a scene of WAITING tells. They begin with the module, for most of the time they wait."""
    with ThreadPoolExecutor(len(WAITING)) as pool, pytest.MonkeyPatch.context() as patch:
        ends = {}
        if forked_programs:
            patch.setattr(sys, "executable", forked_programs.python)
        for name, given in WAITING.items():
            folder = tmp_path_factory.mktemp(name)
            ends[name] = pool.submit(told, begun(folder, name, **given), folder)
        patch.undo()
        yield lambda name: ends[name].result()


@runs.needs_horovod
def test_a_run_over_two_machines_is_one_record_with_the_logs_of_all_ranks(waiting, scene, copied_python):
    """By torchrun: the comparison below."""
    told = scene("untouched", mode="horovod", steps=3, timeout=200)
    assert told["code"] == 0, told
    is_of_two_machines(told["record"], told["folder"])
    assert told["seen"] == [0, 1]  # both ranks' heartbeats, while it ran


def is_of_two_machines(record: dict, folder: Path) -> None:
    """A whole record, and beside it the logs of both ranks and launchers."""
    assert [node["ranks"] for node in record["nodes"]] == [[0], [1]]
    assert [node["link_speed_mbit"] for node in record["nodes"]] == [None, None]  # no limit, whatever eth0 says
    assert [part["load"]["machine"] for part in record["samples"]] == [0, 0]  # none is a foreign load to the other
    assert record["config"]["hosts"] == "node1:1,node2:1" and record["config"]["remote"] is None
    assert len({part["final_weights_sha256"] for part in record["samples"]}) == 1
    found = {path.name for path in folder.iterdir()}
    assert found == {"rank0.log", "rank1.log", "launcher.log", "launcher1.log", "record.json"}


def test_compare_over_two_machines_leaves_out_what_one_process_cannot_have(cluster, tmp_path, copied_python):
    """As a person runs it, without Horovod, of which the run above tells."""
    size = {name: value for name, value in runs.SMALL.items() if name != "baselines"}
    words = runs.flags(**size | {"rounds": 1, "modes": "single,dp,ddp"})
    result = cluster(bench("compare", *words, f"--out={tmp_path}"), timeout=400).ok()
    assert "parity certificate: fair" in result.stdout
    records = {record.program: record for record in find_records(tmp_path)[0]}
    assert set(records) == {"single", "ddp"} and len(records["single"].data["nodes"]) == 1
    is_of_two_machines(records["ddp"].data, Path(records["ddp"].folder))


# What is done to a run; what the failure says, and what the last line names.
@pytest.mark.parametrize(
    ("name", "given", "code", "failure", "named"),
    [
        ("node_killed", {}, 1, {"rank": 1}, ["rank 1", "node2"]),
        ("ctrl_c", {}, 130, {"kind": "interrupted"}, []),
        ("first_killed", {}, -signal.SIGKILL, {}, []),
        ("link_down", {}, 1, {"kind": "hung"}, ["node1", "node2"]),
        ("untouched", HANGING, 1, {"kind": "hung", "rank": 1}, ["rank 1", "node2"]),
    ],
    ids=["machine gone", "Ctrl-C", "bench killed", "link down", "a hang"],
)
@BOTH
def test_what_breaks_is_named_with_its_machine_and_nothing_is_left_on_any(
    mode, name, given, code, failure, named, request, scene, copied_python
):  # fmt: skip
    """A link that is down for 5 s is waited for; one that stays down is a hang."""
    if mode == "ddp" and name in WAITING:
        told = request.getfixturevalue("waiting")(name)
    else:
        told = scene(name, mode=mode, **given)
    assert told["code"] == code and told["seconds"] < (60 if name == "node_killed" else 200), told
    assert all(word in told["said"] for word in named), told
    if failure:
        found = told["record"]["failure"]
        assert told["record"]["status"] == "failed" and found | failure == found
    if name == "link_down":
        assert told["after_5_s"] > told["before"]  # it continued
    if name == "untouched":
        assert found["where"][1]["function"] == "inject_fault"


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["ddp", pytest.param("horovod", marks=runs.needs_horovod)])
@pytest.mark.parametrize("comes_back", [False, True])
def test_elastic_goes_on_when_a_machine_is_lost(scene, mode, comes_back, tmp_path):
    enter, around = f"{sys.executable} -m bench.cluster.enter {{host}}", tmp_path / "around.sh"
    if comes_back:  # the second machine does not see the run's folder, nor the checkpoint in it
        (tmp_path / "out").mkdir()
        around.write_text(f'exec unshare --mount sh -c \'mount -t tmpfs none {tmp_path}/out && exec "$@"\' sh "$@"')
        remote = f"{enter} sh {around}"
    else:
        around.write_text(f'test ! -e {tmp_path / "gone"} && exec "$@"')
        remote = f"sh {around} {enter}"
    training = {"epochs": 2, "batch": 60, "checkpoint_steps": 2, "elastic": 1, "timeout": 100, "steps": None,
                "storage_ms": None}  # fmt: skip
    told = scene("node_killed", mode=mode, remote=remote, **training)
    assert told["code"] == 0, told
    record, (row,) = told["record"], told["record"]["elastic"]["interruptions"]
    assert (row["rank"], row["host"], row["kind"]) == (1, "node2", "machine lost")
    assert (row["devices_before"], row["devices_after"]) == (2, 2 if comes_back else 1)
    assert len(record["nodes"]) == row["devices_after"] == record["topology"]["world_size"]
    assert all((epoch["once"], epoch["more"], epoch["never"]) == (1437, 0, 0) for epoch in record["elastic"]["epochs"])
    assert record["accuracy"]["epochs"][-1]["lr"] == pytest.approx(0.05 * row["devices_after"] / 2)
    assert len({part["final_weights_sha256"] for part in record["samples"]}) == 1
    assert read(told["folder"] / "latest.pt")["step"] == record["accuracy"]["epochs"][-1]["steps"]
    assert {"rank0.before1.log", "rank1.before1.log", "rank0.log"} <= {path.name for path in told["folder"].iterdir()}


def test_an_interface_that_does_not_lead_to_the_other_machine(cluster, tmp_path, copied_python):
    result = cluster(bench("run", *runs.flags(**runs.SMALL | {"iface": "lo"}), f"--out={tmp_path}"))
    assert result.code == 1
    assert all(word in result.last_error_line for word in ("host node1 (rank 0)", "node2 at 127.0.0.1", "IFACE"))
    (path,) = tmp_path.glob("*/record.json")
    assert json.loads(path.read_text())["status"] == "failed"


@pytest.mark.wide
def test_scaling_over_machines_and_the_devices_of_the_first(cluster, tmp_path):
    size = {name: value for name, value in runs.SMALL.items() if name not in ("baselines", "batch")}
    words = runs.flags(**size | {"rounds": 1, "batch": 4, "max_gpus": 4})
    cluster(bench("compare", "scaling", *words, f"--out={tmp_path}"), per_node=2, timeout=1200).ok()
    nodes = {record.program: len(record.data["nodes"]) for record in find_records(tmp_path)[0]}
    assert (nodes["ddp 1"], nodes["ddp 2"], nodes["ddp 4"]) == (1, 1, 2)


def untouched(run, out: Path) -> dict:
    """Nothing is done to it."""
    seen = set()
    while run.poll() is None:
        seen |= {rank for folder in out.glob("*") for rank in every_status(folder)}
        time.sleep(0.2)
    return {"seen": sorted(seen)}


def link_down(run, out: Path) -> dict:
    """The second node loses its network for 5 s, and then for good."""
    before = step_of(out, 1)
    for state in ("down", "up"):
        subprocess.run(on("node2", "ip", "link", "set", "eth0", state), shell=True, check=True)
        time.sleep(5 if state == "down" else 0)
    after = step_of(out, before + 3)
    subprocess.run(on("node2", "ip", "link", "set", "eth0", "down"), shell=True, check=True)
    return {"before": before, "after_5_s": after}


def node_killed(run, out: Path) -> dict:
    """Everything on the second node is killed together; REMOTE may reach it again."""
    step_of(out, 5)
    (out.parent / "gone").touch()
    for process in started_on("node2"):
        with contextlib.suppress(psutil.Error):
            process.kill()
    return {}


def ctrl_c(run, out: Path) -> dict:
    step_of(out, 1)
    os.killpg(run.pid, signal.SIGINT)
    return {}


def first_killed(run, out: Path) -> dict:
    """`bench` itself is killed."""
    step_of(out, 1)
    run.kill()
    return {}


def step_of(out: Path, at_least: int) -> int:
    """The step of the second rank, once it is there."""

    def step() -> int:
        every = [every_status(folder) for folder in out.glob("*")]
        return max((beat.step for beats in every for rank, beat in beats.items() if rank), default=0)

    return runs.wait_for(lambda: (now := step()) >= at_least and now, f"step {at_least}", 300)


def started_on(*nodes: str) -> list[psutil.Process]:
    """What a run, and REMOTE on the second node, has started on these nodes."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            elsewhere = os.readlink(f"/proc/{process.pid}/ns/net") != os.readlink("/proc/self/ns/net")
            by_remote = "bench.launch.machine" in process.cmdline() and elsewhere
            if by_remote or process.environ().get("BENCH_NODE") in nodes:
                found.append(process)
    return found


def main() -> None:
    """Start a run, play the scene, and tell what came of it."""
    name, out, *words = sys.argv[1:]
    argv = [sys.executable, "-m", hangs.__name__, "run", *words, f"--out={out}"]
    run = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    told = globals()[name](run, Path(out))
    since = time.monotonic()
    said = run.communicate()[1].strip().splitlines()
    told |= {"code": run.returncode, "said": said[-1] if said else "", "seconds": time.monotonic() - since}
    deadline = time.monotonic() + 30
    while (left := started_on("node1", "node2")) and time.monotonic() < deadline:
        time.sleep(0.2)
    print(json.dumps(told | {"left": [str(each) for each in left]}))


if __name__ == "__main__":
    main()
