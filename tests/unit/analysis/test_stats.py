"""bench/analysis/stats.py: against scipy, by hand, and by simulation of what it promises.

The simulations call the functions themselves on thousands of seeded draws. A bound with monte_carlo(rate) in it is the
promised rate give or take three standard errors of the simulation.
"""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy

from bench import formulas
from bench.analysis import stats
from tests.runs import ROOT

DRAWS = 2000


def monte_carlo(rate: float, draws: int = DRAWS) -> float:
    """Three standard errors of a rate found by simulation."""
    return 3 * math.sqrt(rate * (1 - rate) / draws)


def rounds(n: int, sd: float, ratio: float = 1.0, draws: int = DRAWS, seed: int = 0):
    """Draws of two modes' throughputs: noise of the given log deviation on every round of each; b / a is `ratio`."""
    noise = np.random.default_rng([seed, n, round(1e4 * sd)]).normal(0, sd, size=(2, draws, n))
    return zip((100 * np.exp(noise[0])).tolist(), (100 * ratio * np.exp(noise[1])).tolist(), strict=True)


def shares(n: int, sd: float, ratio: float = 1.0) -> dict[str, float]:
    """Verdict -> the share of draws that got it, found as ``compare_rounds`` finds it; its other values take longer."""
    found = [stats.verdict(*stats.interval(a, b, 0.95)[1:], 0.02) for a, b in rounds(n, sd, ratio)]
    return {word: found.count(word) / DRAWS for word in (*stats.VERDICTS, "inconclusive")}


@pytest.mark.parametrize("df", [1, 1.01, 2.5, 3, 7, 7.3, 30.9, 200.5, 5000])
def test_students_t_is_scipys(df):
    for confidence in (0.5, 0.9, 0.95, 0.999):
        expected = scipy.stats.t.ppf((1 + confidence) / 2, df)
        assert formulas.t_quantile(df, confidence) == pytest.approx(expected, rel=1e-9)
    for t in (0.0, 0.3, 2.0, 40.0):
        assert formulas.t_probability(t, df) == pytest.approx(1 - 2 * scipy.stats.t.sf(t, df), abs=1e-14)


@pytest.mark.parametrize("n", [6, 8, 15])
def test_the_signed_rank_interval_is_the_shifts_that_scipys_exact_test_does_not_reject(n):
    """Just inside either end p is above 5 %, just outside it is not, and the jump there is the achieved level."""
    d = np.random.default_rng(n).normal(0.1, 1, n)
    depth, achieved = stats.signed_rank_depth(n, 0.95)
    _, low, high = formulas.hodges_lehmann(d.tolist(), depth)
    for end, outward in ((low, -1e-9), (high, 1e-9)):
        outside = scipy.stats.wilcoxon(d - end - outward, method="exact").pvalue
        assert outside == pytest.approx(1 - achieved) and outside <= 0.05
        assert scipy.stats.wilcoxon(d - end + outward, method="exact").pvalue > 0.05


def test_the_sign_flip_p_is_scipys_permutation_test(monkeypatch):
    for n in (2, 5, 8):
        d = np.random.default_rng(n).normal(0.5, 1, n)
        found = scipy.stats.permutation_test((d,), np.sum, permutation_type="samples", n_resamples=np.inf)
        assert stats.sign_flip_p(d.tolist()) == pytest.approx(found.pvalue)
    assert stats.sign_flip_p([0.0] * 6) == stats.sign_flip_p([0.3]) == 1
    assert stats.sign_flip_p([1.0] * 40) == pytest.approx(1 / 20001)  # random flips never give zero
    d = np.random.default_rng(3).normal(0.5, 1, 12).tolist()
    exact = stats.sign_flip_p(d)
    monkeypatch.setattr(stats, "EXACT_ROUNDS", 4)
    assert stats.sign_flip_p(d) == pytest.approx(exact, abs=monte_carlo(exact, stats.RANDOM_FLIPS))


@pytest.mark.parametrize(("low", "high", "word"), [
    (1.001, 1.019, "tie"),  # above 1 and too small to matter: the tie goes first
    (0.981, 0.999, "tie"),
    (1 / 1.02, 1.02, "tie"),
    (0.9802, 0.999, "slower"),  # 2 % the other way round is 1/1.02 = 0.9804
    (1.001, 1.021, "faster"),
    (1.0, 1.05, "no difference"),
    (1 / 1.1, 1.1, "no difference"),
    (0.97, 1.11, "inconclusive"),
])  # fmt: skip
def test_verdicts_at_their_limits(low, high, word):
    assert stats.verdict(low, high, 0.02) == word


