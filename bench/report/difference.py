"""Compare two sets of records: two machines, two versions of torch, before and after a change.

For every configuration that both sets ran on the same workload: the ratio of B's throughput to A's with a 95 %
interval, and a verdict. The sets share no rounds, so nothing is paired: Welch's t on the logarithms of throughput, and
the Hodges–Lehmann shift with its exact rank-sum interval."""

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import formulas
from bench.analysis import stats, words
from bench.analysis.certificate import UNKNOWN, certify
from bench.analysis.suite import group_by
from bench.analysis.tables import Grid
from bench.config.options import PROGRAM, WORK, names
from bench.errors import UserError
from bench.foreign import result as foreign
from bench.foreign.record import NAME as FOREIGN
from bench.foreign.record import ForeignRecord
from bench.record.disturbance import in_words, worst
from bench.record.view import Record
from bench.report.pooling import confidence_of, label, of_place, of_program, records_at, select_usable

TIE_MARGIN = 0.02
EXACT_RECORDS = 64  # per side; the exact rank-sum distribution of more is slow, and adds nothing to Welch's interval

rank_sum_depth = functools.cache(formulas.rank_sum_depth)


@dataclass(frozen=True)
class Difference:
    """One program in both sets. Every ratio is B's throughput over A's; None with too few records. hl:
    Hodges–Lehmann."""

    name: str
    n_a: int  # records
    n_b: int
    a_throughput: float  # geometric mean, examples per second
    b_throughput: float
    ratio: float
    low: float | None  # Welch's interval
    high: float | None
    hl_ratio: float | None
    hl_low: float | None
    hl_high: float | None
    verdict: str  # as in stats.Comparison
    needed: int | None  # records a side, only when inconclusive
    outliers: list[str]  # run_ids of either side: shown, kept
    unlike: list[str]  # differences between the runs although their options are equal
    disturbance: str = ""  # disturbances of any of the runs: then there is no verdict

    @property
    def mark(self) -> str:
        return " (runs differ)" if self.unlike else ""

    def sentence(self) -> str:
        counted = f"n = {self.n_a} and {self.n_b}"
        return stats.verdict_words(self, "A", "B", counted, TIE_MARGIN, self.needed, "records per side") + self.mark

    def against(self, bound: float) -> str:
        """The interval's position relative to a slowdown of ``bound`` per cent: beyond, within, across, or unknown."""
        limit = 1 - bound / 100
        if self.low is None or self.disturbance:
            return "unknown"
        if self.high < limit:
            return "beyond"
        return "within" if self.low >= limit else "across"


@dataclass(frozen=True)
class Result:
    differences: list[Difference]
    only_a: list[str]  # programs without a partner
    only_b: list[str]
    by_threads: list[str] = dataclasses.field(default_factory=list)  # programs in groups by their threads in total

    def regressions(self, bound: float, strict: bool) -> list[str]:
        """One sentence for each program that fails the bound: its whole interval is slower. strict: also each whose
        interval is not wholly within the bound, and each without a valid record in B."""
        text = {
            "beyond": "the whole interval is slower by more than",
            "across": "the interval reaches beyond",
            "unknown": "no verdict, because runs were disturbed or are fewer than three per side: limit",
        }
        failing = text if strict else ("beyond",)
        judged = [(d, d.against(bound)) for d in self.differences]
        found = [f"{d.name}: {text[word]} {bound:g} %{d.mark}" for d, word in judged if word in failing]
        return found + [f"{name}: B has no valid record of it" for name in self.only_a if strict]


def compare_sets(a: list[Record], b: list[Record]) -> Result:
    """Compare programs with the same work and number of threads. Raises UserError if a program of both sets ran on
    different workloads, or if the sets share no program."""
    parted = {key for side in (a, b) for key, same in groups(side).items()
              if len({record.threads_total for record in same}) > 1}  # fmt: skip
    sides = [groups(side, parted) for side in (a, b)]
    called = labels(list(dict.fromkeys([*sides[0], *sides[1]])))
    refuse_other_workloads(*without_partner(*sides))
    result = compare_groups(*({called[key]: same for key, same in side.items()} for side in sides), unlike)
    if not result.differences:
        listed = [", ".join(names) for names in (result.only_a, result.only_b)]
        raise UserError(f"the two sets have no configuration in common: A has {listed[0]}; B has {listed[1]}")
    return dataclasses.replace(result, by_threads=sorted({label(dict(key)) for key in parted}))


