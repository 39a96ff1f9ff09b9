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
from tests.cluster import bench, cluster, on, start  # noqa: F401 (a fixture)
from tests.multiprocess import hangs
from tests.multiprocess.broken import ENDLESS

LONG = runs.SMALL | ENDLESS | {"timeout": 25}
WAITING = {"link_down": {}, "untouched": {"fault": "hang:1:2", "steps": 5, "timeout": 20}}
# DDP's ranks in every test, Horovod's with -m wide.
BOTH = pytest.mark.parametrize("mode", ["ddp", pytest.param("horovod", marks=[runs.needs_horovod, pytest.mark.wide])])
NODE = "BENCH_NODE"  # in the environment of everything that a run starts on a node


@pytest.fixture
def scene(cluster, tmp_path):  # noqa: F811
    """Plays a scene of this file in a fresh cluster: ``scene("node_killed", mode="ddp")``; what it tells as JSON."""
    return lambda name, **given: told(begun(tmp_path, name, **given), tmp_path)


def begun(folder: Path, name: str, **given) -> subprocess.Popen:
    """A scene that begins."""
    words = [sys.executable, "-m", __name__, name, str(folder / "out"), *runs.flags(**LONG | given)]
    return start(subprocess.list2cmdline(words))


def told(process: subprocess.Popen, folder: Path) -> dict:
    """What a scene tells at its end."""
    result = runs.finish(process, timeout=500)
    assert result.code == 0, result.stderr
    story = json.loads(result.stdout.strip().splitlines()[-1])
    assert not story["left"], story
    (run_dir,) = (folder / "out").iterdir()
    record = run_dir / "record.json"
    return story | {"folder": run_dir, "record": json.loads(record.read_text()) if record.exists() else None}


@pytest.fixture(scope="module")
def waiting(cluster, tmp_path_factory, forked_programs):  # noqa: F811
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
    assert told["seen"] == [0, 1]  # both ranks' heartbeats, while it went on


def is_of_two_machines(record: dict, folder: Path) -> None:
    """A whole record, and beside it the logs of both ranks and launchers."""
    assert [node["ranks"] for node in record["nodes"]] == [[0], [1]]
    assert [node["link_speed_mbit"] for node in record["nodes"]] == [None, None]  # no limit, whatever eth0 says
    assert [part["load"]["machine"] for part in record["samples"]] == [0, 0]  # none is a foreign load to the other
    assert record["config"]["hosts"] == "node1:1,node2:1" and record["config"]["remote"] is None
    assert len({part["final_weights_sha256"] for part in record["samples"]}) == 1
    found = {path.name for path in folder.iterdir()}
    assert found == {"rank0.log", "rank1.log", "launcher.log", "launcher1.log", "record.json"}


def test_compare_over_two_machines_leaves_out_what_one_process_cannot_have(cluster, tmp_path, copied_python):  # noqa: F811
    """As a person runs it, without Horovod, of which the run above tells."""
    size = {name: value for name, value in runs.SMALL.items() if name != "baselines"}
    size |= {"rounds": 1, "modes": "single,dp,ddp,independent"}
    result = cluster(bench("compare", *runs.flags(**size), f"--out={tmp_path}"), timeout=400)
    assert result.code == 0, result.stderr
    assert "left out: dp is one process on one machine, and these are 2: node1, node2" in result.stdout
    assert "parity certificate: fair" in result.stdout
    records = {record.program: record for record in find_records(tmp_path)[0]}
    assert set(records) == {"single", "ddp", "independent"}
    assert len(records["single"].data["nodes"]) == 1 and records["independent"].config.num_devices == 2
    is_of_two_machines(records["ddp"].data, Path(records["ddp"].folder))


@BOTH
def test_a_link_that_is_down_for_5_s_is_waited_for_and_one_that_stays_down_is_named(mode, request, scene):
    told = request.getfixturevalue("waiting")("link_down") if mode == "ddp" else scene("link_down", mode=mode)
    assert told["after_5_s"] > told["before"]  # it went on
    assert told["code"] == 1 and told["seconds"] < 200
    assert "does not reach node" in told["said"] and "check the network between them" in told["said"]
    assert told["record"]["failure"]["kind"] == "hung"


@BOTH
def test_a_rank_that_hangs_on_another_machine_is_named_with_it(mode, request, scene):
    hanging = WAITING["untouched"] | {"mode": mode}
    told = request.getfixturevalue("waiting")("untouched") if mode == "ddp" else scene("untouched", **hanging)
    assert told["code"] == 1
    assert "rank 1 hangs and the others wait for it" in told["said"] and "rank 1 is on node2" in told["said"]
    assert told["record"]["failure"]["where"][1]["function"] == "inject_fault"


@BOTH
def test_a_machine_that_is_gone_is_named_with_its_ranks(mode, scene, copied_python):
    told = scene("node_killed", mode=mode)
    assert told["code"] == 1 and told["seconds"] < 60
    assert "lost rank 1 on host node2" in told["said"] and "check that the machine is up" in told["said"]
    assert told["record"]["failure"]["rank"] == 1 and told["record"]["status"] == "failed"


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["ddp", pytest.param("horovod", marks=runs.needs_horovod)])
@pytest.mark.parametrize("comes_back", [False, True])
def test_elastic_goes_on_when_a_machine_is_lost(scene, mode, comes_back, tmp_path):
    remote = tmp_path / "remote.sh"
    remote.write_text(f'test ! -e {tmp_path / "gone"} && exec "$@"')
    remote = f"sh {remote} {sys.executable} -m bench.cluster.enter {{host}}"
    if comes_back:  # the second machine does not see the run's folder, nor the checkpoint in it
        (tmp_path / "out").mkdir()
        hide = tmp_path / "hide.sh"
        hide.write_text(f'exec unshare --mount sh -c \'mount -t tmpfs none {tmp_path}/out && exec "$@"\' sh "$@"')
        remote += f" sh {hide}"
    training = {"epochs": 2, "batch": 60, "checkpoint_steps": 2, "elastic": 1, "timeout": 100, "steps": None,
                "storage_ms": None}  # fmt: skip
    told = scene("machine_back" if comes_back else "machine_lost", mode=mode, remote=remote, **training)
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


