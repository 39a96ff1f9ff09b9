"""bench/analysis/stats.py: against numbers worked by hand, against scipy, and by simulation of what it promises.

The simulations call the functions themselves on thousands of seeded draws. A bound with monte_carlo(rate) in it is the
promised rate give or take three standard errors of the simulation.
"""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench import formulas
from bench.analysis import stats
from tests.runs import ROOT

DRAWS = 8000


def monte_carlo(rate: float, draws: int = DRAWS) -> float:
    """Three standard errors of a rate found by simulation."""
    return 3 * math.sqrt(rate * (1 - rate) / draws)


def rounds(n: int, sd: float, ratio: float = 1.0, draws: int = DRAWS, seed: int = 0):
    """Draws of two modes' throughputs: noise of the given log deviation on every round of each; b / a is `ratio`."""
    noise = np.random.default_rng([seed, n, round(1e4 * sd)]).normal(0, sd, size=(2, draws, n))
    return zip((100 * np.exp(noise[0])).tolist(), (100 * ratio * np.exp(noise[1])).tolist(), strict=True)


def verdicts(n: int, sd: float, ratio: float = 1.0, draws: int = DRAWS) -> dict[str, float]:
    """The share of draws that got each verdict, found as ``compare_rounds`` finds it; its other figures take longer."""
    words = [stats.verdict(*stats.interval(a, b, 0.95)[1:], 0.02) for a, b in rounds(n, sd, ratio, draws)]
    return {
        word: words.count(word) / draws
        for word in ("faster", "slower", "tie", "no difference", "inconclusive", "preview")
    }


# Against numbers worked by hand, and scipy


def test_three_rounds_by_hand():
    """d = 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, t(2) = 4.303; Walsh averages 0.1 0.15 0.2 0.2 0.25 0.3."""
    found = stats.compare_rounds([1.0, 1.0, 1.0], [math.exp(x) for x in (0.1, 0.2, 0.3)])
    half = 4.302653 * 0.1 / math.sqrt(3)
    expected = [math.exp(x) for x in (0.2, 0.2 - half, 0.2 + half)]
    assert [found.ratio, found.low, found.high] == pytest.approx(expected)
    assert found.hl_ratio == pytest.approx(math.exp(0.2))
    assert (found.hl_low, found.hl_high) == (None, None)
    assert found.p == 2 / 8
    assert (found.n, found.verdict) == (3, "inconclusive")


def test_the_t_interval_is_scipys():
    draw = np.random.default_rng(1)
    a, b = draw.uniform(1, 2, 9), draw.uniform(1, 2, 9)
    expected = scipy_stats.ttest_rel(np.log(b), np.log(a)).confidence_interval(0.95)
    found = stats.compare_rounds(a.tolist(), b.tolist())
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


@pytest.mark.parametrize("df", [1, 1.01, 2, 2.5, 3, 4, 7, 7.3, 19, 30.9, 200.5, 501, 5000])
def test_students_t_is_scipys(df):
    for confidence in (0.5, 0.9, 0.95, 0.999):
        expected = scipy_stats.t.ppf((1 + confidence) / 2, df)
        assert formulas.t_quantile(df, confidence) == pytest.approx(expected, rel=1e-9)
    for t in (0.0, 0.3, 2.0, 40.0):
        assert formulas.t_probability(t, df) == pytest.approx(1 - 2 * scipy_stats.t.sf(t, df), abs=1e-14)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 12])
def test_the_signed_rank_distribution_is_that_of_all_sign_patterns(n):
    patterns = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    sums = patterns @ np.arange(1, n + 1)
    assert formulas.signed_rank_counts(n) == np.bincount(sums).tolist()


@pytest.mark.parametrize("n", [6, 8, 15])
def test_the_signed_rank_interval_is_the_shifts_that_scipys_exact_test_does_not_reject(n):
    """Just inside either end p is above 5 %, just outside it is not, and the jump there is the achieved level."""
    d = np.random.default_rng(n).normal(0.1, 1, n)
    depth, achieved = stats.signed_rank_depth(n, 0.95)
    _, low, high = formulas.hodges_lehmann(d.tolist(), depth)
    for end, outward in ((low, -1e-9), (high, 1e-9)):
        assert scipy_stats.wilcoxon(d - end - outward, method="exact").pvalue == pytest.approx(1 - achieved)
        assert scipy_stats.wilcoxon(d - end + outward, method="exact").pvalue > 0.05


