"""Comparing two modes over interleaved rounds: how much faster, how sure, and the verdict in a word.

All computations use d = log(x_b) - log(x_a), paired by round: a disturbance of a whole round cancels, and swapping the
two modes inverts every ratio. Every round counts: outliers are marked and never dropped.
"""

import functools
import math
import statistics
from dataclasses import dataclass

from bench import formulas

EXACT_ROUNDS = 16  # up to this n all 2**n sign patterns are tried; 2**16 = 65536
RANDOM_FLIPS = 20_000  # above: the standard error of p = 0.05 is then 0.0015
FLIP_SEED = 0
TIE_MARGIN = 0.02  # a tie is within ±2 %
CONFIDENCE = 0.95  # of a verdict; over all looks, if there were interim analyses
LARGE_DF = 200  # for planning, t is constant above this: 1.972 (limit 1.960)
ROBUST_DEVIATIONS = 3 * 1.4826  # × the median absolute deviation: three standard deviations of a normal distribution
VERDICTS = ("faster", "slower", "tie")
FEWEST_ROUNDS = 3  # for an interval; fewer are a preview: of two rounds it would be 9 standard deviations to each side
NO_DIFFERENCE = 0.10  # "no difference found" where the interval holds 1 and lies within ±10 %
LARGE_RATIO = 10.0  # from this ratio on it is written as "×12", not in per cent
MOST_ROUNDS = 100  # largest printed number of needed rounds; above, it is not meaningful

# The same for every comparison of n rounds.
t_quantile = functools.cache(formulas.t_quantile)
signed_rank_depth = functools.cache(formulas.signed_rank_depth)


@dataclass(frozen=True)
class Comparison:
    """Mode b against mode a. Every ratio is x_b / x_a, above 1 if b is faster; None if n is too small."""

    n: int  # rounds
    ratio: float  # geometric mean over rounds
    low: float | None  # Student's t interval, which decides
    high: float | None
    hl_ratio: float  # Hodges–Lehmann: robust to single outlying rounds
    hl_low: float | None  # exact signed-rank interval
    hl_high: float | None
    p: float  # two-sided sign-flip permutation test of "no difference"
    p_difference: float  # Student's two-sided test of "no difference": below 5 % where the 95 % interval excludes 1
    p_tie: float  # of "as large as the margin", both sides: below 5 % where the 95 % interval is inside the margin
    verdict: str  # faster | slower | tie | no difference | inconclusive | preview | disturbed
    rounds_needed: int | None  # only when inconclusive

    def sentence(self, name_a: str, name_b: str) -> str:
        return verdict_words(self, name_a, name_b, f"n = {self.n}", TIE_MARGIN, self.rounds_needed, "rounds")


def compare_rounds(a: list[float], b: list[float], looks: int = 1, disturbed: bool = False) -> Comparison:
    """Compare mode b with mode a: throughputs of the same rounds in the same order, in any one unit.

    The signed-rank interval and the sign-flip p are checks that need only noise symmetric about its centre. looks: the
    planned number of interim analyses; intervals and p values hold over all of them (``formulas.confidence_per_look``).
    disturbed: a run of the suite was, so there is no verdict. Raises ValueError on unequal lengths, no rounds, or a
    value that is not positive and finite.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"rounds are compared in pairs, got {len(a)} and {len(b)}")
    if wrong := [x for x in [*a, *b] if not 0 < x < math.inf]:
        raise ValueError(f"throughputs must be positive and finite, got {wrong[0]}")
    n, d = len(a), [math.log(y / x) for x, y in zip(a, b, strict=True)]
    level = formulas.confidence_per_look(CONFIDENCE, looks)
    ratio, low, high = interval(a, b, level)
    depth, _ = signed_rank_depth(n, level)
    hl = [None if x is None else math.exp(x) for x in formulas.hodges_lehmann(d, depth)]
    word = "disturbed" if disturbed else verdict(low, high, TIE_MARGIN)
    p = [min(1.0, looks * x) for x in (sign_flip_p(d), *student_p(d, TIE_MARGIN))]
    needed = rounds_needed(d, TIE_MARGIN, level) if word == "inconclusive" else None
    return Comparison(n, ratio, low, high, *hl, *p, word, needed)


def interval(a: list[float], b: list[float], confidence: float) -> tuple[float, float | None, float | None]:
    """The ratio b/a over paired rounds with Student's interval; its ends are None below FEWEST_ROUNDS."""
    if len(a) < FEWEST_ROUNDS:
        return statistics.geometric_mean(y / x for x, y in zip(a, b, strict=True)), None, None
    return formulas.log_ratio_interval(a, b, t_quantile(len(a) - 1, confidence))