def compare_foreign(a: list[ForeignRecord], b: list[ForeignRecord]) -> Result:
    """The same for external scripts: those with the same name, launcher, devices and global batch are one program."""

    def other_text(a: list[ForeignRecord], b: list[ForeignRecord]) -> list[str]:
        texts = {record["script_sha256"] for record in [*a, *b]}
        return ["the text of the script is not the same in all records"] if len(texts) > 1 else []

    called = foreign.labels([*a, *b])
    sides = (group_by(records, lambda record: called[foreign.key_of(record)]) for records in (a, b))
    return compare_groups(*sides, other_text)


def compare_groups(a: dict[str, list], b: dict[str, list], find_unlike: Callable) -> Result:
    """Compare groups with the same name. find_unlike: both groups -> ``Difference.unlike``."""
    found = [difference(name, a[name], b[name], find_unlike(a[name], b[name])) for name in a if name in b]
    return Result(found, *without_partner(a, b))


def without_partner(a: Iterable, b: Iterable) -> tuple[list, list]:
    return [key for key in a if key not in b], [key for key in b if key not in a]


def groups(records: list[Record], parted: set[tuple] = frozenset()) -> dict[tuple, list[Record]]:
    """Records by all options that define program and work, as ((option, value), …), each group sorted by time. parted:
    the keys, with None for the threads, of programs that are also separated by their threads."""

    def group_of(record: Record) -> tuple:
        values = {name: getattr(record.config, name) for name in names(*WORK, *PROGRAM)} | of_place(record)
        key = (*values.items(), ("threads_total", None))
        return (*values.items(), ("threads_total", record.threads_total)) if key in parted else key

    return group_by(sorted(records, key=lambda record: record.started_at), group_of)


def differing(one: tuple, other: tuple) -> list[str]:
    return [name for (name, x), (_, y) in zip(one, other, strict=True) if x != y]


def labels(keys: list[tuple]) -> dict[tuple, str]:
    """A name for each group: mode, devices, backend options, and other options that distinguish groups."""
    plain = {key: label(dict(key)) for key in keys}
    found = {}
    for key, name in plain.items():
        twins = [other for other in keys if plain[other] == name]
        apart = {field for other in twins for field in differing(key, other)}
        more = ", ".join(f"{field}={value}" for field, value in key if field in apart)
        found[key] = f"{name} ({more})" if more else name
    return found


def refuse_other_workloads(only_a: list[tuple], only_b: list[tuple]) -> None:
    """Raise UserError if one program ran on different workloads: both sides have unpaired groups of it that differ in
    more than threads. The two that differ least are named."""
    programs = {}  # how the workloads differ -> the programs
    for key in only_a:
        others = [other for other in only_b if not any(map(of_program, differing(key, other)))]
        nearest = min(others, key=lambda other: len(differing(key, other)), default=key)
        mine, theirs = dict(key), dict(nearest)
        apart = [name for name in differing(key, nearest) if name != "threads_total"]
        if apart:
            text = ", ".join(f"{name} is {mine[name]} in A and {theirs[name]} in B" for name in apart)
            programs.setdefault(text, []).append(label(mine))
    if programs:
        listed = "; ".join(f"{', '.join(names)}: {text}" for text, names in programs.items())
        raise UserError(f"the two sets have different workloads and cannot be compared: {listed}")


def difference(name: str, a: list[Record], b: list[Record], unlike: list[str]) -> Difference:
    xs, ys = ([record.throughput for record in side] for side in (a, b))
    means = [statistics.geometric_mean(side) for side in (xs, ys)]
    ratio, low, high = means[1] / means[0], None, None
    confidence = confidence_of([*a, *b])
    if min(len(xs), len(ys)) >= stats.FEWEST_ROUNDS:
        ratio, low, high = formulas.unpaired_log_ratio_interval(xs, ys, confidence)
    why = in_words(worst([*a, *b]))
    word = "disturbed" if why else stats.verdict(low, high, TIE_MARGIN)
    wild = [side[i].run_id for side, values in ((a, xs), (b, ys)) for i in stats.outliers(values)]
    needed = records_needed(xs, ys, confidence) if word == "inconclusive" else None
    return Difference(
        name, len(xs), len(ys), *means, ratio, low, high, *shift(xs, ys, confidence), word, needed, wild, unlike,
        why,
    )  # fmt: skip


def shift(a: list[float], b: list[float], confidence: float) -> tuple[float | None, float | None, float | None]:
    """The Hodges–Lehmann ratio b/a with its exact rank-sum interval; None with too many or too few values."""
    if max(len(a), len(b)) > EXACT_RECORDS or min(len(a), len(b)) < stats.FEWEST_ROUNDS:
        return None, None, None
    logs = [[math.log(x) for x in side] for side in (a, b)]
    found = formulas.hodges_lehmann_shift(*logs, rank_sum_depth(len(a), len(b), confidence)[0])
    return tuple(None if x is None else math.exp(x) for x in found)