def test_the_depths_of_the_published_table():
    """Two-sided 5 % critical values of T+ for n = 6 … 12 are 0 2 3 5 8 10 13 (Wilcoxon 1945); depth is one more."""
    assert [stats.signed_rank_depth(n, 0.95)[0] for n in range(1, 13)] == [0, 0, 0, 0, 0, 1, 3, 4, 6, 9, 11, 14]


def test_five_rounds_have_no_signed_rank_interval_and_eight_have_the_one_of_their_depth():
    five, eight = ([1 + i / 100 for i in range(n)] for n in (5, 8))
    assert stats.compare_rounds([1.0] * 5, five).hl_low is None
    assert stats.signed_rank_depth(8, 0.95) == (4, 1 - 2 * 5 / 2**8)  # sums 0 1 2 3, of 1 1 1 2 patterns
    found = stats.compare_rounds([1.0] * 8, eight)
    walsh = sorted((math.log(x) + math.log(y)) / 2 for i, x in enumerate(eight) for y in eight[i:])
    assert (found.hl_low, found.hl_high) == pytest.approx((math.exp(walsh[3]), math.exp(walsh[-4])))
    assert found.hl_low < found.hl_ratio < found.hl_high


@pytest.mark.parametrize("n", [2, 5, 8])
def test_the_sign_flip_p_is_scipys_permutation_test(n):
    d = np.random.default_rng(n).normal(0.5, 1, n)
    found = scipy_stats.permutation_test((d,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert stats.sign_flip_p(d.tolist()) == pytest.approx(found.pvalue)


def test_random_flips_agree_with_all_flips(monkeypatch):
    d = np.random.default_rng(3).normal(0.5, 1, 12).tolist()
    exact = stats.sign_flip_p(d)
    monkeypatch.setattr(stats, "EXACT_ROUNDS", 4)
    assert stats.sign_flip_p(d) == pytest.approx(exact, abs=monte_carlo(exact, stats.RANDOM_FLIPS))
    assert stats.sign_flip_p(d) == stats.sign_flip_p(d)


def test_random_flips_never_give_zero():
    assert stats.sign_flip_p([1.0] * 40) == pytest.approx(1 / 20001)


def test_no_difference_at_all_has_p_one():
    assert stats.sign_flip_p([0.0] * 6) == stats.sign_flip_p([0.3]) == 1


# Verdicts and sentences


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (None, None, "preview"),
        (0.985, 1.015, "tie"),
        (1.001, 1.019, "tie"),  # above 1 and too small to matter: the tie goes first
        (0.981, 0.999, "tie"),
        (1 / 1.02, 1.02, "tie"),
        (0.9802, 0.999, "slower"),  # 2 % the other way round is 1/1.02 = 0.9804
        (1.001, 1.021, "faster"),
        (1.03, 1.05, "faster"),
        (0.97, 0.999, "slower"),
        (1.0, 1.05, "no difference"),
        (0.97, 1.01, "no difference"),
        (1 / 1.1, 1.1, "no difference"),
        (0.9, 1.05, "inconclusive"),
        (0.97, 1.11, "inconclusive"),
    ],
)
def test_verdicts(low, high, word):
    assert stats.verdict(low, high, 0.02) == word


def test_swapping_the_modes_swaps_the_verdict():
    opposite = {"faster": "slower", "slower": "faster", "tie": "tie"}
    seen = set()
    for sd in (0.005, 0.02):
        for a, b in rounds(4, sd, ratio=1.03, draws=100):
            there, back = stats.compare_rounds(a, b), stats.compare_rounds(b, a)
            seen.add(there.verdict)
            assert back.verdict == opposite.get(there.verdict, there.verdict)
            assert (back.low, back.hl_ratio, back.p) == pytest.approx((1 / there.high, 1 / there.hl_ratio, there.p))
            assert back.rounds_needed == there.rounds_needed
    assert seen >= {"faster", "no difference"}