def verdict(low: float | None, high: float | None, tie_margin: float) -> str:
    """The word for an interval of the ratio b/a.

    A tie has priority: an interval above 1 and inside the margin is a difference that exists, but is too small to
    matter. ±2 % means 1/1.02 … 1.02, so that swapping a and b only swaps faster and slower. (As a test of equivalence,
    a 95 % interval inside the margin is TOST at 2.5 %, stricter than the usual 5 %.)

    >>> verdict(1.005, 1.015, 0.02), verdict(1.005, 1.03, 0.02), verdict(0.95, 0.97, 0.02), verdict(0.97, 1.01, 0.02)
    ('tie', 'faster', 'slower', 'no difference')
    >>> verdict(0.8, 1.3, 0.02), verdict(None, None, 0.02)
    ('inconclusive', 'preview')
    """
    if low is None:
        return "preview"
    if 1 / (1 + tie_margin) <= low and high <= 1 + tie_margin:
        return "tie"
    if low > 1:
        return "faster"
    if high < 1:
        return "slower"
    return "no difference" if low >= 1 / (1 + NO_DIFFERENCE) and high <= 1 + NO_DIFFERENCE else "inconclusive"


def rounds_needed(d: list[float], tie_margin: float, confidence: float) -> int:
    """The approximate number of rounds for a verdict, if d keeps its mean and deviation.

    With e = |mean of d|, m = log(1 + tie_margin), s the standard deviation of d and t the quantile for N - 1 degrees of
    freedom, the half-width t s / sqrt(N) excludes a ratio of 1 below e, and is inside the margin at most at m - e. One
    standard error is reserved for a random error of the mean: N is the smallest with (t + 1) s / sqrt(N) <= max(e, m -
    e). If e and s are the true values, a difference is found in about 84 % of trials and a tie in about 68 %.

    >>> rounds_needed([-0.05, 0.05, -0.05, 0.05], tie_margin=0.02, confidence=0.95)
    77
    """
    effect, deviation = abs(statistics.fmean(d)), formulas.deviation(d)
    room = max(effect, math.log1p(tie_margin) - effect)  # never less than m / 2
    normal = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    n = max(len(d) + 1, math.ceil(((normal + 1) * deviation / room) ** 2))  # t > normal: N is this or slightly larger
    while (t_quantile(min(n - 1, LARGE_DF), confidence) + 1) * deviation > room * math.sqrt(n):
        n += 1
    return n


def sign_flip_p(d: list[float]) -> float:
    """Two-sided p of "no difference": the share of sign patterns of d with a sum as far from 0 as the observed.

    If the modes are equal, both signs of each round's d are equally likely (Fisher, The Design of Experiments, 1935,
    section 21). All patterns up to 16 rounds; beyond, random ones from a fixed seed, the observed one counted among
    them: (1 + hits) / (1 + flips) (Phipson and Smyth 2010). Of the eight sums ±1 ±2 ±4, two are as far out as 7:

    >>> sign_flip_p([1.0, 2.0, 4.0])
    0.25
    """
    reach = abs(sum(d)) - 1e-12 * sum(map(abs, d))  # equal sums may differ in the last digits, because of their order
    if len(d) > EXACT_ROUNDS:
        import numpy as np

        signs = np.random.default_rng(FLIP_SEED).choice([-1.0, 1.0], size=(RANDOM_FLIPS, len(d)))
        return (1 + int((np.abs(signs @ np.array(d)) >= reach).sum())) / (1 + RANDOM_FLIPS)
    sums = d[:1]  # the first sign stays: turning all signs changes no distance
    for x in d[1:]:
        sums = [s + x for s in sums] + [s - x for s in sums]
    return sum(abs(s) >= reach for s in sums) / len(sums)


