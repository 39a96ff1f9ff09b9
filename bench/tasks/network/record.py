"""What `bench network` leaves of one backend: RUN_DIR/network.json, checked against bench/record/definition.py.

It is a kind of its own: no table of runs, no pool and no comparison takes it. Its figures are not in it, for they
follow from its times (``result``).
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench import formulas
from bench.config.options import RunConfig
from bench.errors import BenchError
from bench.record.read import parsed
from bench.record.schema import BadRecord, check_kind
from bench.record.summary import disturbance
from bench.record.view import Record
from bench.record.write import frame, nodes_of, save
from bench.tasks.network.backends import BACKENDS, CARRIERS
from bench.tasks.network.plan import Plan

VERSION = 1
NAME = "network.json"
PROVENANCE = {
    "seconds": "monotonic clock of each rank around a block of operations in a row, after a barrier, over their "
    "number, on GPUs until the device is done; a round's time is that of its slowest rank",
    "ping_pong": "rank 0's clock, there and back; a message one way takes half of it",
    "warm-up": "two operations of each size before the rounds, which are not counted; the first one is checked",
    "load": "the operating system's counters, from before the first message to after the last",
}


def write(
    run_dir: Path, config: RunConfig, plan: Plan, topology, environment: dict, operations: list[dict], parts: list[dict]
) -> None:
    """Rank 0: put the ranks' parts together. operations: as ``rank.measure`` gives them, without the seconds. parts: by
    rank, each with its seconds by operation, size and round, its load and its node. Raises BadRecord, OSError."""
    nodes = nodes_of(parts)
    for number, operation in enumerate(operations):
        timed = operation["ranks"] if operation["name"] == "all_reduce" else operation["ranks"][:1]
        for place, size in enumerate(operation["sizes"]):
            size["seconds"] = [parts[rank]["seconds"][number][place] for rank in timed]
    head = frame(run_dir, config, "ok")
    carrier = "nccl" if topology.device.type == "cuda" and not config.share_gpu else "gloo"
    record = {
        "network_version": VERSION,
        **{name: head[name] for name in ("run_id", "status", "started_at", "config", "network") if name in head},
        "backend": plan.backend,
        "carrier": carrier,
        "plan": {"sizes": list(plan.sizes), "rounds": plan.rounds, "budget_s": plan.budget_s},
        "topology": {
            "world_size": topology.world_size,
            "num_devices": topology.num_devices,
            "device": topology.device.type,
            "threads_per_process": config.threads_per_process,
        },
        "environment": environment,
        "nodes": nodes,
        "operations": operations,
        "load": [part["load"] for part in parts],
        "provenance": PROVENANCE,
    }
    save(run_dir, record, NAME, "NetworkRun")


@dataclass(frozen=True)
class Times:
    """Messages of one size. seconds: one for each round, of the slowest rank; one way where it went there and back."""

    nbytes: int
    in_a_row: int
    seconds: list[float]


@dataclass(frozen=True)
class Operation:
    """One operation of a record. left_out: (bytes, expected seconds) of sizes for which there was no time."""

    name: str
    ranks: list[int]
    times: list[Times]
    left_out: list[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class NetworkRecord(Record):
    """The record of one backend; environment, devices and load are a run's record's."""

    FORM = "NetworkRun"

    @property
    def backend(self) -> str:
        """gloo, nccl or horovod."""
        return self.form.backend

    @property
    def name(self) -> str:
        """The backend, with what carries its messages."""
        return BACKENDS[self.backend].title.format(CARRIERS[self.form.carrier])

    @property
    def suite(self) -> str:
        """What one command measured belongs together."""
        return self.config.label.suite or self.run_id

    @property
    def plan(self) -> Plan:
        """What was to be measured."""
        asked = self.form.plan
        return Plan(tuple(asked["sizes"]), asked["rounds"], asked["budget_s"], self.backend)

    @property
    def samples(self) -> list:
        """It has no steps."""
        return []

    @cached_property
    def operations(self) -> list[Operation]:
        """What was done, in the order in which it was."""
        found = []
        for operation in self.form.operations:
            ways = 2 if operation["name"] == "ping_pong" else 1
            times = [
                Times(size["bytes"], size["in_a_row"], [s / ways for s in formulas.slowest_rank(size["seconds"])])
                for size in operation["sizes"]
            ]
            left = [(size["bytes"], size["expected_s"] / ways) for size in operation["left_out"]]
            found.append(Operation(operation["name"], operation["ranks"], times, left))
        return found


def load(path: Path) -> NetworkRecord:
    """One record. Raises BadRecord, which names the file, when it is truncated, edited or of another version."""
    path = Path(path)
    return checked(parsed(path), path)


def checked(data, path: Path) -> NetworkRecord:
    """The record that JSON from a file is. Raises BadRecord."""
    run = check_kind(data, path, "NetworkRun", "network_version", VERSION, "network version {}")
    check_times(run, path)
    nodes = {rank: number for number, node in enumerate(run.nodes) for rank in node.ranks}
    parts = [{"load": part, "devices": [], "node": nodes[rank]} for rank, part in enumerate(run.load)]
    return NetworkRecord(data | {"summary": disturbance(parts)}, str(path.parent), checked=run)


def check_times(run, where) -> None:
    """Raise BadRecord where ranks or rounds are missing, or sizes are not in order."""
    ranks, rounds = range(run.topology["world_size"]), run.plan["rounds"]
    if [rank for node in run.nodes for rank in node.ranks] != list(ranks) or len(run.load) != len(ranks):
        raise BadRecord(f"{where}: not a valid record: nodes, load: not one of each rank of topology/world_size")
    for operation in run.operations:
        sizes = [size["bytes"] for size in operation["sizes"]]
        if sizes != sorted(set(sizes)) or not set(operation["ranks"]) <= set(ranks):
            raise BadRecord(f"{where}: not a valid record: operations: sizes or ranks are not in order")
        timed = len(operation["ranks"]) if operation["name"] == "all_reduce" else 1
        for size in operation["sizes"]:
            if len(size["seconds"]) != timed or {len(column) for column in size["seconds"]} != {rounds}:
                raise BadRecord(f"{where}: not a valid record: operations: seconds are not one of each rank and round")


def find(folder: Path) -> tuple[list[NetworkRecord], list[str]]:
    """All records below a folder, oldest first, and one sentence for each file that is no good record."""
    records, refused = [], []
    for path in sorted(Path(folder).rglob(NAME)):
        try:
            records.append(load(path))
        except BenchError as error:
            refused.append(str(error))
    return sorted(records, key=lambda record: record.started_at), refused


def place_of(records: list[NetworkRecord]) -> Path:
    """The folder of what one command measured: its records are each in one below it."""
    return Path(records[0].folder).parent


def by_suite(records: list[NetworkRecord]) -> dict[str, list[NetworkRecord]]:
    """What each command measured, oldest first; within it one record for each backend."""
    found = {}
    for record in records:
        found.setdefault(record.suite, []).append(record)
    return found
