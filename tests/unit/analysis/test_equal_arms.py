"""Two equal arms, idle and beside a load: rounds of the committed real suites, drawn into forty suites of each kind."""

import json

import pytest

from bench.files import PROJECT
from tests.validation import equal_arms

(RECORDED,) = (PROJECT / "results" / "reference").glob("*/equal-arms.json")
REAL = json.loads(RECORDED.read_text())


def counts(suites: list[dict], loaded: bool) -> tuple[int, list[str]]:
    some = [suite for suite in suites if suite["loaded"] is loaded]
    return len(some), [suite["verdict"] for suite in some]


@pytest.mark.parametrize("seed", range(5))
def test_beside_a_load_there_is_no_verdict_and_idle_hardly_a_false_one(seed):
    found = equal_arms.replayed(REAL, equal_arms.SUITES, seed)
    number, words = counts(found, loaded=True)
    assert number == equal_arms.SUITES and set(words) == {"disturbed"}
    idle = [suite for suite in found if not suite["loaded"]]
    differences = [suite for suite in idle if suite["verdict"] in equal_arms.DIFFERENCES]
    assert len(differences) <= 0.05 * len(idle)
    assert sum(map(equal_arms.within, idle)) >= 0.5 * len(idle)
    assert sum(suite["verdict"] == "disturbed" for suite in idle) <= 0.10 * len(idle)


def test_the_real_suites_are_as_the_manual_says():
    number, words = counts(REAL, loaded=True)
    assert number >= 10 and set(words) == {"disturbed"}
    number, words = counts(REAL, loaded=False)
    assert number >= 10 and sum(word in equal_arms.DIFFERENCES for word in words) <= 1
