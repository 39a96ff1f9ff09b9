"""Do all modes learn the same? Top-1 accuracy after a whole training, paired by seed: a round has one seed for all.

The last epoch counts, never the best one: that would be chosen after looking. A difference is in percentage points, a
mode less the base. No throughput is compared: these runs are validated and warmed up otherwise than `bench compare`'s.
"""

import math
import statistics
from dataclasses import dataclass

from bench.analysis import stats, style
from bench.analysis.certificate import Certificate, certify
from bench.analysis.comparison import records_of, require_one_workload, require_rounds
from bench.analysis.equivalence import margin_words, mean_of, points, span, unit_of, verdict_of, words_of
from bench.analysis.suite import Program, Suite
from bench.analysis.tables import Grid
from bench.analysis.words import with_span
from bench.config.workloads import Metric
from bench.errors import UserError
from bench.studies.accuracy.study import RULES


@dataclass(frozen=True)
class Row:
    """One program. top1: the workload's first metric as it is shown, per cent of top-1, after the last epoch, one per
    seed. against_base: None for the base itself. certificate: of the base and this one alone."""

    label: str
    top1: list[float]
    best: float  # of any epoch of any seed
    seconds_to_target: list[float | None]  # of training and validation, one per seed; None: it did not get there
    against_base: stats.Equivalence | None
    differences: list[float]  # as percentage points, one per seed; none for the base
    certificate: Certificate

    @property
    def mean(self) -> tuple[float, float | None, float | None]:
        return mean_of(self.top1)

    @property
    def reached(self) -> int:
        return sum(seconds is not None for seconds in self.seconds_to_target)

    @property
    def median_seconds(self) -> float | None:
        """The median time to the target; one that did not get there took longer than all. None: half did not."""
        median = statistics.median(math.inf if s is None else s for s in self.seconds_to_target)
        return None if math.isinf(median) else median


@dataclass(frozen=True)
class AccuracyResult:
    """A suite compared. rows: the base first. target: of the metric, as it was given; None where the runs had none."""

    suite: Suite
    base: str
    certificate: Certificate
    rows: list[Row]
    target: float | None

    @property
    def metric(self) -> Metric:
        return self.suite.first.workload.metrics[0]


def answer(result: AccuracyResult) -> list[str]:
    metric = result.metric
    found = [sentence(row, result) for row in result.rows if row.against_base]
    if not found:
        return [f"{result.base} alone was run: nothing to compare"]
    meaning = '"Not shown" says that n is too small to tell, and not that there is a difference.'
    return [*found, f"Margin, fixed before the runs: {margin_words(metric)}. {meaning}"]


def sentence(row: Row, result: AccuracyResult) -> str:
    """The verdict on one program in words, with its flag: among several, one may compute another update."""
    said = words_of(row.label, result.base, row.against_base, result.metric)
    return said if row.certificate.fair else f"{said}; {row.certificate.sentence()}"


def compare(suite: Suite) -> AccuracyResult:
    """Compare the programs of an accuracy suite, paired by seed. Raises UserError without a whole round, for records of
    different workloads, and for one that was not validated."""
    require_rounds(suite)
    require_one_workload(suite, RULES)
    for record in suite.records:
        if record.top1 is None:
            raise UserError(f"suite {suite.id}: {record.run_id} was not validated: there is no accuracy to compare")
    base = next(iter(suite.programs.values()))
    rows = [row_of(program, base) for program in suite.programs.values()]
    target = suite.first.accuracy.get("target")
    return AccuracyResult(suite, base.label, certify(records_of(suite), RULES), rows, target)


def row_of(program: Program, base: Program) -> Row:
    """One program's row. base: what it is compared with; itself for the base."""
    metric = program.first.workload.metrics[0]
    top1, others = ([metric.shown(record.top1) for record in side.records] for side in (program, base))
    differences = [] if program is base else [mine - other for mine, other in zip(top1, others, strict=True)]
    return Row(
        program.label,
        top1,
        metric.shown(metric.best(record.accuracy[f"best_{metric.key}"] for record in program.records)),
        [record.accuracy.get("time_to_accuracy_s") for record in program.records],
        stats.equivalence(differences, metric.margin) if differences else None,
        differences,
        certify({side.label: side.records for side in (base, program)}, RULES),
    )


def summary(result: AccuracyResult) -> list[Grid]:
    caption = style.flagged(f"{result.metric.heading}, paired by seed", result.certificate)
    return [Grid(heads(result), [cells(result, row) for row in result.rows], caption)]


grids = summary


def target_words(metric: Metric, target: float) -> str:
    return f"{metric.shown(target):g}{' %' * metric.percent}"


def heads(result: AccuracyResult) -> list[tuple[str, bool]]:
    where = "CPU" if result.suite.device == "cpu" else "GPU"
    metric = result.metric
    target = "target" if result.target is None else target_words(metric, result.target)
    return [
        ("mode", False), ("seeds", True), (f"{metric.name}, last epoch [95 % interval]", True),
        (f"best{' %' * metric.percent}", True),
        (f"reached {target}", True), (f"median s to {target} ({where}, with validation)", True),
        (f"{unit_of(metric)} against {result.base} [95 %]", True), ("[90 %]", True),
        (f"verdict, margin ±{metric.margin:g}", False),
    ]  # fmt: skip


def cells(result: AccuracyResult, row: Row) -> list[str]:
    n, found, metric = len(row.top1), row.against_base, result.metric
    digits = ".2f" if metric.percent else ".4f"
    reached, time = "no target", ""
    if result.target is not None:
        reached, seconds = f"{row.reached} of {n}", row.median_seconds
        time = "not reached" if seconds is None else f"{seconds:.1f}"
    against = ["", "", "base"]
    if found:
        wide = points(found.mean_difference, metric)
        wide += "" if found.low95 is None else f" [{span(found.low95, found.high95, metric)}]"
        against = [
            wide,
            span(found.low, found.high, metric),
            verdict_of(found, metric) + ("" if row.certificate.fair else " (unfair)"),
        ]
    return [row.label, str(n), with_span(*row.mean, digits), f"{row.best:{digits}}", reached, time, *against]
