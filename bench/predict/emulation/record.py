"""The plan of `bench cluster emulate`, its record RUN_DIR/emulation.json (bench/record/definition.py), and its tables.

The record contains seconds of this machine, which are divided by the dilation when it is read. Tables of runs,
comparisons and pools ignore it. No torch is imported.
"""

import dataclasses
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from bench import formulas
from bench.analysis import style
from bench.analysis.tables import Grid
from bench.cluster.plan import rate_words
from bench.config import tasks
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.predict.step.profile import Profile
from bench.record.read import check_ranks, parsed
from bench.record.schema import BadRecord, check_kind
from bench.record.summary import disturbance
from bench.record.view import Record
from bench.record.write import frame, nodes_of, save

VERSION = 1
KIND = "emulated"
NAME = "emulation.json"  # config.leaves
CONFIDENCE = 0.95
CROWDED = 0.7  # of the CPU; above it waits end late
MODES_EMULATED = tuple(name for name, info in MODES.items()
                       if not (info.one_process or info.baseline) and info.same_update)  # fmt: skip
PROVENANCE = {
    "step_time_s": "monotonic clock of each rank from the beginning of a step to its end, in seconds of this machine: "
    "dilation times those that are emulated; a step's time is that of its slowest rank",
    "phase_time_s": "the same, of each phase; what is before them is the rest of a step of the profile",
    "computation": "not done: a wait as long as the profile's step took, times the dilation and one of its timed steps "
    "over their median, drawn by each rank for each step",
    "communication": "done: by the mode's own engine, with gradients of the profile's sizes",
    "timeline": "with PROFILE=1, of rank 0: one more step, for which no rank draws; seconds of this machine from the "
    "step's beginning; compute is what is waited for, and a bucket is from its launch, so waiting for others is in it",
    "load": "the operating system's counters, from before the first timed step to after the last",
}


@dataclass(frozen=True)
class Plan:
    """dilate: the factor by which computation and links are slowed. rate_mbit (None: no limit), latency_ms: of the
    emulated links, before dilation."""

    profile: Profile
    dilate: float = 1.0
    rate_mbit: float | None = None
    latency_ms: float = 0.0

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)

    def put(self, path: Path) -> str:
        """Write it, and return what the config of a run carries: a profile is too long for an option's value."""
        path.write_text(json.dumps(self.to_dict()))
        return tasks.text_of("emulate", str(path.resolve()))


def read_plan(probe: str) -> Plan:
    _, path = tasks.parse(probe)
    return msgspec.json.decode(Path(path).read_text(), type=Plan)


def draw_factors(factors: tuple[float, ...], seed: int, rank: int) -> Iterator[float]:
    """A rank's steps over the median: for each, one of the profile's timed steps is drawn.

    >>> draws = [draw_factors((0.9, 1.0, 1.1), 0, rank) for rank in (0, 0, 1)]
    >>> first, again, other = [[next(draw) for _ in range(8)] for draw in draws]
    >>> first == again, first == other
    (True, False)
    """
    draw = random.Random(f"{seed} {rank}")
    while True:
        yield draw.choice(factors)


def write(run_dir: Path, config: RunConfig, plan: Plan, topology, environment: dict, parts: list[dict], facts: dict):
    nodes, head = nodes_of(parts), frame(run_dir, config.labelled(probe=None), "ok")
    kept = ("rank", "step_time_s", "phase_time_s", "load", "timeline")
    record = {
        "emulation_version": VERSION,
        "kind": label(plan.dilate),
        **{name: head[name] for name in ("run_id", "status", "started_at", "config", "network") if name in head},
        "plan": plan.to_dict(),
        "topology": {"world_size": topology.world_size, "num_devices": topology.num_devices, "device": "cpu"},
        "environment": environment,
        "nodes": nodes,
        "facts": {name: facts[name] for name in ("gradient", "compression") if name in facts},
        "samples": [{name: part[name] for name in kept if name in part} for part in parts],
        "provenance": PROVENANCE,
    }
    save(run_dir, record, NAME, "EmulatedRun")


def label(dilate: float) -> str:
    return KIND if dilate == 1 else f"{KIND}, ×{dilate:g}"


