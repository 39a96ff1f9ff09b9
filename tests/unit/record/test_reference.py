"""The committed records: they are read, they are fair, and the known effects are in them."""

import json

import pytest

from bench.analysis import stats
from bench.analysis.suite import suites_of
from bench.config.options import FIELDS, UNSET
from bench.config.workloads import WORKLOADS
from bench.mistakes import MISTAKES, find
from bench.record import SCHEMA_VERSION, packed
from bench.record.disturbance import undisturbed
from bench.record.read import load, text_of
from bench.studies.registry import study_of
from bench.studies.replay.study import REPLAYS
from tests.runs import ROOT

REFERENCE = ROOT / "results" / "reference"
WINDOW = 8  # rounds of an ordinary comparison


@pytest.fixture(scope="module")
def committed():
    """Every committed record, by its path. They come from every older version of the schema but 5."""
    return {path: load(path) for path in packed.find_files(REFERENCE, "record.json")}


@pytest.fixture(scope="module")
def suites(committed):
    return suites_of(sorted(committed.values(), key=lambda record: record.started_at))


@pytest.fixture(scope="module")
def quiet(suites):
    """Those that were not disturbed, as far as that was measured."""
    return [suite for suite in suites if undisturbed(suite.records)[0]]


def the_one(quiet, study: str, about: str = ""):
    """The committed suite of a study that was not disturbed, and its result."""
    wanted = (study, about, None)
    (suite,) = [s for s in quiet if (s.study, study_of(s).about(s), s.first.network) == wanted]
    return suite, study_of(suite).result(suite)


def test_every_committed_record_is_migrated(committed):
    """What it measured stays as it is; its labels and values have the names of today, an option that did not exist the
    value that it had in effect."""
    seen = set()
    for path, record in committed.items():
        raw = json.loads(text_of(path))
        config, version, summary = raw["config"], raw["schema_version"], raw["summary"]
        old, before_3 = version < 5, {"augment": False, "checkpoint": False} if version < 3 else {}
        assert record["schema_version"] == SCHEMA_VERSION and record["samples"] == raw["samples"], path
        for name in FIELDS.keys() - config.keys():
            assert getattr(record.config, name) == (UNSET | before_3)[name], (path, name)
        assert all(getattr(record.config, name) == config[name] for name in FIELDS.keys() & config.keys()), path
        program, suite = config.get("role" if old else "program"), config.get("suite")
        assert (record.label.program, record.label.suite, record.label.round) == (program, suite, config.get("round"))
        assert record.program == (program or record.config.mode), path
        if old:
            head, colon, _ = (program or "").partition(":")
            study = suite and suite.partition("-")[0]
            assert record.label.variant == (head if colon else None), path
            assert record.label.study == ("sweep" if study == "knobs" else study), path
            assert record.workload == WORKLOADS["images"], path
        assert record.workload.units == ("tokens" if record.config.model == "gpt" else "images"), path
        seen.add((version, record.ok, record.label.study, record.label.variant))
        if not record.ok:
            assert (record.failure["kind"], record["nodes"], record.throughput) == (raw["failure"]["kind"], [], None)
            continue
        assert record.throughput == summary["throughput_images_per_s" if old else "throughput_per_s"] > 0, path
        assert "throughput_per_s" in record["provenance"] and len(record.samples) == record.world_size, path
        assert record.added == ({"median_throughput_per_s", "step_time_s/mean"} if old else set()), path
        ranks = [rank for node in record["nodes"] for rank in node["ranks"]]
        assert ranks == list(range(record.world_size)) and bool(record.network) == (len(record["nodes"]) > 1), path
        if version == 1:
            assert not any(part.facts or part.phase_time_s or part.timeline or part.lab for part in record.samples)
    assert {version for version, *_ in seen} >= {1, 2, 3, 4, 6, 7, 8}
    assert seen >= {(2, True, "replay", "fair"), (3, True, "sweep", None), (4, False, "lab", "wrong")}


