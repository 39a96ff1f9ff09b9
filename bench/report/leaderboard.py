"""The leaderboard of a class, by the ratio of throughput to ``single`` of the same comparison.

Each kind and number of devices and each workload has its own table. A program counts only if its certificate with
``single`` shows no difference. Programs whose intervals overlap share their ranks; disturbed comparisons get none.
Records can be edited: repeat the first places yourself."""

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
from bench.report.pooling import workload_of

QUALIFYING_ROUNDS = 6
KINDS = {"cpu": "CPU processes", "cuda": "GPUs"}


@dataclass(frozen=True)
class Entry:
    """A student's best program on one workload."""

    student: str
    program: str
    work: str  # workload, kind and number of devices: the key of a table
    code: str
    machine: str
    comparison: stats.Comparison
    disturbed: bool


def entries(folder: Path) -> tuple[list[Entry], list[str]]:
    """Every student's best programs, and a sentence on each that is not counted. folder: one folder per student inside;
    raises UserError without any."""
    inside = Path(folder).iterdir() if Path(folder).is_dir() else []
    students = sorted(path for path in inside if path.is_dir() and not path.name.startswith((".", "__")))
    if not students:
        raise UserError(f"{folder} contains no folders: it needs one per student, with the records of make compare")
    records, said = {}, []
    for path in students:
        records[path.name], refused = find_records(path, needed=False)
        said += [f"{path.name}: {sentence}" for sentence in refused]
        said += [] if records[path.name] or refused else [f"{path.name}: contains no record.json"]
    handed_in = collections.Counter(record.run_id for found in records.values() for record in found)
    entered = []
    for student, found in records.items():
        own = [record for record in found if handed_in[record.run_id] == 1]
        if len(own) < len(found):
            said.append(
                f"{student}: {len(found) - len(own)} records were handed in twice and are not counted for anyone"
            )
        before = len(said)
        try:
            its = [entry for suite in suites_of(own) for entry in of_suite(student, suite, said)]
        except UserError as error:
            said.append(f"{student}: {error}")
            continue
        if found and not its and len(said) == before:
            said.append(f"{student}: no comparison (make compare) with a configuration on several devices")
        its.sort(key=lambda entry: (not entry.disturbed, entry.comparison.ratio))
        entered += {entry.work: entry for entry in its}.values()  # the last of each workload: the best
    return entered, said


def of_suite(student: str, suite: Suite, said: list[str]) -> list[Entry]:
    """The programs of one comparison that count; a sentence on each other is appended to ``said``."""
    if suite.study != "compare":
        return []
    base = next((each for each in suite.programs.values() if each.config.num_devices == 1 and not each.is_bound), None)
    if why := why_not_counted(suite, base):
        said.append(f"{student}: its comparison {suite.id} is not counted: {why}")
        return []
    found = []
    for program in suite.programs.values():
        if program is base or program.is_bound or not program.config.sync:
            continue
        pair = compare_pair(suite, base.label, program.label, NOTHING_VARIES)
        if pair.flagged:
            said.append(f"{student}: {program.label} of {suite.id} is not counted: {pair.certificate.sentence()}")
            continue
        code, config = "as here" if revision(program.first) == source_hash() else "other", program.config
        work = f"{config.num_devices} {KINDS[config.device]}: {workload_of(program.first)}"
        found.append(Entry(student, program.label, work, code, suite.machine, pair.comparison, suite.disturbed))
    return found


def why_not_counted(suite: Suite, base: Program | None) -> str:
    if base is None:
        return "it has no configuration on one device (MODE=single) as baseline"
    if suite.n < QUALIFYING_ROUNDS:
        return f"{suite.n} complete rounds, but {QUALIFYING_ROUNDS} are needed"
    try:
        require_comparable(suite, NOTHING_VARIES)
    except UserError as error:
        return str(error).removeprefix(f"suite {suite.id} ")
    return ""


def place(entry: Entry, found: list[Entry]) -> str:
    """The best and worst possible rank by the interval among undisturbed entries of one workload."""
    if entry.disturbed:
        return LABEL
    mine, placed = entry.comparison, [each.comparison for each in found if not each.disturbed]
    ahead = sum(other.low > mine.high for other in placed)
    behind = sum(other.high < mine.low for other in placed)
    return "–".join(map(str, dict.fromkeys((1 + ahead, len(placed) - behind))))


def grids(found: list[Entry]) -> list[Grid]:
    head = [("place", False), ("student", False), ("configuration", False), ("× single", True), ("95 % CI", True),
            ("n", True), ("code", False), ("machine", False)]  # fmt: skip
    tables = []
    for work in sorted({entry.work for entry in found}):
        same = sorted((e for e in found if e.work == work), key=lambda e: (e.disturbed, -e.comparison.ratio))
        rows = [
            [place(e, same), printable(e.student), e.program, f"{e.comparison.ratio:.3f}",
             words.span(e.comparison.low, e.comparison.high), str(e.comparison.n), e.code, e.machine]
            for e in same
        ]  # fmt: skip
        tables.append(Grid(head, rows, work, frozenset(i for i, e in enumerate(same) if e.disturbed)))
    return tables
