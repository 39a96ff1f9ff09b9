"""The backends of `bench network`, and the record of one of them: RUN_DIR/network.json (bench/record/definition.py).

It contains times only; result.py computes the metrics. Tables of runs, pools and comparisons ignore it.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench import formulas
from bench.analysis import style
from bench.config.modes import MODES, ModeInfo, PlotStyle
from bench.config.options import RunConfig
from bench.errors import BenchError
from bench.record import packed
from bench.record.read import parsed
from bench.record.schema import BadRecord, check_kind
from bench.record.summary import disturbance
from bench.record.view import Record
from bench.record.write import frame, nodes_of, save
from bench.tasks.network.plan import Plan

VERSION = 1
NAME = "network.json"
PROVENANCE = {
    "seconds": "monotonic clock of each rank around a block of operations in a row, after a barrier, over their "
    "number, on GPUs until the device is done; a round's time is that of its slowest rank",
    "ping_pong": "rank 0's clock, there and back; a message one way takes half of it",
    "products": "monotonic clock around one product of two matrices in torch, on GPUs until the device is done; the "
    "shortest of several; all ranks compute at the same time",
    "warm-up": "two operations of each size before the rounds, which are not counted; the first one is checked",
    "load": "the operating system's counters, from before the first message to after the last",
}
CARRIERS = {"gloo": "Gloo", "nccl": "NCCL"}


@dataclass(frozen=True)
class Backend:
    """A way to send messages. mode: whose ranks use it. title: in tables and pictures, with {} for the carrier. device:
    the only one on which it is measured; "" for any."""

    name: str
    mode: str
    title: str
    look: PlotStyle
    device: str = ""

    @property
    def info(self) -> ModeInfo:
        return MODES[self.mode]


BACKENDS = {backend.name: backend for backend in (
    Backend("gloo", "ddp", "Gloo", MODES["ddp"].look, "cpu"),
    Backend("nccl", "ddp", "NCCL", style.SPARE[1], "cuda"),
    Backend("horovod", "horovod", "Horovod over {}", MODES["horovod"].look),
)}  # fmt: skip


def write(
    run_dir: Path, config: RunConfig, plan: Plan, topology, environment: dict, operations: list[dict],
    unsupported: dict[str, str], parts: list[dict],
) -> None:  # fmt: skip
    """Rank 0 writes the record. operations: from ``rank.measure``, without the seconds. parts: of each rank its seconds
    by operation, size and round, its matrix products, its load and its node. Raises BadRecord, OSError."""
    nodes = nodes_of(parts)
    products = [
        {"precision": precision, "n": n, "seconds": [part["products"][precision, n] for part in parts]}
        for precision, n in parts[0]["products"]
        if all((precision, n) in part["products"] for part in parts)
    ]
    for number, operation in enumerate(operations):
        timed = operation["ranks"] if operation["name"] != "ping_pong" else operation["ranks"][:1]
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
        "topology": {"world_size": topology.world_size, "num_devices": topology.num_devices,
                     "device": topology.device.type, "threads_per_process": config.threads_per_process},
        "environment": environment,
        "nodes": nodes,
        "operations": operations,
        **({"unsupported": unsupported} if unsupported else {}),
        **({"products": products} if products else {}),
        "load": [part["load"] for part in parts],
        "provenance": PROVENANCE,
    }  # fmt: skip
    save(run_dir, record, NAME, "NetworkRun")


@dataclass(frozen=True)
class Times:
    """Messages of one size. seconds: of each round, the slowest rank's; one way for a ping-pong."""

    nbytes: int
    in_a_row: int
    seconds: list[float]


@dataclass(frozen=True)
class Operation:
    """left_out: (bytes, expected seconds) of sizes for which there was no time."""

    name: str
    ranks: list[int]
    times: list[Times]
    left_out: list[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class NetworkRecord(Record):
    FORM = "NetworkRun"

    @property
    def backend(self) -> str:
        return self.form.backend

    @property
    def name(self) -> str:
        return BACKENDS[self.backend].title.format(CARRIERS[self.form.carrier])

    @property
    def suite(self) -> str:
        return self.config.label.suite or self.run_id

    @property
    def plan(self) -> Plan:
        asked = self.form.plan
        return Plan(tuple(asked["sizes"]), asked["rounds"], asked["budget_s"], self.backend)

    @property
    def samples(self) -> list:
        return []

    @cached_property
    def operations(self) -> list[Operation]:
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


def peaks(record: NetworkRecord) -> dict[str, dict[int, list[float]]]:
    """Precision -> n -> FLOP/s of each rank's device, of its fastest product."""
    found = {}
    for product in record.form.products or []:
        rates = [formulas.matmul_flops_per_s(product["n"], seconds) for seconds in product["seconds"]]
        found.setdefault(product["precision"], {})[product["n"]] = rates
    return found


def load(path: Path) -> NetworkRecord:
    """Raises BadRecord for a file that is truncated, edited or of another version."""
    path = Path(path)
    return checked(parsed(path), path)


def checked(data, path: Path) -> NetworkRecord:
    run = check_kind(data, path, "NetworkRun", "network_version", VERSION, "network version {}")
    check_times(run, path)
    nodes = {rank: number for number, node in enumerate(run.nodes) for rank in node.ranks}
    parts = [{"load": part, "devices": [], "node": nodes[rank]} for rank, part in enumerate(run.load)]
    return NetworkRecord(data | {"summary": disturbance(parts)}, str(path.parent), checked=run)


def check_times(run, where) -> None:
    ranks, rounds = range(run.topology["world_size"]), run.plan["rounds"]
    if [rank for node in run.nodes for rank in node.ranks] != list(ranks) or len(run.load) != len(ranks):
        raise BadRecord(f"{where}: not a valid record: nodes, load: the ranks differ from topology/world_size")
    for operation in run.operations:
        sizes = [size["bytes"] for size in operation["sizes"]]
        if sizes != sorted(set(sizes)) or not set(operation["ranks"]) <= set(ranks):
            raise BadRecord(f"{where}: not a valid record: operations: sizes or ranks are not in order")
        timed = len(operation["ranks"]) if operation["name"] != "ping_pong" else 1
        for size in operation["sizes"]:
            if len(size["seconds"]) != timed or {len(column) for column in size["seconds"]} != {rounds}:
                raise BadRecord(
                    f"{where}: not a valid record: operations: seconds has not one value per rank and round"
                )


def find(folder: Path) -> tuple[list[NetworkRecord], list[str]]:
    """All records below a folder, oldest first, and the error of each file that is not valid."""
    records, refused = [], []
    for path in packed.find_files(folder, NAME):
        try:
            records.append(load(path))
        except BenchError as error:
            refused.append(str(error))
    return sorted(records, key=lambda record: record.started_at), refused


def place_of(records: list[NetworkRecord]) -> Path:
    """The folder of one command; each of its records is in a folder below."""
    return Path(records[0].folder).parent


def by_suite(records: list[NetworkRecord]) -> dict[str, list[NetworkRecord]]:
    """The records of each command, oldest first, one per backend."""
    found = {}
    for record in records:
        found.setdefault(record.suite, []).append(record)
    return found
