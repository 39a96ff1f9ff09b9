"""The record of ``bench time``: RUN_DIR/foreign.json, a separate kind. It is never pooled or compared with runs of
this bench, because it may compute something else. Its values are computed from its samples."""

import statistics
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from bench import formulas, mistakes
from bench.config.options import RunConfig
from bench.errors import BenchError
from bench.mistakes import Finding
from bench.record import packed
from bench.record.disturbance import observed_of
from bench.record.read import check_ranks, parsed
from bench.record.schema import BadRecord, check_kind
from bench.record.summary import disturbance
from bench.record.view import Record

VERSION = 1
NAME = "foreign.json"
KIND = "foreign script"  # in the record
TITLE = "external script"  # in tables and sentences
PROVENANCE = {
    "step_time_s": "between the ends of two steps of the optimizer that trains first, per rank, by a monotonic clock, "
    "on GPUs by CUDA events read at the end; intervals in which a DataLoader was started, or the model evaluated, are "
    "not steps (between_s)",
    "data_wait_s": "monotonic clock around the next() of torch's DataLoader iterators in the thread that trains, per "
    "rank; 0 without one",
    "watch_s": "monotonic clock around what the Watch of bench does between the ends of two steps; it is part of "
    "step_time_s",
    "throughput": "steps, or examples of all ranks, over the time of the rank that took longest for them; the examples "
    "per step are those that were given (BATCH), or that the Watch counted",
    "load": "the operating system's counters, from the end of the warm-up to the end of the script's last step or of "
    "the process",
    "peak_memory_gib": "as in a run's record, from the first step on; torch's peaks are reset after the warm-up",
}


@dataclass(frozen=True, eq=False)
class ForeignRecord(Record):
    """Environment, devices and disturbance are read as those of a run."""

    FORM = "Script"

    @property
    def name(self) -> str:
        return self.data["name"]

    @property
    def program(self) -> str:
        return f"{TITLE} {self.name}"

    @property
    def ok(self) -> bool:
        """A script that failed leaves no record."""
        return True

    @cached_property
    def config(self) -> RunConfig:
        """Only for tables of machines."""
        return replace(RunConfig(), device=self.topology["device"], num_devices=self.num_devices)

    @property
    def global_batch(self) -> int | None:
        return self.topology["global_batch"]

    @cached_property
    def samples(self) -> list:
        """A ``ScriptSample`` per rank, with the steps that all ranks have timed."""
        import msgspec  # slow to import

        shared = set.intersection(*(set(part.step_number) for part in self.form.samples))
        found = []
        for part in self.form.samples:
            kept = [place for place, number in enumerate(part.step_number) if number in shared]
            columns = {name: [getattr(part, name)[place] for place in kept] for name in ("step_time_s", "data_wait_s")}
            found.append(msgspec.structs.replace(part, **columns))
        return found

    @property
    def steps_per_s(self) -> float:
        """Over all timed steps, of the slowest rank."""
        return formulas.throughput_per_s([part.step_time_s for part in self.samples], 1)

    @property
    def throughput(self) -> float:
        return self.steps_per_s * (self.global_batch or 1)

    @property
    def unit(self) -> str:
        return "examples/s" if self.global_batch else "steps/s"

    @property
    def step_time(self) -> dict[str, float]:
        """Seconds per step of the slowest rank: n, mean, median, p5, p95."""
        steps = formulas.slowest_rank([part.step_time_s for part in self.samples])
        shares = {f"p{share}": formulas.percentile(steps, share) for share in (5, 95)}
        return {"n": len(steps), "mean": statistics.fmean(steps), "median": formulas.percentile(steps, 50)} | shares

    @property
    def wait_share(self) -> float:
        """The wait for batches as a share of the timed steps: the largest of the ranks'."""
        return max(sum(part.data_wait_s) / sum(part.step_time_s) for part in self.samples)

    @property
    def watch_share(self) -> float:
        """The Watch's time as a share of the timed steps: the largest of the ranks'."""
        return max(sum(part.watch_s) / sum(part.step_time_s) for part in self.form.samples)

    @property
    def peak_memory(self) -> list[dict]:
        return [{"rank": part.rank, **device["peak_memory_gib"]} for part in self.samples for device in part.devices]

    @cached_property
    def observed(self) -> dict:
        return self.data["observed"] or {}

    @cached_property
    def findings(self) -> list[Finding]:
        return mistakes.find(observed_of(self)) if self.observed else []


def load(path: Path) -> ForeignRecord:
    """One record. Raises BadRecord, with the file's name, when it is truncated, edited or of another version."""
    path = Path(path)
    data = parsed(path)
    script = check_kind(data, path, "Script", "foreign_version", VERSION, "version {} of an external script's record")
    check_ranks(script.samples, script.topology, path)
    for part in script.samples:
        if len({len(column) for column in (part.step_number, part.step_time_s, part.data_wait_s, part.watch_s)}) > 1:
            raise BadRecord(f"{path}: not a valid record: samples: columns of different lengths")
    if not set.intersection(*(set(part.step_number) for part in script.samples)):
        raise BadRecord(f"{path}: not a valid record: samples: no step was timed on all ranks")
    try:
        if script.observed:
            mistakes.find(script.observed)
    except Exception as error:
        raise BadRecord(f"{path}: not a valid record: observed: {type(error).__name__}: {error}") from None
    data |= {"status": "ok", "summary": disturbance(data["samples"])}
    return ForeignRecord(data, str(path.parent), checked=script)


def find(place: Path) -> tuple[list[ForeignRecord], list[str]]:
    records, refused, place = [], [], Path(place)
    for path in [place] if place.name == NAME and packed.holds_file(place) else packed.find_files(place, NAME):
        try:
            records.append(load(path))
        except BenchError as error:
            refused.append(str(error))
    return sorted(records, key=lambda record: record.started_at), refused
