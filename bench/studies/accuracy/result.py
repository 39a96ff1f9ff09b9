"""Do all modes reach the same accuracy? The metric after a complete training, paired by seed: a round has one
seed for all.

The last epoch counts, not the best one, which would be chosen after the fact. Throughput is not compared, because these
runs validate and warm up differently from those of `bench compare`.
"""

import math
import statistics
from dataclasses import dataclass

from bench.analysis import equivalence, ratio_figure, stats, style
from bench.analysis.certificate import Certificate, certify
from bench.analysis.comparison import records_of, require_comparable
from bench.analysis.equivalence import margin_words, words_of
from bench.analysis.suite import Program, Suite
from bench.analysis.tables import Grid
from bench.analysis.words import with_span
from bench.config.workloads import Metric
from bench.errors import UserError
from bench.studies.accuracy.study import RULES

CURVES = 2.6  # inches
SENTENCE_WIDTH = style.WIDTH - 0.95  # inches: the upper panel has names on its left
ROW = 0.95  # inches, a mode's differences below its sentence


@dataclass(frozen=True)
class Row:
    label: str
    top1: list[float]  # the workload's first metric as it is shown, after the last epoch, one per seed
    best: float  # of any epoch of any seed
    seconds_to_target: list[float | None]  # of training and validation, one per seed; None: not reached
    against_base: stats.Equivalence | None  # None for the base itself
    differences: list[float]  # in the metric's unit, one per seed; none for the base
    certificate: Certificate  # of the base and this one alone

    @property
    def reached(self) -> int:
        return sum(seconds is not None for seconds in self.seconds_to_target)

    @property
    def median_seconds(self) -> float | None:
        """The median time to the target; a run that missed it counts as the longest. None: half missed it."""
        median = statistics.median(math.inf if s is None else s for s in self.seconds_to_target)
        return None if math.isinf(median) else median


@dataclass(frozen=True)
class AccuracyResult:
    suite: Suite
    base: str
    certificate: Certificate
    rows: list[Row]  # the base first
    target: float | None  # of the metric, as it was given


def compare(suite: Suite) -> AccuracyResult:
    """Compare the programs, paired by seed. Raises UserError, also if runs were not validated."""
    require_comparable(suite, RULES)
    for record in suite.records:
        if record.top1 is None:
            raise UserError(f"suite {suite.id}: {record.run_id} was not validated: there is no accuracy to compare")
    base = next(iter(suite.programs.values()))
    rows = [row_of(program, base) for program in suite.programs.values()]
    target = suite.first.accuracy.get("target")
    return AccuracyResult(suite, base.label, certify(records_of(suite), RULES), rows, target)


def row_of(program: Program, base: Program) -> Row:
    metric = program.first.workload.metrics[0]
    top1, others = ([metric.displayed(record.top1) for record in side.records] for side in (program, base))
    differences, found = ([], None) if program is base else equivalence.paired(top1, others, metric)
    return Row(
        program.label,
        top1,
        metric.displayed(metric.best(record.accuracy[f"best_{metric.key}"] for record in program.records)),
        [record.accuracy.get("time_to_accuracy_s") for record in program.records],
        found,
        differences,
        certify({side.label: side.records for side in (base, program)}, RULES),
    )


def answer(result: AccuracyResult) -> list[str]:
    found = []
    for row in result.rows[1:]:
        said = words_of(row.label, result.base, row.against_base, result.suite.metric)
        found.append(said if row.certificate.fair else f"{said}; {row.certificate.sentence()}")
    if not found:
        return [f"{result.base} was the only configuration: nothing to compare"]
    meaning = '"Not shown" means that n is too small to decide, not that there is a difference.'
    return [*found, f"Margin, fixed before the runs: {margin_words(result.suite.metric)}. {meaning}"]


def summary(result: AccuracyResult) -> list[Grid]:
    where, metric = "CPU" if result.suite.device == "cpu" else "GPU", result.suite.metric
    target = "target" if result.target is None else target_words(metric, result.target)
    value, *against = equivalence.heads(metric, result.base)
    heads = [
        ("mode", False), ("seeds", True), value, (f"best{' %' * metric.percent}", True), (f"reached {target}", True),
        (f"median s to {target} ({where}, with validation)", True), *against,
    ]  # fmt: skip
    caption = style.flagged(f"{metric.heading}, paired by seed", result.certificate)
    return [Grid(heads, [cells(result, row) for row in result.rows], caption)]


