"""Records of many machines, by machine and workload, in one table and one picture.

Records are only read. Files that are no good record are named and the rest is used; a record that is there twice counts
once; two records of one run that do not agree are left out, because one of them was edited. CPU workers are never shown
next to GPUs, nor two workloads together.
"""

import collections
import datetime
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench import formulas
from bench.analysis import stats, words
from bench.analysis.suite import group_by
from bench.analysis.tables import Grid
from bench.config.options import PLAIN, UNSET, WORK, names, to_dict
from bench.errors import UserError
from bench.measure.environment import cores_in_words
from bench.record.disturbance import LABEL, disturbances_of, worst
from bench.record.read import find_records
from bench.record.view import Record
from bench.report.grouping import confidence_of, label, of_place, usable
from bench.studies.programs import shown

VERSIONS = ("python", "torch", "horovod", "cuda", "nccl")
ALWAYS_SAID = ("lr", "momentum", "weight_decay", "workers", "epochs")  # where they are not 0
# Options of the work that are given in another form, or do not change it: the global batch represents the batch per
# device, so that one process and two share a panel, and another seed is as much work.
NOT_SAID = ("model", "data", "image_size", "per_device_batch", "precision", "optimizer", "warmup_steps", "timed_steps",
            "seed")  # fmt: skip


@dataclass(frozen=True, order=True)
class Machine:
    """What a record was taken on. Machines that agree in all of it are one here: records name no owner."""

    device: str  # cpu | cuda
    hardware: str  # the kinds of GPU, not how many: a row's name says how many were used; and the processor
    versions: str
    network: str = ""  # what is said of it

    def line(self) -> str:
        parts = [f"{'CPU only: ' if self.device == 'cpu' else ''}{self.hardware}", self.versions]
        return "; ".join([*parts, *filter(None, [self.network])])


