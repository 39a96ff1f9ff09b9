"""What `bench emulate` leaves: RUN_DIR/emulation.json, checked against bench/record/definition.py.

It is a kind of its own: no table of runs, no pool and no comparison takes it, and no certificate is made of it. Its
samples are seconds of this machine; what they stand for is those over the dilation, by which its figures are divided
when it is read.
"""

import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench import formulas
from bench.config.options import RunConfig
from bench.predict.emulation.plan import NAME, Plan, from_dict
from bench.record.read import check_ranks, parsed
from bench.record.schema import BadRecord, check_kind
from bench.record.summary import disturbance
from bench.record.view import Record
from bench.record.write import frame, nodes_of, save

VERSION = 1
KIND = "emulated"
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


def write(run_dir: Path, config: RunConfig, plan: Plan, topology, environment: dict, parts: list[dict], facts: dict):
    """Rank 0: put the ranks' parts together. Raises BadRecord, OSError."""
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
    """What every figure of it is called.

    >>> label(1.0), label(40.0)
    ('emulated', 'emulated, ×40')
    """
    return KIND if dilate == 1 else f"{KIND}, ×{dilate:g}"


@dataclass(frozen=True, eq=False)
class EmulationRecord(Record):
    """A record of an emulation; environment, nodes and disturbance are read as a run's. Seconds are those emulated."""

    FORM = "EmulatedRun"

    @property
    def kind(self) -> str:
        """ "emulated", with the dilation."""
        return label(self.plan.dilate)

    @property
    def program(self) -> str:
        """Its mode, with what it is: wherever it stands beside runs."""
        return f"{self.config.mode}, {self.kind}"

    @cached_property
    def plan(self) -> Plan:
        """What was emulated."""
        return from_dict(self.data["plan"])

    @property
    def samples(self) -> list:
        """It has no steps of a training."""
        return []

    @property
    def steps_s(self) -> list[float]:
        """Each timed step, its slowest rank's."""
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
        """The spans of one step of rank 0, as a run's record has them; None without PROFILE=1."""
        found = self.form.samples[0].timeline
        return found and [
            span | {name: span[name] / self.plan.dilate for name in ("start_s", "end_s")} for span in found["spans"]
        ]

    @property
    def cpu_share(self) -> float:
        """Of this machine's CPU, what was used during the timed steps: with little left, waits end late."""
        load = self.form.samples[0].load
        return load["machine_cpu_s"] / (load["cores"] * load["wall_s"])


def load(path: Path) -> EmulationRecord:
    """One record. Raises BadRecord, which names the file, when it is truncated, edited or of another version."""
    path = Path(path)
    return checked(parsed(path), path)


def checked(data, path: Path) -> EmulationRecord:
    """The record that JSON from a file is. Raises BadRecord."""
    run = check_kind(data, path, "EmulatedRun", "emulation_version", VERSION, "version {} of an emulation's record")
    check_ranks(run.samples, run.topology, path)
    if len({len(column) for part in run.samples for column in (part.step_time_s, *part.phase_time_s.values())}) > 1:
        raise BadRecord(f"{path}: not a valid record: samples: columns of different lengths")
    parts = [{"load": part.load, "devices": []} for part in run.samples]
    return EmulationRecord(data | {"summary": disturbance(parts)}, str(path.parent), checked=run)
