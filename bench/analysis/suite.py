"""Suites: records of a set of configurations, run in interleaved rounds."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.analysis import stats
from bench.config.modes import MODES
from bench.config.options import PROGRAM, WORK, RunConfig, names
from bench.config.workloads import Metric
from bench.record.describe import machine_line
from bench.record.disturbance import in_words, worst
from bench.record.view import Record

CHOSEN = "chosen"  # a configuration named by the user (MODES=)
VARIANTS = ("base", "fair", "unfair", "right", "wrong")  # in the order in which they are shown


@dataclass(frozen=True, eq=False)
class Program:
    label: str
    records: list[Record]

    @property
    def first(self) -> Record:
        """Its record in the first round: all rounds have the same config, except for the seed in some studies."""
        return self.records[0]

    @property
    def config(self) -> RunConfig:
        return self.first.config

    @property
    def is_bound(self) -> bool:
        return self.first.mode.baseline

    @cached_property
    def throughputs(self) -> list[float]:
        return [record.throughput for record in self.records]

    def overrides(self, base: "Program") -> dict:
        options = names(*WORK, *PROGRAM)
        return {n: getattr(self.config, n) for n in options if getattr(self.config, n) != getattr(base.config, n)}

    @property
    def mean_throughput(self) -> tuple[float, float | None, float | None]:
        """Geometric mean over the rounds with its 95 % interval, None for a preview; examples per second."""
        return stats.interval([1.0] * len(self.throughputs), self.throughputs, 0.95)


@dataclass(frozen=True)
class Suite:
    id: str
    study: str
    programs: dict[str, Program]  # by label, the base first; of each only the records of ``rounds``
    rounds: list[int]  # in which every program succeeded, so that rounds can be paired
    extra: list[Record]  # valid records outside the rounds: profiled runs
    failed: list[Record]
    left_out: list[Record]  # good records that do not count: of incomplete rounds, or of earlier attempts

    @property
    def n(self) -> int:
        return len(self.rounds)

    @property
    def counted(self) -> list[Record]:
        return [record for program in self.programs.values() for record in program.records]

    @property
    def records(self) -> list[Record]:
        """The records of all programs; those of the profiled runs if no round is complete."""
        return self.counted or self.extra

    @property
    def first(self) -> Record:
        """Any valid record: machine, device and workload are the same in all."""
        return self.records[0]

    @property
    def folder(self) -> Path:
        return Path(self.first.folder).parent

    @property
    def device(self) -> str:
        return self.first.config.device

    @cached_property
    def disturbance(self) -> str:
        """What disturbed the counted runs, in words; "" if nothing did, and for trainings by epochs."""
        records = self.counted
        return "" if not records or records[0].config.epochs else in_words(worst(records))

    @property
    def disturbed(self) -> bool:
        return bool(self.disturbance)

    @property
    def looks(self) -> list[int]:
        """The rounds of the interim analyses; empty for a fixed number of rounds."""
        return self.first.looks

    @property
    def seeded(self) -> bool:
        return len({record.config.seed for record in self.counted}) > 1

    @property
    def metric(self) -> Metric:
        """The first metric of its workload, by which accuracies are compared."""
        return self.first.workload.metrics[0]

    @property
    def units(self) -> str:
        return self.first.workload.units

    @property
    def machine(self) -> str:
        """Machine, devices and versions in one line, from a record with the most devices."""
        return machine_line(max(self.records, key=lambda record: record.config.num_devices))

    def of_variant(self, variant: str) -> Program | None:
        return next((p for p in self.programs.values() if p.config.label.variant == variant), None)


def suites_of(records: list[Record]) -> list[Suite]:
    suites = [suite_of(name, group) for name, group in by_suite(records).items()]
    return [suite for suite in suites if suite.programs or suite.extra]


def suites_and_others(records: list[Record]) -> tuple[list[Suite], list[Record]]:
    suites = suites_of(records)
    shown = {suite.id for suite in suites}
    return suites, [record for record in records if record.label.suite not in shown]


def by_suite(records: list[Record]) -> dict[str, list[Record]]:
    return group_by((record for record in records if record.label.suite), lambda record: record.label.suite)


def group_by(items: Iterable, key: Callable) -> dict:
    """Key -> its items, both in the order of the items."""
    found = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def suite_of(name: str, records: list[Record]) -> Suite:
    """One suite from its records in any order. Of a round that was repeated the last complete attempt counts."""
    good = [record for record in sorted(records, key=lambda r: r.started_at) if record.ok]
    timed = [record for record in good if not record.config.profile]
    table = {
        label: group_by(theirs, lambda record: record.label.round or 0)
        for label, theirs in group_by(timed, lambda record: record.program).items()
    }
    rounds = sorted(set.intersection(*map(set, table.values()))) if table else []
    last = {n: min(len(by_round[n]) for by_round in table.values()) - 1 for n in rounds}
    programs = [Program(label, [by_round[n][last[n]] for n in rounds]) for label, by_round in table.items() if rounds]
    counted = {id(record) for program in programs for record in program.records}
    return Suite(
        name,
        records[0].label.study or "",
        {program.label: program for program in in_order(programs)},
        rounds,
        [record for record in good if record.config.profile],
        [record for record in records if record.status == "failed"],
        [record for record in timed if id(record) not in counted],
    )


def in_order(programs: list[Program]) -> list[Program]:
    """The programs in display order: the base is the first.

    By variant; few devices before many if a mode runs on several numbers of them; with exchange before without; the
    modes in the table's order; a backend's defaults before its settings, these by their values.
    """
    sizes = {(program.config.mode, program.config.num_devices) for program in programs}
    scales = len(sizes) > len({mode for mode, _ in sizes})

    def place(program: Program) -> tuple:
        config = program.config
        return (
            VARIANTS.index(config.label.variant) if config.label.variant in VARIANTS else 0,
            config.num_devices if scales else 0,
            not config.sync,
            list(MODES).index(config.mode),
            natural(program.label),
        )

    return sorted(programs, key=place)


def natural(text: str) -> list:
    words = re.findall(r"\d+\.?\d*|\D+", text)
    return [(0, float(word), "") if word[0].isdigit() else (1, 0.0, word) for word in words]