@dataclass(frozen=True, eq=False)
class Group:
    """The records of one program on one machine and workload, with one number of threads. name: as in ``ddp 2``. apart:
    the same program ran there with another number of threads, too: that is another group."""

    machine: Machine
    workload: str
    name: str
    records: list[Record]
    apart: bool

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def num_devices(self) -> int:
        return self.first.config.num_devices

    @property
    def threads(self) -> int | None:
        """In total, over all processes."""
        return self.first.threads_total

    @property
    def title(self) -> str:
        return f"{self.name}, {self.threads} threads" if self.apart else self.name

    @property
    def throughputs(self) -> list[float]:
        return [record.throughput for record in self.records]

    @property
    def n(self) -> int:
        return len(self.records)

    @property
    def disturbed(self) -> bool:
        return bool(worst(self.records))

    @property
    def plain(self) -> bool:
        """A mode as it comes, without an engine option or a part of the step taken away. What is chosen by the GPU is
        no option of an engine."""
        config, by_gpu = self.first.config, PLAIN if self.first.on_gpu else {}
        return label(to_dict(config) | by_gpu) == f"{config.mode} {self.num_devices}"

    @property
    def mean(self) -> float:
        return statistics.geometric_mean(self.throughputs)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of that mean; None for fewer than FEWEST_ROUNDS records."""
        if self.n < stats.FEWEST_ROUNDS:
            return None
        quantile = stats.t_quantile(self.n - 1, confidence_of(self.records))
        _, low, high = formulas.log_ratio_interval([1.0] * self.n, self.throughputs, quantile)
        return low, high


@dataclass(frozen=True)
class Panel:
    """Groups that may stand side by side: one kind of device, one workload."""

    device: str
    workload: str
    groups: list[Group]  # machine by machine

    @property
    def n(self) -> int:
        return sum(group.n for group in self.groups)

    @property
    def units(self) -> str:
        return self.groups[0].first.workload.units


def machine_of(record: Record) -> Machine:
    machine, versions = record.machine, record.versions
    cpu = f"{machine.get('cpu_model') or 'unknown CPU'}, {cores_in_words(machine.get('usable_cores'))}"
    known = ", ".join(f"{name} {str(versions[name]).split('+')[0]}" for name in VERSIONS if versions.get(name))
    device = record.topology["device"]
    gpus = " and ".join(dict.fromkeys(gpu.get("name") or "unnamed GPU" for gpu in record.gpus))
    hardware = cpu if device == "cpu" else f"{gpus or 'unnamed GPU'} ({cpu})"
    return Machine(device, hardware, known or "versions unknown", record.network or "")


def workload_of(record: Record) -> str:
    """What was computed, in words: every option of the work that is not at its default, so a new one separates
    workloads."""
    config = record.config
    size = f" {config.image_size} px" if config.image_size else ""
    options = {name: getattr(config, name) for name in names(*WORK) if name not in NOT_SAID}
    said = [f"{name} {shown(options.pop(name))}" for name in ALWAYS_SAID if options[name]]
    said += [f"{name} {shown(value)}" for name, value in options.items() if value != UNSET[name]]
    parts = [f"{config.model}, {config.data}{size}, {record.global_batch} {record.workload.batched} per step"]
    parts += [config.precision, config.optimizer, *said]
    return ", ".join([*parts, f"{config.warmup_steps} + {config.timed_steps} steps"])


def panels_of(records: list[Record]) -> list[Panel]:
    """Good records by device kind and workload, CPU first, then by the number of machines. Runs with different numbers
    of threads are groups of their own."""

    def group_of(record: Record) -> tuple:
        name = label(to_dict(record.config) | of_place(record))
        return machine_of(record), workload_of(record), name, record.threads_total

    found = group_by(records, group_of)
    several = collections.Counter(key[:3] for key in found)
    groups = [
        Group(machine, workload, name, same, several[machine, workload, name] > 1)
        for (machine, workload, name, _), same in found.items()
    ]
    keys = dict.fromkeys((group.machine.device, group.workload) for group in groups)
    panels = [
        Panel(*key, sorted((g for g in groups if (g.machine.device, g.workload) == key), key=place)) for key in keys
    ]
    return sorted(panels, key=lambda p: (p.device, -len({g.machine for g in p.groups}), -p.n, p.workload))


def place(group: Group) -> tuple:
    return group.machine, group.num_devices, group.name, group.threads or 0


def machines_of(panels: list[Panel]) -> dict[Machine, str]:
    """A short name for each machine, M1, M2, …, the same in the table and in the picture."""
    found = sorted({group.machine for panel in panels for group in panel.groups})
    return {machine: f"M{i}" for i, machine in enumerate(found, start=1)}


def once(records: list[Record]) -> tuple[list[Record], list[str]]:
    """Each run once, and sentences on what was left out: copies, and runs whose copies do not agree."""
    by_run = group_by(records, lambda record: record.run_id)
    agreeing = {run_id for run_id, same in by_run.items() if all(r.data == same[0].data for r in same)}
    kept = [same[0] for run_id, same in by_run.items() if run_id in agreeing]
    said = [
        f"refused: {len(same)} records of run {run_id} do not agree: all are left out"
        for run_id, same in by_run.items()
        if run_id not in agreeing
    ]
    copies = sum(len(by_run[run_id]) - 1 for run_id in agreeing)
    return kept, said + ([f"note: {copies} copies of records are counted once"] if copies else [])


def pool(folder: Path) -> tuple[list[Record], list[str]]:
    """The records below a folder that can be pooled, and a sentence on all that is left out. Raises UserError without
    any."""
    found, refused = find_records(folder)
    records, said = once(found)
    good = usable(records)
    said = [f"refused: {sentence}" for sentence in refused] + said
    left = len(records) - len(good)
    said += [f"note: {left} failed, profiled or interrupted runs are left out"] if left else []
    disturbed = sum(bool(disturbances_of(record)) for record in good)
    said += [f"note: {disturbed} of {len(good)} runs were disturbed: their rows are grey"] if disturbed else []
    if not good:
        raise UserError("; ".join([f"no record below {folder} can be pooled", *said]))
    return good, said


def new_folder(out: Path, now: datetime.datetime) -> Path:
    """A folder that did not exist before: OUT/pool-<time>, numbered when that is taken. Raises UserError."""
    for i in range(1, 1000):
        path = Path(out) / (f"pool-{now:%Y%m%d-%H%M%S}" + (f"-{i}" if i > 1 else ""))
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not Path(out).is_dir():
                raise UserError(f"OUT={out} is not a folder") from None
        except OSError as error:
            raise UserError(f"OUT={out} cannot be written: {error.strerror}") from None
    raise UserError(f"OUT={out} holds too many pools of this second")


def grid(panel: Panel, names: dict[Machine, str]) -> Grid:
    head = [("machine", False), ("mode", False), ("threads", True), (f"{panel.units}/s", True), ("95 %", True),
            ("n", True)]  # fmt: skip
    rows = [
        [names[g.machine], f"{g.name}, {LABEL}" if g.disturbed else g.name, str(g.threads or "unknown"),
         f"{g.mean:.1f}",
         words.span(*g.interval, ".1f") if g.interval else "too few records", str(g.n)]
        for g in panel.groups
    ]  # fmt: skip
    kind = "CPU" if panel.device == "cpu" else "GPU"
    grey = frozenset(i for i, g in enumerate(panel.groups) if g.disturbed)
    return Grid(head, rows, f"{kind}: {panel.workload}, n = {panel.n}", grey)