BASE = stats.Comparison(8, 1.04, 1.031, 1.052, 1.04, 1.03, 1.05, 0.01, 0.01, 1.0, "faster", None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["ddp is 3.1–5.2 % faster than dp", "n = 8"]),
        ({"verdict": "slower", "low": 0.9, "high": 0.958}, ["ddp is 4.2–10.0 % slower than dp", "n = 8"]),
        ({"low": 1.0001}, ["<0.1–5.2 % faster"]),
        ({"low": 10.41, "high": 72.5}, ["×10 to ×72 as fast as dp"]),
        ({"low": 2.0, "high": 7148.8}, ["×2.00 to over ×100 as fast as dp"]),
        ({"verdict": "tie", "low": 0.996, "high": 1.011}, ["within ±2 %", "ddp vs dp: −0.4 to +1.1 %", "n = 8"]),
        ({"verdict": "no difference", "low": 0.95}, ["no difference found", "ddp vs dp: −5.0 to +5.2 %", "n = 8"]),
        ({"verdict": "inconclusive", "low": 0.75, "rounds_needed": 21},
         ["inconclusive", "ddp vs dp: −25.0 to +5.2 %", "n = 8", "21 rounds"]),
        ({"verdict": "inconclusive", "low": 0.05, "high": 7148.8, "rounds_needed": 4361},
         ["−95.0 to over +999 %", "more than 100 rounds"]),
        ({"verdict": "preview", "n": 1, "ratio": 1.5, "low": None, "high": None},
         ["preview, no verdict", "ddp / dp = ×1.50", "n = 1"]),
        ({"verdict": "disturbed"}, ["disturbed, no verdict", "ddp vs dp: +3.1 to +5.2 %", "n = 8"]),
        ({"verdict": "disturbed", "n": 2, "low": None, "high": None}, ["disturbed, no verdict", "×1.04", "n = 2"]),
    ],
)  # fmt: skip
def test_a_sentence_has_the_verdict_and_its_numbers(changes, words):
    said = dataclasses.replace(BASE, **changes).sentence("dp", "ddp")
    assert all(word in said for word in words), said


def test_disturbed_rounds_have_no_verdict_however_far_apart_they_are():
    found = stats.compare_rounds([100.0, 101.0, 99.0] * 3, [300.0, 301.0, 299.0] * 3, disturbed=True)
    assert found.verdict == "disturbed" and found.low > 2.9 and not stats.hold_together([found])[0]


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_rounds_are_a_preview(n):
    found = stats.compare_rounds([100.0] * n, [110.0] * n)
    assert found.verdict == "preview"
    assert (found.low, found.high, found.hl_low, found.hl_high, found.rounds_needed) == (None,) * 5
    assert (found.ratio, found.hl_ratio, found.p) == pytest.approx((1.1, 1.1, 0.5 ** (n - 1)))


@pytest.mark.parametrize(("ratio", "word"), [(1.0, "tie"), (1.01, "tie"), (1.5, "faster"), (0.5, "slower")])
def test_rounds_without_any_variance(ratio, word):
    found = stats.compare_rounds([2.0] * 6, [2.0 * ratio] * 6)
    assert (found.verdict, found.rounds_needed) == (word, None)
    assert found.low == found.high == pytest.approx(ratio)
    assert found.sentence("a", "b")


def test_what_disturbs_a_whole_round_cancels():
    drift = [1.0, 0.7, 0.5, 0.9, 0.6, 0.8]
    found = stats.compare_rounds([100 * x for x in drift], [105 * x for x in drift])
    assert (found.verdict, found.low, found.high) == ("faster", pytest.approx(1.05), pytest.approx(1.05))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, 2.0], [1.0]),
        ([], []),
        ([1.0, 0.0], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, -1.0]),
        ([1.0, math.nan], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, math.inf]),
    ],
)
def test_what_cannot_be_compared_is_an_error(a, b):
    with pytest.raises(ValueError, match="got"):
        stats.compare_rounds(a, b)


# How many rounds would do


@pytest.mark.parametrize("effect", [0.0, 0.008, 0.015, 0.03])
def test_the_needed_rounds_give_a_verdict_with_the_centre_off_by_one_standard_error(effect):
    deviation, margin = 0.04, 0.02
    n = stats.rounds_needed([effect + deviation * x for x in (-1.0, 0.0, 1.0)], margin, 0.95)
    for error in (-1, 1):
        centre = effect + error * deviation / math.sqrt(n)
        half = scipy_stats.t.ppf(0.975, n - 1) * deviation / math.sqrt(n)
        word = stats.verdict(math.exp(centre - half), math.exp(centre + half), margin)
        assert word == ("tie" if effect < 0.0099 else "faster")
    one_less = (scipy_stats.t.ppf(0.975, n - 2) + 1) * deviation / math.sqrt(n - 1)
    assert one_less > max(effect, math.log(1 + margin) - effect)


