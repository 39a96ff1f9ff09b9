"""bench/formulas.py: the worked examples, and what must hold for any numbers."""

import math
import random

import numpy as np
import pytest
import scipy

from bench import formulas


def test_every_formula_has_a_worked_example():
    public = [f for name, f in vars(formulas).items() if callable(f) and not name.startswith("_")]
    assert all(">>>" in f.__doc__ for f in public)


def test_waiting_costs_throughput():
    """Ranks that step together are never faster than the same ranks alone; both are bounded by the fastest rank."""
    draw = random.Random(0)
    step_times = [[draw.uniform(0.01, 0.1) for _ in range(50)] for _ in range(3)]
    together = formulas.throughput_per_s(step_times, 96)
    alone = formulas.independent_throughput_per_s(step_times, 96)
    fastest = 96 * 50 / min(sum(times) for times in step_times)
    assert together <= alone <= fastest
    assert together == pytest.approx(96 * 50 / max(sum(times) for times in step_times))
    one = step_times[:1]
    assert formulas.throughput_per_s(one, 32) == formulas.independent_throughput_per_s(one, 32)
    with pytest.raises(ValueError):
        formulas.slowest_rank([[1.0, 2.0], [1.0]])


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_percentile_is_numpys(count):
    values = np.random.default_rng(count).normal(size=count).tolist()
    for percent in (0, 5, 50, 95, 100):
        assert formulas.percentile(values, percent) == pytest.approx(np.percentile(values, percent))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_adasum_of_any_gradients(ranks):
    """The order of two does not matter, nor the scale; a rank that has nothing changes nothing; it is between mean and
    sum where all point one way, and the mean where all are equal."""
    draw = np.random.default_rng(ranks)
    vectors = draw.normal(size=(ranks, 5))
    found = np.array(formulas.adasum(vectors.tolist()))
    assert formulas.adasum(vectors[::-1].tolist()) == pytest.approx(found)
    assert formulas.adasum((1e-3 * vectors).tolist()) == pytest.approx(1e-3 * found)
    assert formulas.adasum([vectors[0].tolist()] * ranks) == pytest.approx(vectors[0])
    assert formulas.adasum([vectors[0].tolist(), *[[0.0] * 5] * (ranks - 1)]) == pytest.approx(vectors[0])
    assert formulas.adasum(np.eye(ranks).tolist()) == pytest.approx(np.ones(ranks))
    for count in (0, ranks + 1, 3 * ranks):
        with pytest.raises(ValueError):
            formulas.adasum([[1.0]] * count)


def test_the_interval_is_students_t():
    draw = np.random.default_rng(2)
    a, b = draw.uniform(1, 2, 10), draw.uniform(1, 2, 10)
    logs = np.log(b / a)
    low, high = scipy.stats.t.interval(0.95, 9, loc=logs.mean(), scale=scipy.stats.sem(logs))
    found = formulas.log_ratio_interval(a.tolist(), b.tolist(), scipy.stats.t.ppf(0.975, 9))
    assert found == pytest.approx((math.exp(logs.mean()), math.exp(low), math.exp(high)))
    with pytest.raises(ValueError):
        formulas.log_ratio_interval([1.0], [2.0], 12.7)  # one round has no interval
