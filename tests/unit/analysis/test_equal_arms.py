"""Two equal arms, idle and beside a load: rounds of the committed real suites, drawn into forty suites of each kind."""

import json

from bench.files import PROJECT
from tests.validation import equal_arms

(RECORDED,) = (PROJECT / "results" / "reference").glob("*/equal-arms.json")
REAL = json.loads(RECORDED.read_text())
SEEDS = range(5)


def verdicts(suites: list[dict], loaded: bool) -> list[str]:
    return [suite["verdict"] for suite in suites if suite["loaded"] is loaded]


def test_beside_a_load_there_is_no_verdict_and_idle_hardly_a_false_one():
    """Forty suites of each kind from each seed; at most 5 % of the idle ones are false, as the interval promises."""
    found = [suite for seed in SEEDS for suite in equal_arms.replayed(REAL, equal_arms.SUITES, seed)]
    assert len(found) == 2 * len(SEEDS) * equal_arms.SUITES and set(verdicts(found, loaded=True)) == {"disturbed"}
    idle = [suite for suite in found if not suite["loaded"]]
    assert sum(suite["verdict"] in equal_arms.DIFFERENCES for suite in idle) <= 0.05 * len(idle)
    assert sum(map(equal_arms.within, idle)) >= 0.5 * len(idle)
    assert sum(suite["verdict"] == "disturbed" for suite in idle) <= 0.10 * len(idle)


def test_the_real_suites_are_as_the_manual_says():
    beside, idle = verdicts(REAL, loaded=True), verdicts(REAL, loaded=False)
    assert len(beside) >= 10 and set(beside) == {"disturbed"}
    assert len(idle) >= 10 and sum(word in equal_arms.DIFFERENCES for word in idle) <= 1