def test_more_noise_needs_more_rounds_and_more_effect_fewer():
    def needed(effect, deviation):
        return stats.rounds_needed([effect - deviation, effect, effect + deviation], 0.02, 0.95)

    assert needed(0, 0.05) < needed(0, 0.1) < needed(0, 0.2)
    assert needed(0.05, 0.2) > needed(0.1, 0.2)
    assert needed(0, 0.2) == pytest.approx(4 * needed(0, 0.1), rel=0.05)  # as the square of the noise


def test_a_hopeless_plan_is_still_a_number():
    """The normal quantile and one, squared, times variance over room squared: within 2 %."""
    plan = (2.96 * math.sqrt(2) / math.log(1.02)) ** 2
    assert stats.rounds_needed([-1.0, 1.0], 0.02, 0.95) == pytest.approx(plan, rel=0.02)


def test_without_variance_one_round_more_would_do():
    assert stats.rounds_needed([0.01, 0.01], 0.02, 0.95) == 3


@pytest.mark.parametrize(("sd", "ratio", "word", "share"), [(0.05, 1.05, "faster", 0.84), (0.02, 1.0, "tie", 0.68)])
def test_the_needed_rounds_mostly_bring_a_verdict(sd, ratio, word, share):
    """Planned from the true centre and deviation."""
    spread = sd * math.sqrt(2)
    n = stats.rounds_needed([math.log(ratio) + spread * x for x in (-1, 0, 1)], 0.02, 0.95)
    assert 15 < n < 30
    t = stats.t_quantile(n - 1, 0.95)
    intervals = [formulas.log_ratio_interval(a, b, t)[1:] for a, b in rounds(n, sd, ratio, draws=1000)]
    assert np.mean([stats.verdict(*i, 0.02) == word for i in intervals]) == pytest.approx(share, abs=0.06)


# What is promised, by simulation


@pytest.mark.parametrize("n", [5, 8, 20])
def test_the_t_interval_covers(n):
    t = stats.t_quantile(n - 1, 0.95)
    intervals = [formulas.log_ratio_interval(a, b, t) for a, b in rounds(n, 0.03, ratio=1.07)]
    assert 0.93 < np.mean([low < 1.07 < high for _, low, high in intervals]) < 0.97


@pytest.mark.parametrize("n", [6, 8, 20])
@pytest.mark.parametrize("noise", ["normal", "laplace", "standard_cauchy"])
def test_the_signed_rank_interval_covers_whatever_the_symmetric_noise(n, noise):
    depth, achieved = stats.signed_rank_depth(n, 0.95)
    draws = getattr(np.random.default_rng(n), noise)(size=(DRAWS, n)).tolist()
    intervals = [formulas.hodges_lehmann(d, depth) for d in draws]
    found = np.mean([low < 0 < high for _, low, high in intervals])
    assert found >= 0.94
    assert found == pytest.approx(achieved, abs=monte_carlo(achieved))


@pytest.mark.parametrize("sd", [0.01, 0.03, 0.1])
def test_identical_modes_are_rarely_told_apart(sd):
    """Faster and slower together: 5 % where noise leaves no room for ties, less where ties go first."""
    found = verdicts(8, sd)
    assert found["faster"] + found["slower"] <= 0.05 + (monte_carlo(0.05) if sd > 0.01 else 0)


def test_a_real_difference_is_found():
    found = verdicts(8, 0.02, ratio=1.05, draws=2000)
    assert found["faster"] > 0.9
    assert found["slower"] == 0


def test_ties_are_found():
    assert verdicts(8, 0.005, draws=2000)["tie"] > 0.99
    assert verdicts(8, 0.01, draws=2000)["tie"] > 0.8  # the half-width is 1.2 % on average


def test_a_difference_beyond_the_margin_is_rarely_a_tie():
    assert verdicts(8, 0.01, ratio=1.021, draws=2000)["tie"] < 0.025 + monte_carlo(0.025, 2000)


def test_noisy_rounds_are_inconclusive():
    assert verdicts(3, 0.1, draws=2000)["inconclusive"] > 0.9


@pytest.mark.parametrize("noise", ["normal", "laplace"])
def test_the_sign_flip_p_is_uniform_where_nothing_differs(noise):
    """With n rounds p takes the values 2/2**n, 4/2**n, … 1, each as often as the others."""
    draws = getattr(np.random.default_rng(7), noise)(size=(DRAWS, 8)).tolist()
    p = np.array([stats.sign_flip_p(d) for d in draws])
    for level in (1 / 128, 6 / 128, 32 / 128, 64 / 128, 100 / 128):
        assert np.mean(p <= level) == pytest.approx(level, abs=monte_carlo(level))


