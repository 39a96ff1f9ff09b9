"""Equivalence of accuracies: a margin fixed in advance, differences paired by seed, and the verdict in words."""

import statistics

from bench import formulas
from bench.analysis import stats
from bench.config.workloads import WORKLOADS, Metric

# Two programs whose mean accuracy differs by less than a metric's margin count as equal. It is a constant and not an
# option, so that it cannot be chosen after the runs. On 360 held-out digits, 1 percentage point is 3.6 images.
TOP1 = WORKLOADS["images"].metrics[0]


def margin_words(metric: Metric = TOP1) -> str:
    """Printed before the runs and with every verdict: '±1 percentage point of top-1'."""
    one = metric.points.replace("points", "point", 1) if metric.margin == 1 else metric.points
    return f"±{metric.margin:g} {one}"


def mean_of(values: list[float]) -> tuple[float, float | None, float | None]:
    """The mean over seeds with Student's 95 % interval; None for its ends with fewer than FEWEST_ROUNDS."""
    if len(values) < stats.FEWEST_ROUNDS:
        return statistics.fmean(values), None, None
    return formulas.mean_interval(values, stats.t_quantile(len(values) - 1, 0.95))


def paired(values: list[float], others: list[float], metric: Metric) -> tuple[list[float], stats.Equivalence]:
    """Differences by seed, and whether they are within the metric's margin."""
    differences = [mine - other for mine, other in zip(values, others, strict=True)]
    return differences, stats.equivalence(differences, metric.margin)


def words_of(name: str, base: str, found: stats.Equivalence, metric: Metric = TOP1) -> str:
    mean = f"{points(found.mean_difference, metric)} {unit_of(metric)}"
    if found.low is None:
        return f"{name} vs {base}: {mean} (n = {found.n}): a preview, no interval"
    wide, narrow = span(found.low95, found.high95, metric), span(found.low, found.high, metric)
    difference = f"{mean}, 95 % CI {wide}, 90 % CI {narrow}, n = {found.n} seeds"
    return f"{name} vs {base}: {verdict_of(found, metric)} ({difference})"


def heads(metric: Metric, base: str = "") -> list[tuple[str, bool]]:
    """Columns of a table: the mean, and those of ``cells``. base: the reference of all rows."""
    return [
        (f"{metric.name}, last epoch [95 % CI]", True),
        (f"{unit_of(metric)}{f' against {base}' if base else ''} [95 %]", True), ("[90 %]", True),
        (f"verdict, margin ±{metric.margin:g}", False),
    ]  # fmt: skip


def cells(found: stats.Equivalence, metric: Metric, fair: bool) -> list[str]:
    wide = points(found.mean_difference, metric)
    wide += "" if found.low95 is None else f" [{span(found.low95, found.high95, metric)}]"
    return [wide, span(found.low, found.high, metric), verdict_of(found, metric) + ("" if fair else " (unfair)")]


def digits(metric: Metric) -> str:
    return ".2f" if metric.percent else ".4f"


def unit_of(metric: Metric) -> str:
    return "points" if metric.percent else metric.label


def verdict_of(found: stats.Equivalence, metric: Metric = TOP1) -> str:
    """The word, with its unit: 'equivalent within ±1 point', 'different'."""
    unit = "point" if metric.percent and found.margin == 1 else unit_of(metric)
    return f"{found.verdict} {unit}" if found.equivalent else found.verdict


def points(value: float, metric: Metric = TOP1) -> str:
    return f"{value:+{digits(metric)}}".replace("-", "−")


def span(low: float | None, high: float | None, metric: Metric = TOP1) -> str:
    return "no interval" if low is None else f"{points(low, metric)} to {points(high, metric)}"