@BOTH
def test_nothing_is_left_on_any_machine_when_the_first_is_interrupted(mode, scene):
    told = scene("ctrl_c", mode=mode)
    assert told["code"] == 130 and told["record"]["failure"]["kind"] == "interrupted"


@BOTH
def test_nothing_is_left_on_any_machine_when_the_first_is_killed(mode, scene):
    assert scene("first_killed", mode=mode)["code"] == -signal.SIGKILL


def test_an_interface_that_does_not_lead_to_the_other_machine(cluster, tmp_path, copied_python):  # noqa: F811
    result = cluster(bench("run", *runs.flags(**runs.SMALL | {"iface": "lo"}), f"--out={tmp_path}"))
    assert result.code == 1
    assert "host node1 (rank 0): does not reach node2 at 127.0.0.1" in result.last_error_line
    assert "choose another interface with IFACE (not lo)" in result.last_error_line
    (path,) = tmp_path.glob("*/record.json")
    assert json.loads(path.read_text())["status"] == "failed"


@pytest.mark.wide
def test_verify_over_two_machines(cluster):  # noqa: F811
    words = runs.flags(device="cpu", image_size=8, batch=4, **runs.TINY)
    result = cluster(bench("verify", *words), timeout=900)
    assert result.code == 0, result.stderr
    assert "verify: ok" in result.stdout and "not compared: dp is one process" in result.stdout


@pytest.mark.wide
def test_scaling_over_machines_and_the_devices_of_the_first(cluster, tmp_path):  # noqa: F811
    size = {name: value for name, value in runs.SMALL.items() if name not in ("baselines", "batch")}
    words = runs.flags(**size | {"rounds": 1, "batch": 4, "max_gpus": 4})
    result = cluster(bench("compare", "scaling", *words, f"--out={tmp_path}"), per_node=2, timeout=1200)
    assert result.code == 0, result.stderr
    nodes = {record.program: len(record.data["nodes"]) for record in find_records(tmp_path)[0]}
    assert (nodes["ddp 1"], nodes["ddp 2"], nodes["ddp 4"]) == (1, 1, 2)


# --- The scenes: programs that run on the first node ------------------------------------------------------------------


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
    cut("down")
    time.sleep(5)
    cut("up")
    after = step_of(out, before + 3)
    cut("down")
    return {"before": before, "after_5_s": after}


def node_killed(run, out: Path) -> dict:
    """Everything on the second node is killed at once."""
    step_of(out, 1)
    for process in [*started_on("node2"), *others()]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return {}


def machine_lost(run, out: Path) -> dict:
    """The second node is killed when training has begun, and cannot be reached from then on."""
    step_of(out, 5)
    (out.parent / "gone").touch()
    return node_killed(run, out)


def machine_back(run, out: Path) -> dict:
    """The second node is killed when training has begun, and can be reached again."""
    step_of(out, 5)
    return node_killed(run, out)


def ctrl_c(run, out: Path) -> dict:
    """Ctrl-C, as soon as there are ranks."""
    runs.wait_for(lambda: every_rank_is_there(out), "the ranks are there", 300)
    os.killpg(run.pid, signal.SIGINT)
    return {}


def first_killed(run, out: Path) -> dict:
    """`bench` itself is killed, as soon as there are ranks."""
    runs.wait_for(lambda: every_rank_is_there(out), "the ranks are there", 300)
    run.kill()
    return {}


def every_rank_is_there(out: Path) -> bool:
    """Whether both ranks have said something."""
    return any(len(every_status(folder)) == 2 for folder in out.glob("*"))


def step_of(out: Path, at_least: int) -> int:
    """The step of the second rank, once it is there."""

    def step() -> int:
        every = [every_status(folder) for folder in out.glob("*")]
        return max((beat.step for beats in every for rank, beat in beats.items() if rank), default=0)

    return runs.wait_for(lambda: (now := step()) >= at_least and now, f"step {at_least}", 300)


def cut(state: str) -> None:
    """Take the second node's network down, or up again."""
    subprocess.run(on("node2", "ip", "link", "set", "eth0", state), shell=True, check=True)


def started_on(node: str) -> list[psutil.Process]:
    """What a run has started on a node."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(NODE) == node:
                found.append(process)
    return found


def others() -> list[psutil.Process]:
    """What REMOTE has started on the second node."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            network = os.readlink(f"/proc/{process.pid}/ns/net")
            if "bench.launch.machine" in process.cmdline() and network != os.readlink("/proc/self/ns/net"):
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
    seconds = time.monotonic() - since
    deadline = time.monotonic() + 30
    while (left := [*started_on("node1"), *started_on("node2"), *others()]) and time.monotonic() < deadline:
        time.sleep(0.2)
    print(json.dumps(told | {"code": run.returncode, "said": said[-1] if said else "", "seconds": seconds,
                             "left": [str(each) for each in left]}))  # fmt: skip


if __name__ == "__main__":
    main()