# Many pairs


def test_the_p_values_are_those_of_the_interval():
    """Of no difference: scipy's paired t test. Each is below 5 % exactly where the verdict's interval says so."""
    words = set()
    for a, b in rounds(6, 0.01, ratio=1.015, draws=300):
        found = stats.compare_rounds(a, b)
        assert found.p_difference == pytest.approx(scipy_stats.ttest_rel(np.log(b), np.log(a)).pvalue, abs=1e-12)
        assert (found.p_difference < 0.05) == (not found.low <= 1 <= found.high)
        assert (found.p_tie < 0.05) == (found.verdict == "tie")
        words.add(found.verdict)
    assert words == {"faster", "tie", "no difference"}


def test_holm_rejects_step_by_step():
    """As Holm's paper states it: the i-th smallest is compared with alpha / (m - i + 1), up to the first that fails."""
    for p in np.random.default_rng(3).beta(0.3, 3, size=(300, 7)).tolist():
        expected, alpha = set(), 0.05
        for i, place in enumerate(np.argsort(p).tolist()):
            if p[place] > alpha / (len(p) - i):
                break
            expected.add(place)
        assert {i for i, x in enumerate(formulas.holm(p)) if x <= alpha} == expected


@pytest.mark.parametrize("sd", [0.1, 0.0135, 0.01])
def test_of_tables_of_equal_modes_at_most_one_in_twenty_has_a_difference_that_holds_together(sd):
    """Five equal modes, ten pairs: at large noise, and where most pairs are shown to be ties, which must not make it
    easier for the others. Alone, a difference is found in far more of these tables."""
    draws, alone, together = 600, 0, 0
    noise = np.random.default_rng(round(1e4 * sd)).normal(0, sd, size=(draws, 5, 6))
    for modes in np.exp(noise).tolist():
        found = [stats.compare_rounds(modes[i], modes[j]) for i in range(5) for j in range(i)]
        held = stats.hold_together(found)
        differ = [each.verdict in ("faster", "slower") for each in found]
        alone += any(differ)
        together += any(d and h for d, h in zip(differ, held, strict=True))
    assert together / draws <= 0.05 + monte_carlo(0.05, draws)
    assert alone / draws > 0.08


# Outliers


def test_outliers_are_named_and_kept():
    b = [1.05, 1.051, 1.049, 1.052, 1.048, 1.05, 0.6, 1.05]
    assert stats.outliers(b) == [6]
    found = stats.compare_rounds([1.0] * 8, b)
    assert found.n == 8
    assert found.low < 1 < found.high  # the wild round widens the interval …
    assert found.hl_ratio == pytest.approx(1.05, abs=0.002)  # … and hardly moves the pseudo-median


def test_three_robust_deviations_is_the_limit():
    """The median of 0 … 10 with MAD 3 (limit 13.34): 18 lies within of it, 19 beyond."""
    assert stats.outliers([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 18]) == []
    assert stats.outliers([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 19]) == [10]


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 9.0], [0.1 + 0.2, 0.3, 0.3, 0.3]])
def test_nothing_stands_out_of_too_little(values):
    assert stats.outliers(values) == []


def test_one_value_among_equals_stands_out():
    assert stats.outliers([5.0, 5.0, 5.0, 5.0, 6.0]) == [4]


# Equivalence of accuracies


def equivalent(a, b, margin: float) -> stats.Equivalence:
    """The equivalence of paired values."""
    return stats.equivalence([y - x for x, y in zip(a, b, strict=True)], margin)


def test_tost_is_the_worse_of_scipys_two_one_sided_tests():
    draw = np.random.default_rng(5)
    a, b = draw.normal(0.9, 0.01, 7), draw.normal(0.9, 0.01, 7)
    found = equivalent(a, b, 0.01)
    above = scipy_stats.ttest_1samp(b - a, -0.01, alternative="greater").pvalue
    below = scipy_stats.ttest_1samp(b - a, 0.01, alternative="less").pvalue
    interval = scipy_stats.ttest_1samp(b - a, 0).confidence_interval(0.9)
    assert found.p == pytest.approx(max(above, below))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_equivalent_exactly_when_both_tests_reject():
    draw = np.random.default_rng(6)
    found = [equivalent([0.0] * 5, draw.normal(0.2, 1, 5).tolist(), 1.0) for _ in range(500)]
    assert all(e.equivalent == (e.p < 0.05) == (e.low > -1 and e.high < 1) for e in found)
    assert 0 < sum(e.equivalent for e in found) < 500


