"""Do programs learn the same? A margin fixed in advance, differences paired by seed, and the verdict in words."""

from bench import formulas
from bench.analysis import stats

# Percentage points: two programs that differ by less in their mean accuracy are equal for a user. It is a constant, and
# no option, so that it cannot be chosen after the runs. On 360 held-out digits it is 3.6 images.
MARGIN = 1.0


def margin_words(metric: str = "top-1") -> str:
    """The margin as it is printed before the runs and with every verdict."""
    return f"±{MARGIN:g} percentage point{'' if MARGIN == 1 else 's'} of {metric}"


def mean_of(values: list[float]) -> tuple[float, float | None, float | None]:
    """The mean over seeds with Student's 95 % interval, which one seed has not."""
    if len(values) == 1:
        return values[0], None, None
    return formulas.mean_interval(values, stats.t_quantile(len(values) - 1, 0.95))


def words_of(name: str, base: str, found: stats.Equivalence) -> str:
    """The verdict on a paired difference, with its numbers."""
    if found.low is None:
        return f"{name} against {base}: {points(found.mean_difference)} points with one seed: no interval"
    wide, narrow = (f"{points(a)} to {points(b)}" for a, b in ((found.low95, found.high95), (found.low, found.high)))
    difference = f"{points(found.mean_difference)} points, 95 % interval {wide}, 90 % {narrow}, n = {found.n} seeds"
    return f"{name} against {base}: {verdict_of(found)} ({difference})"


def verdict_of(found: stats.Equivalence) -> str:
    """The word, with its unit.

    >>> verdict_of(stats.equivalence([0.1, -0.2, 0.0, 0.1], MARGIN)), verdict_of(stats.equivalence([2, 3, 2.5], MARGIN))
    ('equivalent within ±1 point', 'different')
    """
    return f"{found.verdict} point{'' if found.margin == 1 else 's'}" if found.equivalent else found.verdict


def points(value: float) -> str:
    """Percentage points with their sign, and a true minus.

    >>> points(-0.123), points(0.5)
    ('−0.12', '+0.50')
    """
    return f"{value:+.2f}".replace("-", "−")