def test_every_suite_is_compared_by_its_study_and_has_its_pictures(suites, quiet):
    """None was disturbed but trainings, whose seconds are quoted nowhere: what is learnt does not depend on time."""
    for suite in suites:
        study = study_of(suite)
        assert {path.suffix for path in (suite.folder / "pictures").iterdir()} == {".svg"}, suite.id
        assert study.name == suite.study and study.answer(study.result(suite)), suite.id
        if study.name in ("replay", "lab"):
            assert study.about(suite) in {"replay": REPLAYS, "lab": MISTAKES}[study.name], suite.id
    assert [suite.id for suite in suites if suite not in quiet and not suite.first.config.epochs] == []


def test_the_comparison_is_fair_and_has_enough_rounds(quiet):
    suite, result = the_one(quiet, "compare")
    assert result.certificate.fair and suite.n >= WINDOW
    assert set(result.ranking()) == {"single", "dp", "ddp", "horovod"}


@pytest.mark.parametrize(("name", "verdict"), [("dp-workers", "slower"), ("batch-grows", "faster"),
                                               ("ddp-barrier", "slower"), ("horovod-fp16", "slower")])  # fmt: skip
def test_a_replayed_unfairness_moved_the_verdict_as_it_was_known_to(quiet, name, verdict):
    suite, result = the_one(quiet, "replay", name)
    _, fair, unfair = suite.programs
    pair = result.pair(fair, unfair)
    assert pair.comparison.verdict == verdict == REPLAYS[name].moves[suite.device]
    assert pair.flagged


def test_the_same_program_is_not_called_faster_than_itself(quiet):
    """Real A/A runs: every eight rounds in a row, every pair of three equal programs."""
    suite, result = the_one(quiet, "replay", "nothing")
    assert result.certificate.fair
    values = [program.throughputs for program in suite.programs.values()]
    verdicts = [
        stats.compare_rounds(values[a][start : start + WINDOW], values[b][start : start + WINDOW]).verdict
        for start in range(suite.n - WINDOW + 1)
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    assert len(verdicts) >= 15
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 0.05 * len(verdicts)


def test_all_modes_reach_the_target_within_two_minutes_and_are_fair(quiet):
    """The seeds are not those with which the recipe was found."""
    suite, result = the_one(quiet, "accuracy")
    assert result.certificate.fair and suite.n >= WINDOW
    assert min(record.config.seed for record in suite.records) >= 20
    assert max(row.median_seconds for row in result.rows) < 120


def test_replicas_that_started_apart_stayed_as_far_apart_as_the_theory_says(suites):
    factors = set()
    for suite in (suite for suite in suites if suite.study == "unsynced"):
        result = study_of(suite).result(suite)
        assert result.certificate.fair
        for curve in (curve for curve in result.apart if curve.most):
            factors.add(round(curve.factor, 2))
            assert curve.deviation < 0.01, curve.sentence()
    assert 1.0 in factors and min(factors) < 0.9  # both of them: constant without decay, shrinking with it


def test_replicas_that_started_apart_lost_accuracy(quiet):
    """Ten seeds; rank 0's model of every unsynchronised run is worse, by an interval without zero."""
    (suite,) = [s for s in quiet if s.study == "unsynced" and not s.first.config.weight_decay]
    result = study_of(suite).result(suite)
    apart = [m for m in result.compared if m.name == "rank 0" and not m.program.config.init_sync]
    assert suite.n >= 10 and len(apart) >= 2
    for model in apart:
        assert model.found.high95 < 0 and model.p < 0.05, model.sentence()


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_of_the_museum_did_what_was_said_beforehand_and_was_found(quiet, name):
    """In every seed: the primary measure moved as expected, the detector named this mistake and no other, and found
    nothing in the right version."""
    _, result = the_one(quiet, "lab", name)
    row = result.rows[0]
    assert result.n >= 3 and result.certificate.fair and row.as_expected
    assert row.low > 0 if row.measure.moves == "up" else row.high < 0
    for side, expected in (("right", []), ("wrong", [name])):
        for record in result.records[side]:
            assert [finding.name for finding in find(record.observed)] == expected, record.run_id
