"""Records of many machines, grouped by machine, workload and program, in one table and one picture.

Records are only read. CPU workers never share a panel with GPUs, nor do two workloads: bars next to each other would
suggest a comparison that was not measured."""

import collections
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench import formulas
from bench.analysis import stats, words
from bench.analysis.suite import group_by, suites_of
from bench.analysis.tables import Grid
from bench.config.fields import option_value
from bench.config.options import PLAIN, PROGRAM, UNSET, WORK, names, to_dict
from bench.errors import UserError
from bench.measure.environment import cores_in_words
from bench.record import packed
from bench.record.disturbance import LABEL, disturbances_of, worst
from bench.record.read import find_records, load
from bench.record.schema import BadRecord
from bench.record.view import Record

CONFIDENCE = 0.95
VERSIONS = ("python", "torch", "horovod", "cuda", "nccl")
ALWAYS_SAID = ("lr", "momentum", "weight_decay", "workers", "epochs")  # if not 0
# Options of the work that have another form, or do not change it: the global batch represents the per-device batch, so
# that one process and two share a panel.
NOT_SAID = ("model", "data", "image_size", "per_device_batch", "precision", "optimizer", "warmup_steps", "timed_steps",
            "seed")  # fmt: skip


def records_at(path: Path, needed: bool = True) -> tuple[list[Record], list[str]]:
    """``find_records``, where ``path`` may also be one record's file."""
    if not packed.holds_file(path):
        return find_records(path, needed)
    try:
        return [load(path)], []
    except BadRecord as error:
        return [], [str(error)]


def select_usable(records: list[Record], refused: list[str], where: str = "") -> tuple[list[Record], list[str]]:
    """The ``usable`` records, and sentences on the omitted ones."""
    good = usable(records)
    left = len(records) - len(good)
    said = [f"refused: {sentence}" for sentence in refused]
    return good, said + [f"note: {left} failed, profiled or interrupted runs{where} are left out"] * bool(left)


def usable(records: list[Record]) -> list[Record]:
    """The records whose throughput is a result: successful, not interrupted, not slowed by the profiler, and not of an
    earlier attempt at a round."""
    earlier = {record.run_id for suite in suites_of(records) for record in suite.left_out if suite.n}
    good = [record for record in records if record.ok and not record.config.profile and not record.interruptions]
    return [record for record in good if record.run_id not in earlier]


def confidence_of(records: list[Record]) -> float:
    """The confidence of an interval from these records: higher if some belong to a suite with interim analyses."""
    return formulas.confidence_per_look(CONFIDENCE, max(len(record.looks) for record in records) or 1)


def of_program(name: str) -> bool:
    """Whether an option, such as the device, belongs to the program and not to the work."""
    return (name in names(*PROGRAM) and name != "device") or name == "machines"


def of_place(record: Record) -> dict[str, str]:
    """Other keys that separate records: the network, and the layout of several machines ("" for one)."""
    return {"network": record.network or "not named", "machines": record.layout}


def label(values: dict) -> str:
    """``ddp 2 bucket_cap_mb=1``: mode, devices, the machines if several, and each backend option not at its default."""
    options = [
        f"{name}={option_value(value)}"
        for name, value in values.items()
        if of_program(name) and name not in ("mode", "num_devices", "launcher", "machines") and value != UNSET[name]
    ]
    where = [f"on {values['machines']}"] if values.get("machines") else []
    return " ".join([values["mode"], str(values["num_devices"]), *where, *options])


@dataclass(frozen=True, order=True)
class Machine:
    """The machine of a record. Equal machines count as one: records name no owner."""

    device: str  # cpu | cuda
    hardware: str  # processor and kinds of GPU, not how many: a row's name says how many were used
    versions: str
    network: str = ""

    def line(self) -> str:
        parts = [f"{'CPU only: ' if self.device == 'cpu' else ''}{self.hardware}", self.versions]
        return "; ".join([*parts, *filter(None, [self.network])])


class Group:
    """The records of one program (``ddp 2``) on one machine and workload, with one total of threads. apart: another
    group differs only in threads."""

    def __init__(self, machine: Machine, workload: str, name: str, records: list[Record], apart: bool):
        self.machine, self.workload, self.name, self.records = machine, workload, name, records
        self.first, self.n, self.disturbed = records[0], len(records), bool(worst(records))
        config, self.threads = self.first.config, self.first.threads_total
        self.num_devices = config.num_devices
        self.title = f"{name}, {self.threads} threads" if apart else name
        by_gpu = PLAIN if self.first.on_gpu else {}  # chosen by the bench, so not an option of the program
        self.plain = label(to_dict(config) | by_gpu) == f"{config.mode} {self.num_devices}"
        self.throughputs = [record.throughput for record in records]
        self.mean = statistics.geometric_mean(self.throughputs)
        self.interval = None  # Student's 95 % interval of the mean
        if self.n >= stats.FEWEST_ROUNDS:
            quantile = stats.t_quantile(self.n - 1, confidence_of(records))
            self.interval = formulas.log_ratio_interval([1.0] * self.n, self.throughputs, quantile)[1:]