def test_modes_that_differ_by_the_margin_are_called_equivalent_in_one_of_twenty():
    d = np.random.default_rng(8).normal(0.01, 0.004, size=(DRAWS, 6)).tolist()
    found = np.mean([equivalent([0.0] * 6, x, 0.01).equivalent for x in d])
    assert found == pytest.approx(0.05, abs=monte_carlo(0.05))


def test_the_published_interval_is_scipys_at_95_percent():
    d = np.random.default_rng(9).normal(0.002, 0.01, 7)
    found = stats.equivalence(d.tolist(), 0.01)
    interval = scipy_stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert (found.low95, found.high95) == pytest.approx((interval.low, interval.high))
    assert found.mean_difference == pytest.approx(d.mean())


@pytest.mark.parametrize("n", [3, 6, 12])
@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("sd", [0.002, 0.01])
def test_a_difference_as_large_as_the_margin_is_called_equivalent_in_at_most_one_of_twenty(n, side, sd):
    d = np.random.default_rng([n, side + 1]).normal(side * 0.01, sd, size=(4000, n)).tolist()
    found = [stats.equivalence(x, 0.01) for x in d]
    assert np.mean([e.verdict == "equivalent within ±0.01" for e in found]) <= 0.05 + monte_carlo(0.05, 4000)


def test_equal_modes_are_called_different_in_at_most_one_of_twenty():
    """A margin too small to be shown, so that no difference is hidden by equivalence."""
    d = np.random.default_rng(10).normal(0, 0.01, size=(DRAWS, 6)).tolist()
    found = np.mean([stats.equivalence(x, 1e-6).verdict == "different" for x in d])
    assert found == pytest.approx(0.05, abs=monte_carlo(0.05))


def test_different_exactly_when_scipys_t_test_rejects_and_equivalence_is_not_shown():
    draws = np.random.default_rng(11).normal(0.01, 0.01, size=(500, 5))
    found = [stats.equivalence(d.tolist(), 0.015) for d in draws]
    rejected = [scipy_stats.ttest_1samp(d, 0).pvalue < 0.05 for d in draws]
    assert [e.verdict == "different" for e in found] == [
        r and not e.equivalent for r, e in zip(rejected, found, strict=True)
    ]
    assert {e.verdict for e in found} == {"different", "equivalent within ±0.015", "not shown"}
    assert any(r and e.equivalent for r, e in zip(rejected, found, strict=True))  # shown to exist, and to be small


def test_equal_accuracies_are_shown_and_so_is_their_turning_round():
    a, b = [0.97, 0.96, 0.98, 0.97], [0.968, 0.963, 0.979, 0.972]
    one, other = equivalent(a, b, 0.01), equivalent(b, a, 0.01)
    assert one.verdict == other.verdict == "equivalent within ±0.01"
    assert (one.low95, one.high95, one.p) == pytest.approx((-other.high95, -other.low95, other.p))


@pytest.mark.parametrize(("difference", "expected"), [(0.0, (0.0, True)), (0.5, (1.0, False)), (1.0, (1.0, False))])
def test_equivalence_without_any_variance(difference, expected):
    found = equivalent([1.0] * 3, [1.0 + difference] * 3, 0.5)
    assert (found.p, found.equivalent) == expected


def test_one_pair_shows_no_equivalence():
    found = equivalent([0.9], [0.9], 0.01)
    assert (found.low, found.high, found.p, found.equivalent) == (None, None, None, False)
    assert (found.low95, found.high95, found.verdict) == (None, None, "preview")


@pytest.mark.parametrize(("d", "margin"), [([], 1), ([math.inf], 1), ([0.0, math.nan], 1), ([0.0], 0), ([0.0], -1)])
def test_differences_that_cannot_be_tested_are_an_error(d, margin):
    with pytest.raises(ValueError, match="need finite differences and margin > 0"):
        stats.equivalence(d, margin)


def test_importing_it_loads_no_large_library():
    code = "import sys, bench.analysis.stats; print(sorted({'numpy', 'scipy', 'pandas', 'torch'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr
