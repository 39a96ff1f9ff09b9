"""The leaderboard of a class: how much faster than one process each student's program is, computing the same update.

What is ranked is the ratio of throughput to ``single`` of the same comparison, so another machine is no head start;
other work, another kind of device or another number of them is a table of its own. A program counts where the
certificate of it and ``single`` has nothing that differs. Programs whose intervals overlap share their places; a
comparison with a disturbed run has none. A record is a file that can be edited: run the first places again.
"""

import collections
from dataclasses import dataclass
from pathlib import Path

from bench.analysis import stats, words
from bench.analysis.certificate import NOTHING_VARIES, revision
from bench.analysis.comparison import compare_pair, require_comparable
from bench.analysis.suite import Program, Suite, suites_of
from bench.analysis.tables import Grid
from bench.errors import UserError, printable
from bench.measure.environment import source_hash
from bench.record.disturbance import LABEL
from bench.record.read import find_records
from bench.record.view import Record
from bench.report.pooling import workload_of

QUALIFYING_ROUNDS = 6
KINDS = {"cpu": "CPU workers", "cuda": "GPUs"}


@dataclass(frozen=True)
class Entry:
    """A student's best program on one work. work: what is comparable with it, in words."""

    student: str
    program: str
    work: str
    code: str
    machine: str
    comparison: stats.Comparison
    disturbed: bool

    @property
    def interval(self) -> tuple[float, float]:
        return self.comparison.low, self.comparison.high


def entries(folder: Path) -> tuple[list[Entry], list[str]]:
    """Every student's best programs, and a sentence on each that does not count. Raises UserError without students'
    folders."""
    inside = Path(folder).iterdir() if Path(folder).is_dir() else []
    students = sorted(path for path in inside if path.is_dir() and not path.name.startswith((".", "__")))
    if not students:
        raise UserError(f"{folder} has no folders in it: one per student is needed, with the records of make compare")
    records, said = {}, []
    for path in students:
        records[path.name], refused = find_records(path, needed=False)
        said += [f"{path.name}: {sentence}" for sentence in refused]
        said += [] if records[path.name] or refused else [f"{path.name}: no record.json in it"]
    handed_in = collections.Counter(record.run_id for found in records.values() for record in found)
    entered = []
    for student, found in records.items():
        own = [record for record in found if handed_in[record.run_id] == 1]
        if len(own) < len(found):
            said.append(f"{student}: {len(found) - len(own)} records were handed in twice, and count for nobody")
        before = len(said)
        try:
            its = [entry for suite in suites_of(own) for entry in of_suite(student, suite, said)]
        except UserError as error:  # what one has handed in is nobody else's matter
            said.append(f"{student}: {error}")
            continue
        if found and not its and len(said) == before:  # nobody has said why
            said.append(f"{student}: no comparison (make compare) with a program on several devices")
        entered += best_of(its)
    return entered, said


def best_of(found: list[Entry]) -> list[Entry]:
    """The highest ratio on each work, of those that were not disturbed where there are such."""
    best = {}
    for entry in sorted(found, key=lambda entry: (not entry.disturbed, entry.comparison.ratio)):
        best[entry.work] = entry
    return list(best.values())


def of_suite(student: str, suite: Suite, said: list[str]) -> list[Entry]:
    """The programs of one comparison that count. said: gets a sentence on each that does not."""
    if suite.study != "compare":
        return []
    base = next((each for each in suite.programs.values() if each.config.num_devices == 1 and not each.is_bound), None)
    if why := why_not_counted(suite, base):
        said.append(f"{student}: its comparison {suite.id} does not count: {why}")
        return []
    found = []
    for program in suite.programs.values():
        if program is base or program.is_bound or not program.config.sync:
            continue
        pair = compare_pair(suite, base.label, program.label, NOTHING_VARIES)
        if pair.flagged:
            said.append(f"{student}: {program.label} of {suite.id} does not count: {pair.certificate.sentence()}")
            continue
        code = "as here" if revision(program.first) == source_hash() else "other"
        found.append(
            Entry(student, program.label, work_of(program.first), code, suite.machine, pair.comparison, suite.disturbed)
        )
    return found


def why_not_counted(suite: Suite, base: Program | None) -> str:
    if base is None:
        return "it has no program on one device (MODE=single) to be compared with"
    if suite.n < QUALIFYING_ROUNDS:
        return f"{suite.n} whole rounds, and {QUALIFYING_ROUNDS} are needed"
    try:
        require_comparable(suite, NOTHING_VARIES)
    except UserError as error:
        return str(error).removeprefix(f"suite {suite.id} ")
    return ""


def work_of(record: Record) -> str:
    """What may stand in one table: the same work on as many devices of the same kind."""
    return f"{record.config.num_devices} {KINDS[record.config.device]}: {workload_of(record)}"


def places(found: list[Entry]) -> dict[str, tuple[int, int]]:
    """Student -> first and last place that the interval leaves open, among entries of one work that were not
    disturbed."""
    sure, placed = {}, [entry for entry in found if not entry.disturbed]
    for entry in placed:
        ahead = sum(other.interval[0] > entry.interval[1] for other in placed)
        behind = sum(other.interval[1] < entry.interval[0] for other in placed)
        sure[entry.student] = (1 + ahead, len(placed) - behind)
    return sure


def grids(found: list[Entry]) -> list[Grid]:
    head = [("place", False), ("student", False), ("program", False), ("× single", True), ("95 %", True), ("n", True),
            ("code", False), ("machine", False)]  # fmt: skip
    tables = []
    for work in sorted({entry.work for entry in found}):
        same = sorted((e for e in found if e.work == work), key=lambda e: (e.disturbed, -e.comparison.ratio))
        open_to = places(same)
        rows = [
            [LABEL if e.disturbed else "–".join(map(str, dict.fromkeys(open_to[e.student]))), printable(e.student),
             e.program, f"{e.comparison.ratio:.3f}",
             words.span(*e.interval, ".3f"), str(e.comparison.n), e.code, e.machine]
            for e in same
        ]  # fmt: skip
        tables.append(Grid(head, rows, work, frozenset(i for i, e in enumerate(same) if e.disturbed)))
    return tables