@dataclass(frozen=True, eq=False)
class EmulationRecord(Record):
    FORM = "EmulatedRun"

    @property
    def kind(self) -> str:
        return label(self.plan.dilate)

    @property
    def program(self) -> str:
        return f"{self.config.mode}, {self.kind}"

    @cached_property
    def plan(self) -> Plan:
        return msgspec.convert(self.data["plan"], Plan)

    @property
    def samples(self) -> list:
        return []  # it has no steps of a training

    @property
    def steps_s(self) -> list[float]:
        times = formulas.slowest_rank([part.step_time_s for part in self.form.samples])
        return [seconds / self.plan.dilate for seconds in times]

    @property
    def throughput(self) -> float:
        """Units of the workload per second, over all devices."""
        return self.num_devices * self.plan.profile.units / statistics.fmean(self.steps_s)

    @property
    def phases_s(self) -> dict[str, float]:
        """The mean of each phase on the rank that was slowest over all steps."""
        slowest = max(self.form.samples, key=lambda part: sum(part.step_time_s))
        return {name: statistics.fmean(times) / self.plan.dilate for name, times in slowest.phase_time_s.items()}

    @property
    def timeline(self) -> list[dict] | None:
        """The spans of one step of rank 0, as in a run's record; None without PROFILE=1."""
        found = self.form.samples[0].timeline
        return found and [
            span | {name: span[name] / self.plan.dilate for name in ("start_s", "end_s")} for span in found["spans"]
        ]

    @property
    def cpu_share(self) -> float:
        load = self.form.samples[0].load
        return load["machine_cpu_s"] / (load["cores"] * load["wall_s"])


def load(path: Path) -> EmulationRecord:
    """Raises BadRecord for a file that is truncated, edited or of another version."""
    path = Path(path)
    return checked(parsed(path), path)


def checked(data, path: Path) -> EmulationRecord:
    run = check_kind(data, path, "EmulatedRun", "emulation_version", VERSION, "version {} of an emulation's record")
    check_ranks(run.samples, run.topology, path)
    if len({len(column) for part in run.samples for column in (part.step_time_s, *part.phase_time_s.values())}) > 1:
        raise BadRecord(f"{path}: not a valid record: samples: columns of different lengths")
    parts = [{"load": part.load, "devices": []} for part in run.samples]
    return EmulationRecord(data | {"summary": disturbance(parts)}, str(path.parent), checked=run)


# --- in a table and in words --------------------------------------------------------------------------------------


def grid(record: EmulationRecord) -> Grid:
    profile, steps = record.plan.profile, record.steps_s
    middle, low, high = formulas.median_interval(steps, CONFIDENCE)
    interval = "" if low is None else f" [{style.number(1e3 * low)}–{style.number(1e3 * high)}]"
    efficiency = formulas.scaling_efficiency(record.throughput, profile.throughput, record.num_devices)
    head = [("mode", False), ("nodes", True), ("step ms, median [95 %]", True), ("mean", True), ("n", True),
            (f"{profile.unit}/s", True), ("efficiency", True)]  # fmt: skip
    row = [record.program, str(record.num_devices), f"{style.number(1e3 * middle)}{interval}",
           style.number(1e3 * statistics.fmean(steps)), str(len(steps)), style.number(record.throughput),
           f"{100 * efficiency:.0f} %"]  # fmt: skip
    return Grid(head, [row], f"{record.kind}, not measured in training")


def provenance_lines(record: EmulationRecord) -> list[str]:
    plan, profile = record.plan, record.plan.profile
    rate = "without a limit" if plan.rate_mbit is None else f"of {rate_words(plan.rate_mbit)}"
    delay = f", {plan.latency_ms:g} ms one way" if plan.latency_ms else ""
    slowed = (f"; computation and links are {plan.dilate:g} times slower; times are divided by that" if plan.dilate > 1
              else "")  # fmt: skip
    return [
        f"{record.kind}: {profile.what}",
        f"computation: waits as long as in {profile.source} ({profile.machine})",
        f"links: {rate}{delay}, between {record.network or 'processes of one machine'}{slowed}",
    ]


def answer(record: EmulationRecord) -> list[str]:
    """The phases of a step, and a warning if the CPU was busy."""
    phases = ", ".join(f"{name} {style.number(1e3 * seconds)} ms" for name, seconds in record.phases_s.items())
    lines = [f"the rank that was slowest: {phases}"]
    if record.cpu_share > CROWDED:
        lines.append(f"warning: {100 * record.cpu_share:.0f} % of this machine's CPU was in use, so waits ended late: "
                     "use fewer nodes, a lower RATE or a larger DILATE")  # fmt: skip
    return lines