def student_p(d: list[float], tie_margin: float) -> tuple[float, float]:
    """The p values of the t interval's two claims: of a difference, and of a tie (twice the larger of its two one-sided
    p values). Each is below 1 - confidence exactly where the interval excludes 0, or is inside the margin.

    >>> student_p([0.05], 0.02), student_p([0.001, 0.001], 0.02), student_p([0.05, 0.05], 0.02)
    ((1.0, 1.0), (0.0, 0.0), (0.0, 1.0))
    """
    if len(d) < 2:
        return 1.0, 1.0
    mean, error, df = statistics.fmean(d), formulas.deviation(d) / math.sqrt(len(d)), len(d) - 1
    difference = 1 - formulas.t_probability(abs(mean) / error, df) if error else float(mean == 0)
    return difference, min(1.0, 2 * tost_p(mean, error, df, math.log1p(tie_margin)))


def tost_p(mean: float, error: float, df: int, margin: float) -> float:
    """The larger of the p values of "mean <= -margin" and "mean >= margin": that of the nearer bound."""
    distance = margin - abs(mean)
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    inner = formulas.t_probability(abs(distance) / error, df)
    return (1 - inner) / 2 if distance > 0 else (1 + inner) / 2


def significant_after_holm(found: list[Comparison]) -> list[bool]:
    """Which verdicts are significant after Holm correction over all these comparisons.

    Holm's method over all tests of "no difference", and separately over all tests of a tie: at most 5 % of such tables
    have a false difference, and at most 5 % a false tie. The two are not mixed: a pair that is shown to be a tie may
    still be exactly equal, and would weaken the correction for the others.
    """
    differences = formulas.holm([each.p_difference for each in found])
    ties = formulas.holm([each.p_tie for each in found])
    judged = {"faster": differences, "slower": differences, "tie": ties}
    return [each.verdict in judged and judged[each.verdict][i] <= 1 - CONFIDENCE for i, each in enumerate(found)]


def outliers(values: list[float]) -> list[int]:
    """The indices of values beyond three robust deviations of the median (Leys et al. 2013): shown, never dropped.

    >>> outliers([10.0, 10.2, 9.9, 13.0, 10.1])
    [3]
    """
    if not values:
        return []
    median = statistics.median(values)
    distances = [abs(x - median) for x in values]
    rounding = 1e-9 * abs(
        median
    )  # if most values are equal the MAD is 0, and a difference in the last digit is not an outlier
    limit = ROBUST_DEVIATIONS * statistics.median(distances) + rounding
    return [i for i, distance in enumerate(distances) if distance > limit]


@dataclass(frozen=True)
class Equivalence:
    """Whether paired series are equal within a margin fixed beforehand, in the unit of the margin."""

    n: int
    mean_difference: float  # mean of b - a
    low: float | None  # 90 % t interval, which decides on equivalence; None for a preview
    high: float | None
    low95: float | None  # 95 % t interval of the mean difference, to publish
    high95: float | None
    p: float | None  # the larger of the two one-sided p values
    margin: float
    verdict: str  # equivalent within ±margin | different | not shown | preview

    @property
    def equivalent(self) -> bool:
        return self.verdict.startswith("equivalent")