def test_swapping_the_modes_swaps_the_verdict():
    opposite = {"faster": "slower", "slower": "faster", "tie": "tie"}
    seen = set()
    for sd in (0.005, 0.02):
        for a, b in rounds(4, sd, ratio=1.03, draws=50):
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
        ({"verdict": "slower", "low": 0.9, "high": 0.958}, ["ddp is 4.2–10.0 % slower than dp"]),
        ({"low": 1.0001}, ["<0.1–5.2 % faster"]),
        ({"low": 2.0, "high": 7148.8}, ["×2.00", "×100"]),
        ({"verdict": "tie", "low": 0.996, "high": 1.011}, ["±2 %", "−0.4", "+1.1"]),
        ({"verdict": "inconclusive", "low": 0.75, "rounds_needed": 21}, ["inconclusive", "−25.0", "21 rounds"]),
        ({"verdict": "preview", "n": 1, "ratio": 1.5, "low": None, "high": None}, ["preview", "×1.50", "n = 1"]),
        ({"verdict": "disturbed"}, ["disturbed", "+3.1", "+5.2"]),
    ],
)  # fmt: skip
def test_a_sentence_has_the_verdict_and_its_numbers(changes, words):
    said = dataclasses.replace(BASE, **changes).sentence("dp", "ddp")
    assert all(word in said for word in words), said


def test_disturbed_rounds_and_too_few_have_no_verdict():
    found = stats.compare_rounds([100.0, 101.0, 99.0] * 3, [300.0, 301.0, 299.0] * 3, disturbed=True)
    assert found.verdict == "disturbed" and found.low > 2.9 and not stats.significant_after_holm([found])[0]
    for n in (1, 2):
        found = stats.compare_rounds([100.0] * n, [110.0] * n)
        assert found.verdict == "preview"
        assert (found.low, found.high, found.hl_low, found.hl_high, found.rounds_needed) == (None,) * 5
        assert (found.ratio, found.hl_ratio, found.p) == pytest.approx((1.1, 1.1, 0.5 ** (n - 1)))
    found = stats.compare_rounds([1.0] * 3, [math.exp(x) for x in (0.1, 0.2, 0.3)])  # Walsh averages need more rounds
    assert found.hl_ratio == pytest.approx(math.exp(0.2)) and (found.hl_low, found.hl_high) == (None, None)
    assert found.low is not None and (found.p, found.verdict) == (2 / 8, "inconclusive")


@pytest.mark.parametrize(("ratio", "word"), [(1.0, "tie"), (1.01, "tie"), (1.5, "faster"), (0.5, "slower")])
def test_rounds_without_any_variance_and_what_disturbs_a_whole_round(ratio, word):
    drift = [2.0, 1.4, 1.0, 1.8, 1.2, 1.6]  # cancels
    found = stats.compare_rounds(drift, [ratio * x for x in drift])
    assert (found.verdict, found.rounds_needed) == (word, None)
    assert (found.low, found.high) == (pytest.approx(ratio), pytest.approx(ratio)) and found.sentence("a", "b")


@pytest.mark.parametrize("effect", [0.0, 0.008, 0.015, 0.03])
def test_the_needed_rounds_give_a_verdict_with_the_centre_off_by_one_standard_error(effect):
    deviation, margin = 0.04, 0.02
    n = stats.rounds_needed([effect + deviation * x for x in (-1.0, 0.0, 1.0)], margin, 0.95)
    for error in (-1, 1):
        centre = effect + error * deviation / math.sqrt(n)
        half = scipy.stats.t.ppf(0.975, n - 1) * deviation / math.sqrt(n)
        word = stats.verdict(math.exp(centre - half), math.exp(centre + half), margin)
        assert word == ("tie" if effect < 0.0099 else "faster")
    one_less = (scipy.stats.t.ppf(0.975, n - 2) + 1) * deviation / math.sqrt(n - 1)
    assert one_less > max(effect, math.log(1 + margin) - effect)


def test_equal_modes_are_rarely_told_apart_and_differences_ties_and_noise_are_found():
    """Faster and slower together: 5 % where noise leaves no room for ties, less where ties go first."""
    for sd, most in ((0.01, 0.05), (0.03, 0.05 + monte_carlo(0.05)), (0.1, 0.05 + monte_carlo(0.05))):
        equal = shares(8, sd)
        assert equal["faster"] + equal["slower"] <= most and (equal["tie"] > 0.8) == (sd == 0.01)
    far = shares(8, 0.02, ratio=1.05)
    assert far["faster"] > 0.9 and far["slower"] == 0
    assert shares(8, 0.01, ratio=1.021)["tie"] < 0.025 + monte_carlo(0.025)  # a difference beyond the margin
    assert shares(8, 0.005)["tie"] > 0.99 and shares(3, 0.1)["inconclusive"] > 0.9


