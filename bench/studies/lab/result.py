"""A mistake compared with the right version, paired by seed.

The primary measure decides, in the direction that was fixed in advance; the other measures are reported as they come
out. A run that hangs is a result here: its failed record is one of the lab's.
"""

import statistics
from collections import Counter
from dataclasses import dataclass

from bench import formulas
from bench.analysis import stats
from bench.analysis.certificate import Certificate, Rules, certify
from bench.analysis.comparison import records_of, require_one_workload, require_rounds
from bench.analysis.parity import program
from bench.analysis.suite import Suite
from bench.analysis.tables import Grid
from bench.analysis.words import with_span
from bench.config.fields import in_words
from bench.config.options import FIELDS, RunConfig
from bench.errors import UserError
from bench.mistakes import MISTAKES, Finding, Mistake, find
from bench.mistakes.measures import Measure
from bench.record.disturbance import observed_of, worst
from bench.record.view import Record
from bench.studies.accuracy.study import OF_THE_SEED
from bench.studies.base import Hooks
from bench.studies.lab.study import VARIANTS

BY_MISTAKE = "it is what the mistake changes"


@dataclass(frozen=True)
class Row:
    """A measure of both versions, one value per seed. change: the mean difference, wrong less right, or the geometric
    mean of the ratios, wrong over right; low, high: its 95 % interval by Student's t, None with one seed."""

    measure: Measure
    right: list[float]
    wrong: list[float]
    change: float
    low: float | None
    high: float | None
    disturbed: bool = False  # a time, of which a run was disturbed

    @property
    def direction(self) -> str:
        """ "up", "down", or "" where the interval holds no change, and of a time that was disturbed."""
        if self.undecided:
            return ""
        low, high = (self.change, self.change) if self.low is None else (self.low, self.high)
        nothing = 1 if self.measure.ratio else 0
        return "up" if low > nothing else "down" if high < nothing else ""

    @property
    def undecided(self) -> str:
        """Why no direction is stated; "" where one is. Times and unexpected measures need several seeds."""
        if self.low is None and (self.measure.ratio or not self.measure.moves):
            return "preview: no interval"
        return "disturbed: not judged" if self.disturbed else ""

    @property
    def seen(self) -> str:
        return self.undecided or self.direction or "no effect shown here"

    @property
    def as_expected(self) -> bool:
        return self.direction == self.measure.moves

    @property
    def sides(self) -> list[str]:
        return [format(statistics.fmean(side), self.measure.form) for side in (self.right, self.wrong)]

    @property
    def change_words(self) -> str:
        if self.measure.ratio:
            return "× " + with_span(self.change, self.low, self.high)
        return with_span(self.change, self.low, self.high, "+" + self.measure.form).replace("-", "−")


@dataclass(frozen=True)
class LabResult:
    """A lab's suite compared. records: variant -> one per seed. rows: the primary measure first; without those that
    were not observed. findings: variant -> what the detectors found in any of its runs, once each."""

    suite: Suite
    mistake: Mistake
    certificate: Certificate
    records: dict[str, list[Record]]
    rows: list[Row]
    findings: dict[str, list[Finding]]

    @property
    def n(self) -> int:
        return len(self.records["right"])

    @property
    def found(self) -> bool:
        return any(finding.name == self.mistake.name for finding in self.findings["wrong"])


def answer(result: LabResult) -> list[str]:
    lines = [sentence(row, result.n) for row in result.rows] or ["nothing of it was observed: run it with WATCH=1"]
    held = ", ".join(f"{what} × {times}" for what, times in files_of(result.records["wrong"]).items())
    lines += [f"whose statistics the file had after each write of the wrong version: {held}"] if held else []
    return lines + places(result.records["wrong"]) + [detected(result)]


def detected(result: LabResult) -> str:
    named = [f"{finding.name} ({finding.evidence})" for finding in result.findings["wrong"]]
    wrong = f"found in the wrong version: {'; '.join(named)}" if named else "nothing found in the wrong version"
    right = ", ".join(finding.name for finding in result.findings["right"]) or "nothing"
    return f"bench check: {wrong}; in the right version: {right}"


def sentence(row: Row, n: int) -> str:
    """A measure in words.

    >>> measure = Measure("images never seen", lambda record, observed: None, "up", ".0f")
    >>> sentence(Row(measure, [0, 0], [29, 29], 29.0, 29.0, 29.0), 2)
    'images never seen: 0 → 29, +29 [+29 to +29] (n = 2 seeds): up, as expected'
    """
    measure, seeds = row.measure, f"n = {n} seeds" if n > 1 else "one seed: no interval"
    word = row.seen
    if measure.moves and not row.undecided:
        word += ", as expected" if row.as_expected else f", NOT as expected ({measure.moves})"
    return f"{measure.name}: {' → '.join(row.sides)}, {row.change_words} ({seeds}): {word}"


def files_of(records: list[Record]) -> dict[str, int]:
    """What the files that several ranks wrote held, and how often, over all runs; empty where that was not watched."""
    counts = Counter()
    for part in (part for record in records for part in record.samples):
        counts.update(part.lab.get("files", {}))
    return dict(sorted(counts.items()))


def places(records: list[Record]) -> list[str]:
    """Where the ranks of runs that hung stood, and how long that took to be found; empty where none did."""
    ended = [record.failure for record in records if record.failure]
    if not ended:
        return []
    seconds = [failure["after_s"] for failure in ended]
    took = f"{min(seconds):.1f} to {max(seconds):.1f}" if len(seconds) > 1 else f"{seconds[0]:.1f}"
    limit = records[0].config.timeout
    return [ended[0]["message"], f"found, named and ended {took} s after the command, with TIMEOUT={limit:g}"]