class Panel:
    """Groups that may stand side by side, sorted by machine: one kind of device, one workload."""

    def __init__(self, device: str, workload: str, groups: list[Group]):
        self.device, self.workload, self.groups = device, workload, groups
        self.n, self.units = sum(group.n for group in groups), groups[0].first.workload.units


def machine_of(record: Record) -> Machine:
    machine, versions = record.machine, record.versions
    cpu = f"{machine.get('cpu_model') or 'unknown CPU'}, {cores_in_words(machine.get('usable_cores'))}"
    known = ", ".join(f"{name} {str(versions[name]).split('+')[0]}" for name in VERSIONS if versions.get(name))
    device = record.topology["device"]
    gpus = " and ".join(dict.fromkeys(gpu.get("name") or "unnamed GPU" for gpu in record.gpus))
    hardware = cpu if device == "cpu" else f"{gpus or 'unnamed GPU'} ({cpu})"
    return Machine(device, hardware, known or "versions unknown", record.network or "")


def workload_of(record: Record) -> str:
    """The workload in words, with every option of the work that is not at its default."""
    config = record.config
    size = f" {config.image_size} px" if config.image_size else ""
    options = {name: getattr(config, name) for name in names(*WORK) if name not in NOT_SAID}
    said = [f"{name} {option_value(options.pop(name))}" for name in ALWAYS_SAID if options[name]]
    said += [f"{name} {option_value(value)}" for name, value in options.items() if value != UNSET[name]]
    parts = [f"{config.model}, {config.data}{size}, {record.global_batch} {record.workload.batched} per step"]
    parts += [config.precision, config.optimizer, *said]
    return ", ".join([*parts, f"{config.warmup_steps} warm-up + {config.timed_steps} timed steps"])


def panels_of(records: list[Record]) -> list[Panel]:
    """Good records by device kind and workload, CPU first, then by the number of machines. Runs with different numbers
    of threads are separate groups."""

    def group_of(record: Record) -> tuple:
        name = label(to_dict(record.config) | of_place(record))
        return machine_of(record), workload_of(record), name, record.threads_total

    found = group_by(records, group_of)
    several = collections.Counter(key[:3] for key in found)
    groups = [Group(*key[:3], same, several[key[:3]] > 1) for key, same in found.items()]
    groups.sort(key=lambda group: (group.machine, group.num_devices, group.name, group.threads or 0))
    by_panel = group_by(groups, lambda group: (group.machine.device, group.workload))
    panels = [Panel(*key, same) for key, same in by_panel.items()]
    return sorted(panels, key=lambda p: (p.device, -len({g.machine for g in p.groups}), -p.n, p.workload))


def machines_of(panels: list[Panel]) -> dict[Machine, str]:
    """A short name for each machine, M1, M2, …, the same in the table and in the picture."""
    found = sorted({group.machine for panel in panels for group in panel.groups})
    return {machine: f"M{i}" for i, machine in enumerate(found, start=1)}


def once(records: list[Record]) -> tuple[list[Record], list[str]]:
    """Each run once, and sentences on the omitted records: copies, and runs whose copies differ (one was edited)."""
    kept, said, copies = [], [], 0
    for run_id, same in group_by(records, lambda record: record.run_id).items():
        if all(record.data == same[0].data for record in same):
            kept.append(same[0])
            copies += len(same) - 1
        else:
            said.append(f"refused: {len(same)} records of run {run_id} do not agree: all are left out")
    return kept, said + ([f"note: {copies} copies of records are counted once"] if copies else [])


def pool(folder: Path) -> tuple[list[Record], list[str]]:
    """The records below a folder that can be pooled, and a sentence for each omission. Raises UserError without any."""
    found, refused = find_records(folder)
    records, copies = once(found)
    good, said = select_usable(records, refused)
    said += copies
    disturbed = sum(bool(disturbances_of(record)) for record in good)
    said += [f"note: {disturbed} of {len(good)} runs were disturbed: their rows are grey"] if disturbed else []
    if not good:
        raise UserError("; ".join([f"no record below {folder} can be pooled", *said]))
    return good, said


def grid(panel: Panel, names: dict[Machine, str]) -> Grid:
    head = [("machine", False), ("mode", False), ("threads", True), (f"{panel.units}/s", True), ("95 %", True),
            ("n", True)]  # fmt: skip
    rows = [
        [names[g.machine], f"{g.name}, {LABEL}" if g.disturbed else g.name, str(g.threads or "unknown"),
         f"{g.mean:.1f}", words.span(*g.interval, ".1f") if g.interval else "too few records", str(g.n)]
        for g in panel.groups
    ]  # fmt: skip
    kind = "CPU" if panel.device == "cpu" else "GPU"
    grey = frozenset(i for i, g in enumerate(panel.groups) if g.disturbed)
    return Grid(head, rows, f"{kind}: {panel.workload}, n = {panel.n}", grey)