def test_interval_and_p_values_are_scipys_paired_t_test():
    """Each p is below 5 % exactly where the verdict's interval says so."""
    found = set()
    for a, b in rounds(6, 0.01, ratio=1.015, draws=300):
        each, test = stats.compare_rounds(a, b), scipy.stats.ttest_rel(np.log(b), np.log(a))
        expected = test.confidence_interval(0.95)
        assert (each.low, each.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
        assert each.p_difference == pytest.approx(test.pvalue, abs=1e-12)
        assert (each.p_difference < 0.05) == (not each.low <= 1 <= each.high)
        assert (each.p_tie < 0.05) == (each.verdict == "tie")
        found.add(each.verdict)
    assert found == {"faster", "tie", "no difference"}


def test_holm_rejects_step_by_step():
    """As Holm's paper states it: the i-th smallest is compared with alpha / (m - i + 1), up to the first that fails."""
    for p in np.random.default_rng(3).beta(0.3, 3, size=(300, 7)).tolist():
        expected, alpha = set(), 0.05
        for i, place in enumerate(np.argsort(p).tolist()):
            if p[place] > alpha / (len(p) - i):
                break
            expected.add(place)
        assert {i for i, x in enumerate(formulas.holm(p)) if x <= alpha} == expected


def test_of_several_pairs_ties_do_not_make_it_easier_for_differences():
    difference = dataclasses.replace(BASE, p_difference=0.02, p_tie=1.0)
    tie = dataclasses.replace(BASE, verdict="tie", p_difference=0.5, p_tie=0.0)
    open_still = dataclasses.replace(BASE, verdict="no difference", p_difference=0.0, p_tie=0.0)
    assert stats.significant_after_holm([difference]) == [True]
    assert stats.significant_after_holm([difference, tie, tie, open_still]) == [False, True, True, False]


@pytest.mark.parametrize(
    ("values", "far"),
    [
        ([1.05, 1.051, 1.049, 1.052, 1.048, 1.05, 0.6, 1.05], [6]),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 18], []),  # the median of 0 … 10 with MAD 3: the limit is 13.34 from it
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 19], [10]),
        ([5.0, 5.0, 5.0, 5.0, 6.0], [4]),
        ([], []), ([1.0], []), ([1.0, 9.0], []), ([0.1 + 0.2, 0.3, 0.3, 0.3], []),
    ],
)  # fmt: skip
def test_outliers_are_named_and_kept(values, far):
    assert stats.outliers(values) == far
    if far == [6]:
        found = stats.compare_rounds([1.0] * 8, values)
        assert found.n == 8 and found.low < 1 < found.high  # the wild round widens the interval …
        assert found.hl_ratio == pytest.approx(1.05, abs=0.002)  # … and hardly moves the pseudo-median


def test_equivalence_is_the_worse_of_scipys_two_one_sided_tests():
    """Different exactly where the t test rejects and equivalence is not shown."""
    seen = set()
    for d in np.random.default_rng(11).normal(0.01, 0.01, size=(300, 5)):
        found = stats.equivalence(d.tolist(), 0.015)
        above = scipy.stats.ttest_1samp(d, -0.015, alternative="greater").pvalue
        below = scipy.stats.ttest_1samp(d, 0.015, alternative="less").pvalue
        test = scipy.stats.ttest_1samp(d, 0)
        for ends, level in (((found.low, found.high), 0.9), ((found.low95, found.high95), 0.95)):
            assert ends == pytest.approx(tuple(test.confidence_interval(level)))
        assert found.p == pytest.approx(max(above, below)) and found.mean_difference == pytest.approx(d.mean())
        assert found.equivalent == (found.p < 0.05) == (found.low > -0.015 and found.high < 0.015)
        assert (found.verdict == "different") == (test.pvalue < 0.05 and not found.equivalent)
        seen.add((found.verdict, bool(test.pvalue < 0.05)))
    assert {word for word, _ in seen} == {"different", "equivalent within ±0.015", "not shown"}
    assert ("equivalent within ±0.015", True) in seen  # shown to exist, and to be small


@pytest.mark.parametrize(("difference", "expected"), [(0.0, (0.0, True)), (0.5, (1.0, False)), (1.0, (1.0, False))])
def test_equivalence_without_variance_and_of_one_pair(difference, expected):
    found = stats.equivalence([difference] * 3, 0.5)
    assert (found.p, found.equivalent) == expected
    one = stats.equivalence([difference], 0.5)
    assert (one.low, one.high, one.p, one.equivalent, one.verdict) == (None, None, None, False, "preview")


@pytest.mark.parametrize(("compute", "arguments"), [
    (stats.compare_rounds, ([1.0, 2.0], [1.0])), (stats.compare_rounds, ([], [])),
    *[(stats.compare_rounds, ([1.0, wrong], [1.0, 1.0])) for wrong in (0.0, -1.0, math.nan, math.inf)],
    (stats.equivalence, ([], 1)), (stats.equivalence, ([math.inf], 1)), (stats.equivalence, ([0.0, math.nan], 1)),
    (stats.equivalence, ([0.0], 0)), (stats.equivalence, ([0.0], -1)),
])  # fmt: skip
def test_what_cannot_be_compared_is_an_error(compute, arguments):
    with pytest.raises(ValueError):
        compute(*arguments)


def test_importing_it_loads_no_large_library():
    code = "import sys, bench.analysis.stats; print(sorted({'numpy', 'scipy', 'pandas', 'torch'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr
