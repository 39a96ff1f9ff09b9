"""Two identical programs while another process comes and goes: how often is one called faster? By simulation.

The order of the runs is the harness's own and the verdict the report's; only the clock is made up. The same with real
runs and a real busy loop is in tests/multiprocess/test_disturbance.py, with -m wide: it takes minutes.
"""

import math

import numpy as np
import pytest

from bench.analysis import stats
from bench.formulas import confidence_per_look
from bench.studies.base import LOOKS
from bench.studies.rounds import order

DRAWS = 2000
SLOWER = 0.6  # what is left of a program's speed while the other process runs
GAP = 0.5  # between two runs, in the time that a run takes: processes start, nothing is timed


def busy_share(starts, length: float, load: np.ndarray) -> list[float]:
    """The share of each stretch of time in which the load is on. load: when it changes, from off on."""
    spans = np.diff(np.concatenate([[0.0], load]))
    on = np.concatenate([[0.0], np.cumsum(spans * (np.arange(len(spans)) % 2))])  # time with load up to each change
    total = np.interp([[at, at + length] for at in starts], np.concatenate([[0.0], load]), on)
    return ((total[:, 1] - total[:, 0]) / length).tolist()


def one_comparison(draw, load, looks) -> str:
    """The verdict on a and b, which are the same program, at the first of these looks that gives one, or at the last.
    load: of the draw and the time until which it must go on -> the moments at which it changes."""
    places = [label for number in range(looks[-1]) for label in order(["a", "b"], number)]
    starts = [(1 + GAP) * i for i in range(len(places))]
    shares = busy_share(starts, 1.0, load(draw, starts[-1] + 2))
    speeds = {"a": [], "b": []}
    for label, share in zip(places, shares, strict=True):
        speeds[label].append(100 * math.exp(draw.normal(0, 0.01)) * (1 - share * (1 - SLOWER)))
    level = confidence_per_look(0.95, len(LOOKS) if len(looks) > 1 else 1)
    for n in looks:
        _, low, high = stats.interval(speeds["a"][:n], speeds["b"][:n], level)
        if (word := stats.verdict(low, high, 0.02)) in stats.VERDICTS:
            break
    return word


def at_random(mean: float):
    """A load that is on and off for exponentially long, this long on average, in the time that a run takes."""
    return lambda draw, until: np.cumsum(draw.exponential(mean, size=int(20 + 4 * until / mean)))


def regular(period: float):
    """A load that is on and off for as long, always."""
    return lambda draw, until: draw.uniform(0, 2 * period) + period * np.arange(int(4 + until / period))


LOADS = {
    "a run": at_random(1.0), "ten runs": at_random(10.0),
    "as regular as the runs": regular(1 + GAP), "as the rounds": regular(2 * (1 + GAP)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_identical_programs_under_a_load_that_comes_and_goes_are_rarely_told_apart(name):
    """With eight rounds in one of twenty, which is what an interval of 95 % is for, give or take three standard errors
    of the simulation; with ROUNDS=auto in fewer, so that of forty comparisons hardly ever more than two are wrong."""
    draw = np.random.default_rng(sorted(LOADS).index(name))
    fixed, auto = ([one_comparison(draw, LOADS[name], looks) in ("faster", "slower") for _ in range(DRAWS)]
                   for looks in ((8,), LOOKS[:3]))  # fmt: skip
    assert np.mean(fixed) <= 2 / 40 + 3 * math.sqrt(0.05 * 0.95 / DRAWS)
    assert np.mean(auto) < 0.04
    assert np.mean([sum(auto[i : i + 40]) > 2 for i in range(0, DRAWS, 40)]) < 0.2


def test_the_load_of_the_simulation_is_the_share_of_the_time():
    assert busy_share([0.0, 1.0, 2.5], 1.0, np.array([1.5, 2.0, 3.0, 9.0])) == pytest.approx([0.0, 0.5, 0.5])
