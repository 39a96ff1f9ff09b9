"""The committed records: they are read, they are fair, and what the README says of them follows from them."""

import json
import statistics
from pathlib import Path

import pytest

from bench.analysis import stats
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suites_of
from bench.mistakes import MISTAKES
from bench.record.observed import find, observed_of
from bench.record.read import FOLDER, find_records
from bench.studies.accuracy.result import compare_accuracy, points, verdict_of, with_span
from bench.studies.lab.result import compare_lab
from bench.studies.unsynced.result import compare_unsynced
from tests.runs import ROOT

REFERENCE = ROOT / "results" / "reference"
README = " ".join((ROOT / "README.md").read_text().split())
WINDOW = 8  # rounds of an ordinary comparison


@pytest.fixture(scope="module")
def suites():
    """Every committed suite, by its id; no committed record is refused."""
    records, refused = find_records(REFERENCE)
    assert not refused
    return {suite.id: suite for suite in suites_of(records)}


def replays(suites, name: str) -> list:
    """The committed replays whose programs differ in one option."""
    found = []
    for suite in suites.values():
        if suite.kind == "replay":
            fair, unfair = (records[0]["config"] for records in list(suite.roles.values())[1:])
            if name in {key for key in fair if fair[key] != unfair[key] and key != "role"} or (
                name == "nothing" and {key for key in fair if fair[key] != unfair[key]} == {"role"}
            ):
                found.append(suite)
    return found


def test_pictures_lie_beside_every_suite(suites):
    for suite in suites.values():
        pictures = Path(suite.first[FOLDER]).parent / "pictures"
        assert {path.suffix for path in pictures.iterdir()} == {".svg", ".png"}, suite.id


def test_the_committed_comparison_is_fair_and_the_readme_says_what_it_says(suites):
    (suite,) = [suite for suite in suites.values() if suite.kind == "compare"]
    result = compare_suite(suite)
    assert result.certificate.fair and suite.n >= 8
    for role in suite.roles:
        row = [f"| {statistics.geometric_mean(suite.throughputs(role)):.1f} |"]
        if role != result.base:
            c = result.pair(result.base, role).comparison
            row = [f"{row[0]} {c.ratio:.3f} [{c.low:.3f}–{c.high:.3f}] | {c.verdict} |"]
        assert row[0] in README, role


@pytest.mark.parametrize(("option", "verdict"), [("workers", "slower"), ("per_device_batch", "faster"),
                                                 ("step_barrier", "slower"), ("compression", "slower")])  # fmt: skip
def test_a_replayed_unfairness_moved_the_verdict_as_it_was_known_to(suites, option, verdict):
    (suite,) = replays(suites, option)
    _, fair, unfair = suite.roles
    result = compare_suite(suite)
    c = result.pair(fair, unfair).comparison
    assert c.verdict == verdict
    assert result.pair(fair, unfair).flagged
    assert f"{c.ratio:.3f} [{c.low:.3f}–{c.high:.3f}]" in README


def test_the_same_program_is_not_called_faster_than_itself(suites):
    """Real A/A runs: every eight rounds in a row, every pair of three equal programs."""
    (suite,) = replays(suites, "nothing")
    assert compare_suite(suite).certificate.fair
    values = [suite.throughputs(role) for role in suite.roles]
    verdicts = [
        stats.compare_rounds(values[a][start : start + WINDOW], values[b][start : start + WINDOW]).verdict
        for start in range(suite.n - WINDOW + 1)
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    assert len(verdicts) >= 15
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 0.05 * len(verdicts)


def test_all_modes_reach_the_same_accuracy_and_the_readme_says_how_surely(suites):
    """The seeds are not those with which the recipe was found."""
    (suite,) = [suite for suite in suites.values() if suite.kind == "accuracy"]
    result = compare_accuracy(suite)
    assert result.certificate.fair
    for row in result.rows:
        assert row.median_seconds < 120
        cells = [row.role, with_span(*row.mean, ".2f"), f"{row.reached} of {suite.n}", f"{row.median_seconds:.1f}"]
        found = row.against_base
        if found:
            between = f"{points(found.low95)} to {points(found.high95)}"
            cells += [f"{points(found.mean_difference)} [{between}]", verdict_of(found)]
        assert f"| {' | '.join(cells)} |" in README, row.role


def test_what_options_of_training_cost_is_said_as_it_was_measured(suites):
    (suite,) = [
        suite for suite in suites.values() if suite.kind == "knobs" and suite.first["config"]["mode"] == "single"
    ]
    result = compare_suite(suite)
    for role in suite.roles:
        if role != result.base:
            c = result.pair(result.base, role).comparison
            assert f"{c.ratio:.3f} [{c.low:.3f}–{c.high:.3f}] | {c.verdict} |" in README, role


def test_the_input_pipeline_is_as_much_faster_as_the_readme_says():
    (path,) = REFERENCE.glob("*/selfbench-*-input.json")
    rows = json.loads(path.read_text())["rows"]
    assert rows
    for row in rows:
        if row["target"]:
            assert f"{row['ratio']:.3f} [{row['low']:.3f}–{row['high']:.3f}]" in README, row


def test_replicas_that_started_apart_stayed_as_far_apart_as_the_theory_says(suites):
    found = [compare_unsynced(suite) for suite in suites.values() if suite.kind == "unsynced"]
    factors = set()
    for result in found:
        assert result.certificate.fair
        for apart in result.apart:
            if apart.most:
                factors.add(round(apart.factor, 2))
                assert apart.deviation < 0.01, apart.sentence()
                assert f"× {apart.factor:.4g}" in README or f"| × {apart.factor:.6g} |" in README
    assert 1.0 in factors and min(factors) < 0.9  # both of them: constant without decay, shrinking with it


def test_what_replicas_that_start_apart_lost_is_said_as_it_was_measured(suites):
    """Ten seeds; every model of an unsynchronised run is worse, by an interval without zero."""
    (suite,) = [s for s in suites.values() if s.kind == "unsynced" and not s.first["config"]["weight_decay"]]
    result = compare_unsynced(suite)
    assert suite.n >= 10
    for model in result.compared:
        if model.name == "rank 0" and "unsynced" in model.role:
            assert model.found.high95 < 0 and model.p < 0.05, model.sentence()
            assert f"{points(model.found.mean_difference)} [{points(model.found.low95)} to" in README


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_of_the_museum_did_what_was_said_beforehand_and_was_found(suites, name):
    """In every seed: the figure that decides moved as expected, the detector named this mistake and no other, and found
    nothing in the right version."""
    (result,) = [
        result for suite in suites.values() if suite.kind == "lab" and (result := compare_lab(suite)).name == name
    ]
    row = result.rows[0]
    assert result.n >= 3 and result.certificate.fair and row.as_expected
    assert row.low > 0 if row.figure.moves == "up" else row.high < 0
    for side, expected in (("right", []), ("wrong", [name])):
        assert {tuple(f.name for f in find(observed_of(record))) for record in result.records[side]} == {
            tuple(expected)
        }
    assert f"{row.figure.name}: {' → '.join(row.sides)}" in README