def cells(result: AccuracyResult, row: Row) -> list[str]:
    n, metric, digits = len(row.top1), result.suite.metric, equivalence.digits(result.suite.metric)
    reached, time = "no target", ""
    if result.target is not None:
        reached = f"{row.reached} of {n}"
        time = "not reached" if row.median_seconds is None else f"{row.median_seconds:.1f}"
    against = ["", "", "base"]
    if row.against_base:
        against = equivalence.cells(row.against_base, metric, row.certificate.fair)
    mean = with_span(*equivalence.mean_of(row.top1), digits)
    return [row.label, str(n), mean, f"{row.best:{digits}}", reached, time, *against]


def target_words(metric: Metric, target: float) -> str:
    return f"{metric.displayed(target):g}{' %' * metric.percent}"


# --- the picture ----------------------------------------------------------------------------------------------------


@style.styled
def draw(result):
    """Accuracy over epochs by mode, and the differences paired by seed with the margin's band."""
    others = result.rows[1:]
    key = "Top: thick line = mean over seeds, thin line = one seed. "
    if others:
        key += f"Bottom: dot = one seed, its {result.suite.metric.label} after the last epoch minus {result.base}'s. "
    if others and result.suite.n > 1:
        key += "Bar: Student's 95 % CI of the mean. Black line in it: 90 % CI, which decides about equivalence. "
    if others:
        key += f"Grey band: the equivalence margin, {margin_words(result.suite.metric)}, fixed before the runs."
    heights = [CURVES, ROW * len(others) + 0.5] if others else [CURVES]
    figure, axes = style.panels(result, "Do all modes reach the same accuracy? (every seed)", heights, 0.4, [key])
    draw_curves(axes[0], result)
    if others:
        draw_differences(axes[1], result, others)
    return figure


def draw_curves(axes, result) -> None:
    suite, looks, metric = result.suite, style.looks(result.suite), result.suite.metric
    for label, look in looks.items():
        records = suite.programs[label].records
        seeds = [[metric.displayed(row[metric.key]) for row in record.epochs] for record in records]
        epochs = range(1, len(seeds[0]) + 1)
        alone = look.marker if len(epochs) == 1 else ""  # one point gives no line
        for curve in seeds:
            axes.plot(epochs, curve, alone, color=look.colour, linewidth=0.6, markersize=3, alpha=0.45)
        mean = [statistics.fmean(at) for at in zip(*seeds, strict=True)]
        axes.plot(epochs, mean, color=look.colour, linestyle=look.line, marker=look.marker, markersize=4.5, label=label)
    if result.target is not None:
        axes.axhline(metric.displayed(result.target), color=style.BLACK, linewidth=0.8, linestyle=(0, (2, 2)),
                     label=f"target {target_words(metric, result.target)}")  # fmt: skip
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(epochs) == 1:
        axes.set_xticks([1])
    style.finish(axes, "epoch", style.held_out(metric), grid="y", legend=3)


def draw_differences(axes, result, rows: list) -> None:
    looks, margin = style.looks(result.suite), result.suite.metric.margin
    axes.axvspan(-margin, margin, color=style.PALE, alpha=0.7, linewidth=0)
    axes.axvline(0, color=style.BLACK, linewidth=1)
    dots = [-1.1 * margin, 1.1 * margin, *(x for row in rows for x in row.differences)]
    ends = [x for row in rows for x in (row.against_base.low95, row.against_base.high95) if x is not None]
    limits = style.limits_with(dots, ends)
    for y, row in enumerate(rows):
        found, look = row.against_base, looks[row.label]
        text = words_of(row.label, result.base, found, result.suite.metric)
        lines = style.wrapped(text, ratio_figure.SENTENCE_SIZE, SENTENCE_WIDTH)
        ratio_figure.write_sentence(axes, lines, y + 0.05, not row.certificate.fair)
        style.draw_dots(axes, row.differences, y + 0.66, 0.05, look)
        if found.low is not None:
            style.draw_interval(axes, found.low95, found.high95, y + 0.86, limits, look.colour)
            within = [min(max(x, limits[0]), limits[1]) for x in (found.low, found.high)]
            axes.plot(within, [y + 0.86] * 2, color=style.BLACK, linewidth=1.2)
        style.mark(axes, found.mean_difference, y + 0.86)
        if y:
            axes.axhline(y, color=style.PALE, linewidth=1)
    better = "right" if result.suite.metric.better == "up" else "left"
    xlabel = f"{result.suite.metric.points} minus {result.base}'s ({better} of 0 is better)"
    ratio_figure.finish_rows(axes, len(rows), limits, xlabel)


FIGURES = {"accuracy": {"accuracy": draw}}
