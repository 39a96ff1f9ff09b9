"""The committed records: they are read, they are fair, and the known effects are in them."""

import pytest

from bench.analysis import stats
from bench.analysis.suite import suites_of
from bench.mistakes import MISTAKES, find
from bench.record.disturbance import undisturbed
from bench.record.read import find_records
from bench.studies.registry import study_of
from bench.studies.replay.study import REPLAYS
from tests.runs import ROOT

REFERENCE = ROOT / "results" / "reference"
WINDOW = 8  # rounds of an ordinary comparison


@pytest.fixture(scope="module")
def suites():
    """Every committed suite, by its id; no committed record is refused."""
    records, refused = find_records(REFERENCE)
    assert not refused
    return {suite.id: suite for suite in suites_of(records)}


def quiet(suites) -> list:
    """Those that were not disturbed, as far as that was measured."""
    return [suite for suite in suites.values() if undisturbed(suite.records)[0]]


def the_one(suites, study: str, about: str = ""):
    """The committed suite of a study that was not disturbed, and its result."""
    wanted = (study, about, None)
    (suite,) = [s for s in quiet(suites) if (s.study, study_of(s).about(s), s.first.network) == wanted]
    return suite, study_of(suite).result(suite)


def test_every_suite_is_compared_by_its_study_and_has_its_pictures(suites):
    """None was disturbed but trainings, whose seconds are quoted nowhere: what is learnt does not depend on time."""
    for suite in suites.values():
        study = study_of(suite)
        assert {path.suffix for path in (suite.folder / "pictures").iterdir()} == {".svg"}, suite.id
        assert study.name == suite.study and study.answer(study.result(suite)), suite.id
        if study.name in ("replay", "lab"):
            assert study.about(suite) in {"replay": REPLAYS, "lab": MISTAKES}[study.name], suite.id
    disturbed = [suite for suite in suites.values() if suite not in quiet(suites)]
    assert [suite.id for suite in disturbed if not suite.first.config.epochs] == []


def test_the_comparison_is_fair_and_has_enough_rounds(suites):
    suite, result = the_one(suites, "compare")
    assert result.certificate.fair and suite.n >= WINDOW
    assert set(result.ranking()) == {"single", "dp", "ddp", "horovod"}


@pytest.mark.parametrize(("name", "verdict"), [("dp-workers", "slower"), ("batch-grows", "faster"),
                                               ("ddp-barrier", "slower"), ("horovod-fp16", "slower")])  # fmt: skip
def test_a_replayed_unfairness_moved_the_verdict_as_it_was_known_to(suites, name, verdict):
    suite, result = the_one(suites, "replay", name)
    _, fair, unfair = suite.programs
    pair = result.pair(fair, unfair)
    assert pair.comparison.verdict == verdict == REPLAYS[name].moves[suite.device]
    assert pair.flagged


def test_the_same_program_is_not_called_faster_than_itself(suites):
    """Real A/A runs: every eight rounds in a row, every pair of three equal programs."""
    suite, result = the_one(suites, "replay", "nothing")
    assert result.certificate.fair
    values = [program.throughputs for program in suite.programs.values()]
    verdicts = [
        stats.compare_rounds(values[a][start : start + WINDOW], values[b][start : start + WINDOW]).verdict
        for start in range(suite.n - WINDOW + 1)
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    assert len(verdicts) >= 15
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 0.05 * len(verdicts)


def test_all_modes_reach_the_target_within_two_minutes_and_are_fair(suites):
    """The seeds are not those with which the recipe was found."""
    suite, result = the_one(suites, "accuracy")
    assert result.certificate.fair and suite.n >= WINDOW
    assert min(record.config.seed for program in suite.programs.values() for record in program.records) >= 20
    for row in result.rows:
        assert row.median_seconds < 120, row.label


def test_replicas_that_started_apart_stayed_as_far_apart_as_the_theory_says(suites):
    factors = set()
    for suite in (suite for suite in suites.values() if suite.study == "unsynced"):
        result = study_of(suite).result(suite)
        assert result.certificate.fair
        for curve in (curve for curve in result.apart if curve.most):
            factors.add(round(curve.factor, 2))
            assert curve.deviation < 0.01, curve.sentence()
    assert 1.0 in factors and min(factors) < 0.9  # both of them: constant without decay, shrinking with it


def test_replicas_that_started_apart_lost_accuracy(suites):
    """Ten seeds; rank 0's model of every unsynchronised run is worse, by an interval without zero."""
    (suite,) = [s for s in quiet(suites) if s.study == "unsynced" and not s.first.config.weight_decay]
    result = study_of(suite).result(suite)
    apart = [m for m in result.compared if m.name == "rank 0" and not m.program.config.init_sync]
    assert suite.n >= 10 and len(apart) >= 2
    for model in apart:
        assert model.found.high95 < 0 and model.p < 0.05, model.sentence()


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_of_the_museum_did_what_was_said_beforehand_and_was_found(suites, name):
    """In every seed: the primary measure moved as expected, the detector named this mistake and no other, and found
    nothing in the right version."""
    _, result = the_one(suites, "lab", name)
    row = result.rows[0]
    assert result.n >= 3 and result.certificate.fair and row.as_expected
    assert row.low > 0 if row.measure.moves == "up" else row.high < 0
    for side, expected in (("right", []), ("wrong", [name])):
        for record in result.records[side]:
            assert [finding.name for finding in find(record.observed)] == expected, record.run_id