def equivalence(differences: list[float], margin: float) -> Equivalence:
    """Paired TOST: is the mean difference inside ±margin, the margin fixed before the runs (Schuirmann 1987)?

    Two one-sided t tests at 5 %: both reject exactly if the 90 % interval is strictly inside ±margin (Schuirmann,
    Journal of Pharmacokinetics and Biopharmaceutics 15 (1987), 657-680). Two modes whose true difference is the margin
    are called equivalent in at most 5 % of trials. As a tie has priority in ``verdict``, so has "equivalent within
    ±margin"; then "different", where the 95 % interval excludes 0; else "not shown". Fewer than FEWEST_ROUNDS pairs are
    a "preview". Raises ValueError without differences, for one that is not finite, or for margin <= 0.

    >>> equivalence([0.001, -0.002, 0.0, 0.001], margin=0.01).verdict
    'equivalent within ±0.01'
    >>> equivalence([0.02, 0.03, 0.025], 0.01).verdict, equivalence([0.02, -0.03, 0.01], 0.01).verdict
    ('different', 'not shown')
    """
    if not differences or not all(map(math.isfinite, differences)) or not margin > 0:
        raise ValueError(f"need finite differences and margin > 0, got {len(differences)} and margin {margin}")
    n, mean = len(differences), statistics.fmean(differences)
    if n < FEWEST_ROUNDS:
        return Equivalence(n, mean, None, None, None, None, None, margin, "preview")
    error = formulas.deviation(differences) / math.sqrt(n)
    half, half95 = (t_quantile(n - 1, confidence) * error for confidence in (0.90, 0.95))
    word = "not shown"
    if abs(mean) + half < margin:
        word = f"equivalent within ±{margin:g}"
    elif abs(mean) > half95:
        word = "different"
    p = tost_p(mean, error, n - 1, margin)
    return Equivalence(n, mean, mean - half, mean + half, mean - half95, mean + half95, p, margin, word)


def verdict_words(
    found, name_a: str, name_b: str, counted: str, tie_margin: float, needed: int | None, unit: str
) -> str:  # fmt: skip
    """A verdict in words. found: has verdict, ratio, low and high; counted: its n; needed: number of further units for
    a verdict; unit: as in "rounds"."""
    how, word = f"(95 % CI, {counted})", found.verdict
    if found.low is None:
        what = "disturbed" if word == "disturbed" else "preview"
        return f"{what}, no verdict: {name_b} / {name_a} = {times(found.ratio)} ({counted})"
    if word == "faster" and found.high > LARGE_RATIO:
        return f"{name_b} is {times(found.low)} to {times(found.high)} as fast as {name_a} {how}"
    if word == "faster":
        return f"{name_b} is {percent_range(found.low - 1, found.high - 1)} faster than {name_a} {how}"
    if word == "slower":
        return f"{name_b} is {percent_range(1 - found.high, 1 - found.low)} slower than {name_a} {how}"
    said = {
        "tie": f"no difference within ±{100 * tie_margin:g} %",
        "no difference": "no difference found",
        "disturbed": "disturbed, no verdict",
    }.get(word, word)
    span = f"{said}: {name_b} vs {name_a}: {signed(found.low - 1)} to {signed(found.high - 1)} % {how}"
    if word != "inconclusive":
        return span
    return f"{span}; {f'more than {MOST_ROUNDS}' if needed > MOST_ROUNDS else f'about {needed}'} {unit} would be needed"


def times(ratio: float) -> str:
    if ratio > 100:
        return "over ×100"
    return f"×{ratio:.2f}" if ratio < LARGE_RATIO else f"×{ratio:.0f}"


def percent_range(low: float, high: float) -> str:
    ends = ["<0.1" if 100 * x < 0.05 else f"{100 * x:.1f}" for x in (low, high)]
    return "–".join(dict.fromkeys(ends)) + " %"


def signed(fraction: float) -> str:
    """A fraction as a signed number of percent, limited to 999.

    >>> signed(-0.012), signed(0.0341), signed(789498.2)
    ('−1.2', '+3.4', 'over +999')
    """
    return "over +999" if fraction > 9.99 else f"{100 * fraction:+.1f}".replace("-", "−")