def mistake_of(suite: Suite) -> Mistake | None:
    """The mistake that a lab is about: the one whose switch the wrong version has and the right one has not."""
    configs = {variant: config_of(suite, variant) for variant in VARIANTS}
    right, wrong = configs["right"], configs["wrong"]
    return next((m for m in MISTAKES.values() if has(wrong, m) and not has(right, m)), None)


def config_of(suite: Suite, variant: str) -> RunConfig | None:
    """The config of a version, also where its runs failed; None where there is none."""
    program = suite.of_variant(variant)
    records = program.records if program else [r for r in suite.failed if r.label.variant == variant]
    return records[0].config if records else None


def has(config: RunConfig | None, mistake: Mistake) -> bool:
    return config is not None and all(getattr(config, name) == value for name, value in mistake.wrong.items())


def about(suite: Suite) -> str:
    mistake = mistake_of(suite)
    return mistake.name if mistake else ""


def compare(suite: Suite) -> LabResult:
    """Compare the two versions of a lab. Raises UserError without a whole round or the primary measure of every run."""
    require_rounds(suite)
    mistake = mistake_of(suite)
    if mistake is None:
        raise UserError(f"suite {suite.id} is of no known mistake: it has the programs {', '.join(suite.programs)}")
    rules = rules_of(mistake)
    require_one_workload(suite, rules)
    found = {variant: suite.of_variant(variant) for variant in VARIANTS}
    records = {variant: program.records if program else [] for variant, program in found.items()}
    ended = {r.label.round: r for r in suite.failed if r.label.variant == "wrong" and r.failed_on_purpose}
    if not records["wrong"] and ended:
        rounds = [number for number in suite.rounds if number in ended]
        records = {"right": [records["right"][suite.rounds.index(n)] for n in rounds],
                   "wrong": [ended[number] for number in rounds]}  # fmt: skip
    if not all(records.values()):
        raise UserError(f"suite {suite.id}: one of its two versions has no record that can be used: run it again")
    seen = {variant: findings_of(records[variant]) for variant in VARIANTS}
    measures = [measure.of(suite.first.workload) for measure in mistake.lab.measures_on(suite.device)]
    primary, *others = [row_of(measure, records) for measure in measures]
    if primary is None:
        raise UserError(f"suite {suite.id}: not every run has the primary measure: {measures[0].name}")
    certificate = certify(records_of(suite), rules)
    return LabResult(suite, mistake, certificate, records, [primary, *filter(None, others)], seen)


def rules_of(mistake: Mistake) -> Rules:
    """What the mistake itself changes is no unfairness."""
    changes = mistake.lab.changes
    varies = dict.fromkeys(changes, (BY_MISTAKE, program))
    return Rules(varies, OF_THE_SEED, ranks_apart=changes, options=mistake.lab.varies, mistakes=True)


def row_of(measure: Measure, records: dict[str, list[Record]]) -> Row | None:
    """A measure over the seeds; None where any run does not have it."""
    values = {v: [measure.read(record, record.observed) for record in records[v]] for v in VARIANTS}
    if any(value is None for variant in VARIANTS for value in values[variant]):
        return None
    right, wrong = ([float(value) for value in values[variant]] for variant in VARIANTS)
    if measure.ratio:
        found = stats.compare_rounds(right, wrong)
        disturbed = bool(worst(record for each in records.values() for record in each if record.ok))
        return Row(measure, right, wrong, found.ratio, found.low, found.high, disturbed)
    differences = [b - a for a, b in zip(right, wrong, strict=True)]
    if len(differences) == 1:
        return Row(measure, right, wrong, differences[0], None, None)
    return Row(measure, right, wrong, *formulas.mean_interval(differences, stats.t_quantile(len(right) - 1, 0.95)))


def findings_of(records: list[Record]) -> list[Finding]:
    """The detectors' findings in these records, each mistake once."""
    by_name = {finding.name: finding for record in reversed(records) for finding in find(observed_of(record))}
    return sorted(by_name.values(), key=lambda finding: [*MISTAKES, finding.name].index(finding.name))


HEADS = [("figure", False), ("right", True), ("wrong", True), ("wrong − right, or × [95 %]", True), ("n", True),
         ("expected", False), ("seen", False)]  # fmt: skip


def summary(result: LabResult) -> list[Grid]:
    rows = [
        [row.measure.name, *row.sides, row.change_words, str(result.n), row.measure.moves or "nothing said", row.seen]
        for row in result.rows
    ]
    return [Grid(HEADS, rows, "Right and wrong, paired by seed")]


grids = summary


def said_of(suite: Suite) -> list[tuple[str, str]]:
    mistake = mistake_of(suite)
    if mistake is None:
        return []
    return [("What a person would see", mistake.lab.seen), ("Consequence", mistake.consequence),
            ("Remedy", mistake.remedy)]  # fmt: skip


def heading_of(suite: Suite) -> str:
    mistake = mistake_of(suite)
    return f"{mistake.name}: {mistake.title}" if mistake else suite.id


def warning(suite: Suite) -> str:
    mistake = mistake_of(suite)
    if mistake is None:
        return ""
    switch = " ".join(in_words(f, mistake.wrong[f.name]) for f in FIELDS.values() if f.name in mistake.wrong)
    return f"Made on purpose, in the wrong version alone: {switch}"


HOOKS = Hooks(about=about, heading_of=heading_of, warning=warning, said_of=said_of)