def records_needed(a: list[float], b: list[float], confidence: float) -> int:
    """The approximate number of records per side for a verdict: ``stats.rounds_needed`` for unpaired samples, with
    Welch's degrees of freedom."""
    logs = [[math.log(x) for x in side] for side in (a, b)]
    effect = abs(statistics.fmean(logs[1]) - statistics.fmean(logs[0]))
    variances = [statistics.variance(side) for side in logs]
    room = max(effect, math.log1p(TIE_MARGIN) - effect)
    normal = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    n = max(2, math.ceil(sum(variances) * ((normal + 1) / room) ** 2), min(len(a), len(b)) + 1)
    while True:
        df = min(formulas.welch_df(*variances, n, n), stats.LARGE_DF)
        if (stats.t_quantile(df, confidence) + 1) * math.sqrt(sum(variances)) <= room * math.sqrt(n):
            return n
        n += 1


def changes(a: list[Record], b: list[Record]) -> list[str]:
    """How the environments differ, one line per field: ``versions.torch: "2.6" in A, "2.7" in B``."""

    def surroundings(record: Record) -> dict[str, str]:
        environment = record.environment
        found = {f"{part}.{name}": value for part in ("machine", "versions", "git", "variables")
                 for name, value in (environment.get(part) or {}).items()}  # fmt: skip
        found |= {
            "driver_version": environment.get("driver_version"),
            "devices": [gpu.get("name") for gpu in record.gpus],
        }
        return {name: json.dumps(value) for name, value in found.items()}

    sides = [[surroundings(record) for record in side] for side in (a, b)]
    names = dict.fromkeys(name for side in sides for found in side for name in found)
    lines = []
    for name in names:
        values = [" or ".join(dict.fromkeys(found.get(name, "null") for found in side)) for side in sides]
        if values[0] != values[1]:
            lines.append(f"{name}: {values[0]} in A, {values[1]} in B")
    return lines


def unlike(a: list[Record], b: list[Record]) -> list[str]:
    """Differences between one program's runs although their options are equal; ``changes`` has the environment."""
    facts = [f for f in certify({"A": a, "B": b}).facts if f.name not in ("machine", "device set", "code")]
    lines = [f"{f.name}: {f.values['A']} in A, {f.values['B']} in B" for f in facts
             if f.status in ("differs", "inherent")]  # fmt: skip
    unknown = [f.name for f in facts if f.status == UNKNOWN]
    return lines + ([f"not recorded on both sides: {', '.join(unknown)}"] if unknown else [])


def read_side(text: str, name: str, needed: bool = True) -> tuple[list[Record], list[str]]:
    """The valid records of a folder or file, and sentences on the omitted ones. Raises UserError if none is valid and
    ``needed``."""
    path = Path(text)
    found, refused = ([], []) if path.name == FOREIGN and not needed else records_at(path, needed)
    good, said = select_usable(found, refused, f" in {name}")
    if not good and needed:
        raise UserError("; ".join([f"{name}: no record below {path} can be compared", *said]))
    return good, said


def time_note(a: list[Record], b: list[Record]) -> str:
    spans = [sorted(record.started_at[:16].replace("T", " ") for record in side) for side in (a, b)]
    taken = " and ".join(f"{name} {span[0]} to {span[-1]}" for name, span in zip("AB", spans, strict=True))
    return (
        f"note: A and B share no rounds ({taken} UTC): Welch's t on log throughput, unpaired. The interval holds what "
        "varied within each set; what changed on the machine between them is in the ratio."
    )


def grid(result: Result, units: str) -> Grid:
    head = [("configuration", False), ("n A", True), ("n B", True), (f"{units}/s\nA", True), (f"{units}/s\nB", True),
            ("B / A\n[95 %]", True), ("Hodges–Lehmann\n[95 %]", True), ("verdict", False)]  # fmt: skip
    rows = [
        [d.name, str(d.n_a), str(d.n_b), f"{d.a_throughput:.1f}", f"{d.b_throughput:.1f}",
         words.with_span(d.ratio, d.low, d.high), words.with_span(d.hl_ratio, d.hl_low, d.hl_high), d.verdict + d.mark]
        for d in result.differences
    ]  # fmt: skip
    return Grid(head, rows, grey=frozenset(i for i, d in enumerate(result.differences) if d.disturbance))
