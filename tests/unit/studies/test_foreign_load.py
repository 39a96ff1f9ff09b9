"""Two identical programs while another process comes and goes: how often is one called faster? By simulation.

The order of the runs is the harness's own and the verdict the report's; only the clock is made up. A real run beside
real busy loops: tests/multiprocess/test_disturbance.py.
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
PERIOD = 1.5  # of a run, in the time that its timed steps take: between two runs processes start, nothing is timed


def busy_share(starts, load: np.ndarray) -> np.ndarray:
    """The share of each run in which the load is on. load: when it changes, from off on."""
    changes = np.concatenate([[0.0], load])
    on = np.concatenate([[0.0], np.cumsum(np.diff(changes) * (np.arange(len(load)) % 2))])  # time with load up to each
    return np.interp(starts + 1.0, changes, on) - np.interp(starts, changes, on)


def one_comparison(draw, load, looks) -> str:
    """The verdict on a and b, which are the same program, at the first of these looks that gives one, or at the last.
    load: of the draw and the time until which it must continue -> the moments at which it changes."""
    places = [label for number in range(looks[-1]) for label in order(["a", "b"], number)]
    starts = PERIOD * np.arange(len(places))
    shares = busy_share(starts, load(draw, starts[-1] + 2))
    speeds = {"a": [], "b": []}
    for label, share in zip(places, shares.tolist(), strict=True):
        speeds[label].append(100 * math.exp(draw.normal(0, 0.01)) * (1 - share * (1 - SLOWER)))
    level = confidence_per_look(0.95, len(LOOKS) if len(looks) > 1 else 1)
    for n in looks:
        _, low, high = stats.interval(speeds["a"][:n], speeds["b"][:n], level)
        if (word := stats.verdict(low, high, 0.02)) in stats.VERDICTS:
            break
    return word


LOADS = {  # on and off for exponentially long, this long on average; or for as long as a run or a round, always
    "a run": lambda draw, until: np.cumsum(draw.exponential(1.0, size=int(20 + 4 * until))),
    "ten runs": lambda draw, until: np.cumsum(draw.exponential(10.0, size=int(20 + until))),
    "as regular as the runs": lambda draw, until: draw.uniform(0, 3) + PERIOD * np.arange(int(4 + until / PERIOD)),
    "as the rounds": lambda draw, until: draw.uniform(0, 6) + 2 * PERIOD * np.arange(int(4 + until / PERIOD)),
}


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
