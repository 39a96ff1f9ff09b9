"""Do programs learn the same? A margin fixed in advance, differences paired by seed, and the verdict in words."""

import statistics

from bench import formulas
from bench.analysis import stats
from bench.config.workloads import WORKLOADS, Metric

TOP1 = WORKLOADS["images"].metrics[0]
# Percentage points: two programs that differ by less in their mean accuracy are equal for a user. A metric's margin is
# a constant, and no option, so that it cannot be chosen after the runs. On 360 held-out digits it is 3.6 images.
MARGIN = TOP1.margin


def margin_words(metric: Metric = TOP1) -> str:
    """The margin as it is printed before the runs and with every verdict.

    >>> margin_words(), margin_words(WORKLOADS["text"].metrics[0])
    ('±1 percentage point of top-1', '±0.05 bits per byte')
    """
    one = metric.points.replace("points", "point", 1) if metric.margin == 1 else metric.points
    return f"±{metric.margin:g} {one}"


def mean_of(values: list[float]) -> tuple[float, float | None, float | None]:
    """The mean over seeds with Student's 95 % interval; None for its ends with fewer than FEWEST_ROUNDS."""
    if len(values) < stats.FEWEST_ROUNDS:
        return statistics.fmean(values), None, None
    return formulas.mean_interval(values, stats.t_quantile(len(values) - 1, 0.95))


def words_of(name: str, base: str, found: stats.Equivalence, metric: Metric = TOP1) -> str:
    mean = f"{points(found.mean_difference, metric)} {unit_of(metric)}"
    if found.low is None:
        return f"{name} vs {base}: {mean} (n = {found.n}): a preview, no interval"
    wide, narrow = span(found.low95, found.high95, metric), span(found.low, found.high, metric)
    difference = f"{mean}, 95 % interval {wide}, 90 % {narrow}, n = {found.n} seeds"
    return f"{name} vs {base}: {verdict_of(found, metric)} ({difference})"


def unit_of(metric: Metric) -> str:
    return "points" if metric.percent else metric.label


def verdict_of(found: stats.Equivalence, metric: Metric = TOP1) -> str:
    """The word, with its unit.

    >>> verdict_of(stats.equivalence([0.1, -0.2, 0.0, 0.1], MARGIN)), verdict_of(stats.equivalence([2, 3, 2.5], MARGIN))
    ('equivalent within ±1 point', 'different')
    """
    unit = "point" if metric.percent and found.margin == 1 else unit_of(metric)
    return f"{found.verdict} {unit}" if found.equivalent else found.verdict


def points(value: float, metric: Metric = TOP1) -> str:
    """A difference, as percentage points, with its sign, and a true minus.

    >>> points(-0.123), points(0.5)
    ('−0.12', '+0.50')
    """
    return f"{value:+.{2 if metric.percent else 4}f}".replace("-", "−")


def span(low: float | None, high: float | None, metric: Metric = TOP1) -> str:
    """An interval of differences, as percentage points; "no interval" of a preview."""
    return "no interval" if low is None else f"{points(low, metric)} to {points(high, metric)}"
