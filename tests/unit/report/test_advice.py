"""From records to advice: which of them count, and the parts of a step."""

import json

import pytest

from bench.analysis.suite import suites_of
from bench.cli.actions import predict_mode as command
from bench.errors import UserError
from bench.predict.advice import answers
from bench.predict.advice.facts import COMPUTATION, DATA_WAIT, EXPOSED, IMBALANCE, REST
from bench.record.read import find_records
from bench.report.advice import facts_of
from bench.studies.breakdown.result import step_ms
from bench.studies.compare.study import COMPARE
from bench.studies.registry import study_of
from tests import forecasts, networks, profiles, records
from tests.validation.pages import manual


def compared(name: str = "0001", rounds: int = 3, **speeds) -> list:
    return records.suite_records("compare", records.compare_programs(**speeds), rounds=rounds, name=name)


def of(found: list, runs=(), network=()):
    return facts_of(suites_of(found), list(runs), network)


def ways(facts) -> dict:
    return {way.label: way for way in facts.ways}


def test_the_parts_add_up_to_the_step_and_the_bound_tells_what_is_exposed():
    found = of(made := compared())
    way = ways(found)["ddp"]
    assert set(ways(found)) == {"single", "dp", "ddp", "horovod"}  # the bound is not a way to train
    assert set(way.parts) == {DATA_WAIT, EXPOSED, IMBALANCE, COMPUTATION}
    first = {record.program: record for record in made if record.label.round == 0}
    assert way.parts[EXPOSED][0] == pytest.approx(step_ms(first["ddp"]) - step_ms(first["independent"]))
    assert way.steps_ms == pytest.approx([step_ms(r) for r in made if r.program == "ddp"])
    assert set(ways(found)["single"].parts) == {DATA_WAIT, COMPUTATION}
    assert set(ways(found)["dp"].parts) == {DATA_WAIT, REST}  # one process: no run without exchange is like it


def test_a_breakdown_of_the_same_programs_tells_the_parts():
    apart = records.suite_records("breakdown", rounds=3, name="0002")
    found = of(compared() + apart)
    steps = {(r.program, r.label.round): step_ms(r) for r in apart}
    exposed = [steps["ddp", n] - steps["ddp no_sync", n] for n in range(3)]
    assert ways(found)["ddp"].parts[EXPOSED] == pytest.approx(exposed)
    assert len(ways(found)["ddp"].throughputs) == 3  # speed is the comparison's
    other = records.suite_records("breakdown", rounds=2, name="0003", batch=16)
    assert ways(of(compared() + other))["ddp"].parts[EXPOSED] == ways(of(compared()))["ddp"].parts[EXPOSED]
    with pytest.raises(UserError):
        of([], [records.record("ddp")])


def test_the_newest_comparison_with_its_rounds_counts():
    found = of(compared("0001", ddp=50.0) + compared("0002", ddp=60.0) + compared("0003", rounds=1))
    assert "-0002" in found.source and "n = 3" in found.source
    assert of(compared(rounds=2)).withheld and not of(compared(rounds=3)).withheld


def test_a_profile_is_used_for_the_workload_and_batch_of_the_suite(tmp_path):
    def profile(name: str, **options):
        return find_records(profiles.record(tmp_path / name, **options))[0][0]

    assert of(compared(), [profile("same")]).profile.units == 32
    for name, options in {"batch": {"batch": 64}, "model": {"model": "resnet34"}, "none": {"profile": False}}.items():
        assert of(compared(), [profile(name, **options)]).profile is None
    alone = of([], [profile("alone")])
    assert list(ways(alone)) == ["single"] and alone.profile and "n = 1" in alone.source


def test_runs_on_several_devices_over_a_measured_link_fit_the_forecast(tmp_path):
    """Only runs of the profile's work count, and of devices that do not share cores."""
    runs = records.suite_records("compare", model="resnet34") + compared("0002")
    for run in runs:
        forecasts.one_thread(run.data)
    profile = find_records(profiles.record(tmp_path / "one", change=forecasts.one_thread))[0][0]
    network = networks.record()
    found = of(runs, [profile], [network])
    assert {mode: [point.ranks for point in fit.points] for mode, fit in found.fits.items()} == {
        "ddp": [1, 2], "horovod": [1, 2]}  # fmt: skip
    assert len(found.fits["ddp"].points[1].steps) == 3  # rounds
    assert not of(runs, [profile]).fits


def test_on_the_reference_machines_the_advice_is_what_compare_finds():
    """By the verdicts of each committed comparison that has one process: nothing is faster than what is advised, and
    on CPUs, whose cores the processes share, that is one process."""
    folders = [folder for place in manual.reference_folders() for folder in place.glob(f"{COMPARE.name}-*")]
    alone = [suite for suite in suites_of([record for folder in folders for record in find_records(folder)[0]])
             if "single" in suite.programs]  # fmt: skip
    assert {suite.folder.parent.name for suite in alone} == {folder.parent.name for folder in folders}
    for suite in alone:
        result, facts = study_of(suite).result(suite), facts_of([suite], [])
        advised = answers.choose(facts.ways, facts.looks).advised.label
        against = {way.label: result.pair(advised, way.label).comparison.verdict
                   for way in facts.ways if way.label != advised}  # fmt: skip
        assert against and "slower" in against.values() and "faster" not in against.values(), suite.id
        _, best, pair = answers.distribution(facts.ways, facts.looks)
        assert (advised == "single") == (not pair.shows_faster(best))
        assert advised == "single" or suite.first.on_gpu, suite.id


def test_an_emulated_record_never_enters(tmp_path):
    """Under its own name it is not looked at, and under that of a run it is refused."""
    folder = records.store(tmp_path, compared())
    before = command.read(folder)
    for name in ("emulation.json", "record.json"):
        (place := folder / name.split(".")[0]).mkdir()
        (place / name).write_text(json.dumps({"emulation_version": 1, "status": "ok"}))
    assert [way.throughputs for way in command.read(folder).ways] == [way.throughputs for way in before.ways]
