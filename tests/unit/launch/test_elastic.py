"""What a run with MIN_DEVICES survives, from made-up heartbeats; and on which machines it continues. With real
ranks: tests/multiprocess/test_elastic.py."""

import json

import pytest

from bench.config.hosts import Host
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import RunFailed, UserError
from bench.launch import launcher, supervise
from bench.launch.elastic import Survival
from bench.launch.placement import Placement
from bench.measure import steady
from bench.process.heartbeat import Heartbeat, starts_path
from tests.runs import refuses


def config_of(**options) -> RunConfig:
    given = {"mode": "ddp", "num_devices": 2, "epochs": 1, "elastic": 1, "per_device_batch": 4} | options
    return resolve(RunConfig(**given), "cpu", 4)


class MadeUp:
    """A node of which a test says what its ranks do."""

    def __init__(self, ranks=range(2), host="", why=""):
        self.placement = Placement(ranks, host=host, joins=bool(host))
        self.dead, self.why, self.closed = set(), why, False

    def crashed_ranks(self) -> list[bool]:
        return [rank in self.dead for rank in self.placement.ranks]

    def lost_reason(self) -> str:
        return self.why

    def close(self) -> None:
        self.closed = True


class Scene:
    """A run on one machine: what is looked at, tick by tick."""

    def __init__(self, folder, ranks: int = 2):
        self.folder, self.node = folder, MadeUp(range(ranks))
        self.survival = Survival(config_of(num_devices=ranks), folder, steady.now())
        self.begin(0, ranks)

    def begin(self, step: int, devices: int = 2) -> None:
        start = {"step": step, "images_seen": step * 4 * devices, "devices": devices, "global_batch": 4 * devices,
                 "num_images": 96}  # fmt: skip
        with starts_path(self.folder).open("a") as file:
            file.write(json.dumps(start) + "\n")

    def tick(self, *ranks: tuple[int, int, str]) -> None:
        """ranks: (process id, step, phase) of each."""
        beats = [Heartbeat(pid, phase, step, 12, 0.5, step) for pid, step, phase in ranks]
        self.survival.update([self.node], beats)

    def interruptions(self) -> list[tuple]:
        """The interruptions, without their seconds."""
        names = ("rank", "kind", "steps_repeated", "devices_before", "devices_after")
        return [tuple(row[name] for name in names) for row in self.survival.summary(96)["interruptions"]]


def test_a_rank_that_is_killed_while_the_others_raise_for_it(tmp_path):
    scene = Scene(tmp_path)
    scene.tick((1, 5, "forward"), (2, 5, "backward"))
    scene.node.dead = {1}
    scene.tick((1, 5, "raised"), (2, 5, "backward"))
    hanging = [Heartbeat(9, "forward", 7, 12, 0.5), Heartbeat(2, "forward", 3, 12, 0.5)]
    found = scene.survival.with_lost_ranks_done(hanging)
    assert [(beat.phase, beat.step) for beat in found] == [("forward", 7), ("done", 7)]
    scene.node.dead = set()
    scene.tick((3, 0, "starting"), (4, 0, "starting"))
    scene.begin(3)
    scene.tick((3, 3, "forward"), (4, 3, "forward"))
    assert scene.survival.rows[0]["seconds_lost"] is None  # not yet where it was
    scene.tick((3, 5, "forward"), (4, 5, "forward"))
    assert scene.survival.rows[0]["seconds_lost"] >= 0
    assert scene.interruptions() == [(1, "killed", 2, 2, 2)]
    assert scene.survival.summary(96)["epochs"] == [{"epoch": 1, "once": 96, "more": 0, "never": 0}]


def test_a_rank_that_raises_and_the_others_are_terminated(tmp_path):
    scene = Scene(tmp_path)
    scene.tick((1, 5, "forward"), (2, 5, "raised"))
    scene.tick((1, 5, "terminated"), (2, 5, "raised"))
    scene.begin(0)
    scene.tick((3, 6, "forward"), (4, 6, "forward"))
    assert scene.interruptions() == [(1, "raised", 5, 2, 2)]


def test_a_second_rank_is_killed_before_training_has_begun_again(tmp_path):
    """No second and no step counts twice."""
    scene = Scene(tmp_path, ranks=3)
    ranks = [(1, 5, "forward"), (2, 5, "forward"), (3, 5, "forward")]
    for dead in (set(), {1}, {1, 2}):
        scene.node.dead = dead
        scene.tick(*ranks)
    scene.begin(3, devices=1)
    scene.tick((1, 9, "forward"), *ranks[1:])
    assert scene.interruptions() == [(1, "killed", 0, 3, 1), (2, "killed", 2, 3, 1)]


