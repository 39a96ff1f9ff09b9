"""Two equal arms, idle and beside a load: rounds of the committed real suites, drawn into forty suites of each kind."""

import json

import pytest

from bench.analysis import stats
from bench.files import PROJECT
from bench.record.disturbance import above
from tests.validation import equal_arms

(RECORDED,) = (PROJECT / "results" / "reference").glob("*/equal-arms.json")
REAL = json.loads(RECORDED.read_text())
SEEDS = range(5)


def judged(loaded: bool, pairs: list) -> dict:
    """A drawn suite with its verdict, from its numbers alone."""
    disturbed = any(above(run) for pair in pairs for run in pair)
    a, b = ([pair[arm]["images_per_s"] for pair in pairs] for arm in (0, 1))
    ratio, low, high = stats.interval(a, b, stats.CONFIDENCE)
    word = "disturbed" if disturbed else stats.verdict(low, high, stats.TIE_MARGIN)
    return {"loaded": loaded, "n": len(pairs), "verdict": word, "ratio": ratio, "low": low, "high": high}


def test_beside_a_load_there_is_no_verdict_and_idle_hardly_a_false_one():
    """Forty suites of each kind from each seed; at most 5 % of the idle ones are false, as the interval promises. They
    are judged from their numbers; the first ones also from records, as `bench compare` does, which takes longer."""
    found = [judged(*each) for seed in SEEDS for each in equal_arms.drawn(REAL, equal_arms.SUITES, seed)]
    for suite, same in zip(equal_arms.replayed(REAL, 2), found, strict=False):
        assert suite == pytest.approx(same)
    assert len(found) == 2 * len(SEEDS) * equal_arms.SUITES
    assert {suite["verdict"] for suite in found if suite["loaded"]} == {"disturbed"}
    idle = [suite for suite in found if not suite["loaded"]]
    assert sum(suite["verdict"] in equal_arms.DIFFERENCES for suite in idle) <= 0.05 * len(idle)
    assert sum(map(equal_arms.within, idle)) >= 0.5 * len(idle)
    assert sum(suite["verdict"] == "disturbed" for suite in idle) <= 0.10 * len(idle)
