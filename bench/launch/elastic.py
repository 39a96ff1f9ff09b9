"""MIN_DEVICES: the interruptions that a run has survived, for the record. On one machine torchrun restarts all ranks
from the last checkpoint, Horovod only the lost one, and this module observes. On several machines the launcher is
restarted on the remaining machines (``remaining``)."""

import contextlib
import dataclasses
import json
from pathlib import Path

from bench.config.hosts import Host
from bench.config.options import RunConfig, on_devices
from bench.errors import RunFailed
from bench.launch.node import ENDED, Node
from bench.measure import steady
from bench.process.guard import error_path
from bench.process.heartbeat import Heartbeat, starts_path

RULE = (
    "the examples per device are constant, and the global batch is proportional to the devices; LR is for "
    "LR_BASE_BATCH (by default the global batch at the start), and is scaled with the global batch"
)
SURVIVABLE = ("killed", "raised", "launcher")  # kinds of failure after which the run continues; not a hang


class Survival:
    """The interruptions of one run. rows: as in the record. starts: where training began and restarted."""

    def __init__(self, config: RunConfig, run_dir: Path, started: float):
        self.config, self.run_dir, self.started = config, run_dir, started
        self.rows, self.starts, self.read = [], [], 0
        self.devices, self.reached, self.stepped = config.num_devices, 0, steady.now()
        self.dead = set()  # (rank, pid)
        self.waiting = []  # rows until training has caught up: (row, steps reached, start time)
        self.resumed = False

    def update(self, nodes: list[Node], beats: list[Heartbeat | None]) -> None:
        """Call it once per tick with every rank's heartbeat."""
        self.read_starts()
        if self.resumed:
            reached = max([self.reached, *(beat.step for beat in self.known_alive(beats))])
            if reached > self.reached:
                self.reached, self.stepped = reached, steady.now()
        if not nodes[0].placement.joins:
            self.find_lost(nodes[0], beats)
        if self.waiting and self.resumed and all(beat.step >= self.waiting[-1][1] for beat in self.known_alive(beats)):
            self.close_interruptions()

    def known_alive(self, beats: list[Heartbeat | None]) -> list[Heartbeat]:
        """The heartbeats of processes not known to be dead."""
        return [beat for rank, beat in enumerate(beats) if beat and (rank, beat.pid) not in self.dead]

    def find_lost(self, node: Node, beats: list[Heartbeat | None]) -> None:
        """Find a rank that was killed, or else one that raised; ranks that end as a consequence do not count."""
        new = [rank for rank, beat in enumerate(beats) if beat and (rank, beat.pid) not in self.dead]
        is_gone = node.crashed_ranks()
        gone = [rank for rank in new if is_gone[rank]]
        raised = [rank for rank in new if beats[rank].phase == "raised" and not self.waiting]
        for rank in gone or raised[:1]:
            self.add_interruption(rank, node.placement.host, "killed" if gone else "raised")
        self.dead |= {(rank, beats[rank].pid) for rank in new if is_gone[rank] or beats[rank].phase in ENDED[1:]}

    def add_interruption(self, rank: int | None, host: str, kind: str) -> None:
        when = self.stepped if self.resumed else steady.now()
        self.close_interruptions(when)
        self.rows.append(
            {"when_s": round(when - self.started, 3), "rank": rank, "host": host or None, "kind": kind,
             "seconds_lost": None, "steps_repeated": 0, "devices_before": self.devices, "devices_after": None}
        )  # fmt: skip
        self.waiting.append((self.rows[-1], self.reached, when))
        self.resumed = False

    def read_starts(self) -> None:
        path = starts_path(self.run_dir)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        for line in lines[self.read :]:
            if line.endswith("\n"):
                self.read += 1
                self.add_start(json.loads(line))

    def add_start(self, start: dict) -> None:
        """Training begins. If no end was observed, devices have joined, or a loss was missed."""
        first, grown = not self.starts, start["devices"] > self.devices
        self.starts.append(start)
        if not first and (not self.waiting or self.resumed):
            self.add_interruption(None, "", "joined" if grown else "unseen")
        for row, _, _ in self.waiting:
            if row["devices_after"] is None:
                row["devices_after"] = start["devices"]
        if self.waiting:
            row, reached, _ = self.waiting[-1]
            row["steps_repeated"] = max(0, reached - start["step"])
        self.devices, self.reached, self.resumed = start["devices"], start["step"], True
        self.stepped = steady.now()

    def close_interruptions(self, when: float | None = None) -> None:
        when = steady.now() if when is None else when
        for row, _, began in self.waiting:
            if row["seconds_lost"] is None:
                row["seconds_lost"] = round(max(0.0, when - began), 3)
        if self.resumed:
            self.waiting = []

    def with_lost_ranks_done(self, beats: list[Heartbeat | None]) -> list[Heartbeat | None]:
        """The heartbeats of a hanging run, with permanently lost ranks counted as done."""
        most = max((beat.step for beat in beats if beat), default=0)
        done = {rank for rank, beat in enumerate(beats) if beat and (rank, beat.pid) in self.dead}
        end = {"phase": "done", "step": most}
        return [dataclasses.replace(beat, **end) if rank in done else beat for rank, beat in enumerate(beats)]

    def remaining(self, nodes: list[Node], failure: dict, answering) -> RunConfig | None:
        """The config for a restart after a failure, on ``answering()`` machines; None if it cannot be survived. Raises
        RunFailed if too few devices are left."""
        # None: they could not be reached at the restart.
        several = nodes[0].placement.joins if nodes else self.rows
        if not several or failure["kind"] not in SURVIVABLE or len(self.rows) >= self.config.restarts:
            return None
        rank, kind = failure["rank"], failure["kind"]
        host = next((node.placement.host for node in nodes if rank in node.placement.ranks), "")
        for node in nodes:
            if node.lost_reason():  # the cause of the others' exceptions
                rank, host, kind = node.placement.ranks[0], node.placement.host, "machine lost"
        self.add_interruption(rank, host, kind)
        for node in nodes:
            node.close()
        nodes.clear()
        found = self.config_on(answering(), failure)
        self.clear()
        return found

    def config_on(self, answering: list[Host], failure: dict) -> RunConfig:
        config, taken = self.config, []
        for host in answering:
            if sum(each.slots for each in taken) + host.slots <= config.num_devices:
                taken.append(host)
        devices = sum(host.slots for host in taken)
        if devices < config.elastic:
            error = RunFailed(
                f"{failure['message']}; only {devices} devices are left, fewer than MIN_DEVICES={config.elastic}"
            )
            error.failure = failure | {"message": str(error)}
            raise error
        hosts = ",".join(f"{host.name}:{host.slots}" for host in taken)
        return on_devices(config, devices, hosts=hosts, fault=None)

    def clear(self) -> None:
        for path in self.run_dir.glob("*.log"):
            path.rename(path.with_name(f"{path.stem}.before{len(self.rows)}.log")) if ".before" not in path.name else 0
        for path in self.run_dir.glob(".rank*"):
            if path.name != ".rank0.epochs":
                path.unlink()
        self.read, self.dead = 0, set()

    def add_interruptions_to(self, error: RunFailed) -> None:
        """Add to a failure the number of interruptions that were survived before."""
        survived = [row for row in self.rows if row["devices_after"] is not None]
        if survived and error.failure["kind"] != "interrupted":
            words = f"; the run survived {len(survived)} interruptions before (RESTARTS={self.config.restarts})"
            error.args = (error.args[0] + words,)
            error.failure["message"] += words

    def summary(self, images_seen: int | None = None) -> dict:
        """The record's ``elastic``. images_seen: at the end of a run that finished."""
        self.read_starts()
        self.close_interruptions()
        rows = [row for row in self.rows if row["devices_after"] is not None]
        return {"least_devices": self.config.elastic, "rule": RULE, "interruptions": rows,
                "epochs": [] if images_seen is None else self.coverage(images_seen)}  # fmt: skip

    def coverage(self, images_seen: int) -> list[dict]:
        """How often each epoch's images count in the weights: see ``sharding.coverage``."""
        if not self.starts:
            return []
        from bench.workload.sharding import coverage  # needs numpy, for which the start of no other run should wait

        stretches = []
        for start in self.starts:  # steps after the restart's checkpoint are lost and do not count
            while stretches and stretches[-1]["images_seen"] >= start["images_seen"]:
                stretches.pop()
            stretches.append(start)
        ends = [*(start["images_seen"] for start in stretches[1:]), images_seen]
        pairs = zip(stretches, ends, strict=True)
        parts = [(start["images_seen"], end, start["global_batch"], start["devices"]) for start, end in pairs]
        return coverage(self.starts[0]["num_images"], self.config.seed, self.config.epochs, parts)


def user_error(run_dir: Path, num_ranks: int) -> bool:
    """Whether a rank reported a UserError, for which a restart does not help."""
    for rank in range(num_ranks):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            if json.loads(error_path(run_dir, rank).read_text())["user_error"]:
                return True
    return False