def test_a_rank_joins_again_and_one_restart_went_unseen(tmp_path):
    scene = Scene(tmp_path)
    scene.tick((1, 5, "forward"), (2, 5, "forward"))
    scene.begin(4, devices=1)
    scene.tick((1, 8, "forward"), (2, 5, "forward"))
    scene.begin(8)
    scene.tick((1, 9, "forward"), (3, 9, "forward"))
    assert scene.interruptions() == [(None, "unseen", 1, 2, 1), (None, "joined", 0, 1, 2)]


def test_steps_that_were_lost_with_their_checkpoint_count_once(tmp_path):
    """Images of steps that no weights hold are not counted twice, whatever the number of devices was."""
    scene = Scene(tmp_path)
    for step, devices in ((4, 2), (0, 2), (8, 1)):
        scene.begin(step, devices)
        scene.tick((1, step, "forward"), (2, step, "forward"))
    assert scene.survival.summary(96)["epochs"] == [{"epoch": 1, "once": 96, "more": 0, "never": 0}]


MACHINES = {"hosts": "a:2,b:2,c:2,d:2", "num_devices": 6, "restarts": 2}
KILLED = {"rank": 2, "kind": "killed", "message": "rank 2 was killed", "traceback": ""}


@pytest.mark.parametrize(("answer", "goes_on_with"), [("ac", "a:2,c:2"), ("abcd", "a:2,b:2,c:2"), ("bc", "b:2,c:2")])
def test_it_goes_on_with_the_machines_that_answer(answer, goes_on_with, tmp_path):
    config = config_of(**MACHINES)
    survival = Survival(config, tmp_path, steady.now())
    nodes = [MadeUp(range(2), "a"), MadeUp(range(2, 4), "b", why="does not answer"), MadeUp(range(4, 6), "c")]
    closed = list(nodes)
    (tmp_path / "rank0.log").write_text("so far")
    (tmp_path / ".rank0.status").write_text("stale")
    found = survival.remaining(nodes, KILLED, lambda: [Host(name, 2) for name in answer])
    assert found.hosts == goes_on_with and found.num_devices == 2 * len(goes_on_with.split(","))
    assert found.threads_per_process == config.threads_per_process
    assert found.global_batch == 4 * found.num_devices and found.lr_batch == config.global_batch
    assert all(node.closed for node in closed) and nodes == []
    assert (survival.rows[0]["host"], survival.rows[0]["kind"]) == ("b", "machine lost")
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.before1.log"]


def test_it_goes_on_with_no_fewer_than_asked_for(tmp_path):
    survival = Survival(config_of(**MACHINES | {"elastic": 4}), tmp_path, steady.now())
    with pytest.raises(RunFailed, match=r"rank 2 .* 2 .*MIN_DEVICES=4"):
        survival.remaining([MadeUp(range(2), "a"), MadeUp(range(2, 6), "b")], KILLED, lambda: [Host("a", 2)])


@pytest.mark.parametrize(("kind", "restarts"), [("hung", 2), ("interrupted", 2), ("killed", 0)])
def test_what_is_not_survived(kind, restarts, tmp_path):
    survival = Survival(config_of(**MACHINES | {"restarts": restarts}), tmp_path, steady.now())
    nodes = [MadeUp(range(2), "a"), MadeUp(range(2, 6), "b")]
    assert survival.remaining(nodes, KILLED | {"kind": kind}, list) is None


@pytest.mark.parametrize(("options", "words"), [
    ({"mode": "dp"}, "MODE=dp"), ({"elastic": 3}, "GPUS=2"), ({"epochs": 0}, "EPOCHS"),
    ({"checkpoint": False}, "CHECKPOINT=0"), ({"launcher": "spawn"}, "LAUNCHER"),
    ({"dist_url": "tcp://127.0.0.1:29500"}, "DIST_URL"), ({"profile": True}, "PROFILE=1"),
    ({"elastic": 0, "restarts": 1}, "RESTARTS=1"),
])  # fmt: skip
def test_what_elastic_cannot_have(options, words):
    with refuses("MIN_DEVICES", words):
        config_of(**options)


def test_elastic_is_of_single_runs():
    with refuses("MIN_DEVICES"):
        config_of().labelled(study="compare")


@pytest.mark.parametrize("error", [UserError("no such image"), KeyboardInterrupt()])
def test_a_run_that_ends_for_another_reason_has_what_it_survived_in_its_record(error, monkeypatch, tmp_path):
    def happening(nodes, start, run_dir, timeout, watch, survival):
        for step in (0, 3):
            start = {"step": step, "images_seen": 8 * step, "devices": 2, "global_batch": 8, "num_images": 96}
            survival.add_start(start)
        raise error

    monkeypatch.setattr(supervise, "run", happening)
    with pytest.raises(type(error)):
        launcher.launch(config_of(out=str(tmp_path)))
    (path,) = tmp_path.glob("*/record.json")
    record = json.loads(path.read_text())
    (row,) = record["elastic"]["interruptions"]
    assert record["status"] == "failed" and (row["kind"], row["devices_after"]) == ("unseen", 2)
