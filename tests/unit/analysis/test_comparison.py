"""Suites, the parity certificate and the answer, from records."""

import random

import pytest

from bench.analysis import certificate
from bench.analysis.certificate import NOTHING_VARIES, SHOWN, Rules, certify
from bench.analysis.comparison import compare_suite, records_of
from bench.analysis.suite import suites_of
from bench.config import options
from bench.config.options import WORK
from bench.errors import UserError
from bench.studies.breakdown.study import RULES as BREAKDOWN_RULES
from bench.studies.registry import study_of
from bench.studies.scaling.study import STRONG_RULES, WEAK_RULES
from bench.studies.sweep.study import RULES as SWEEP_RULES
from tests import records
from tests.added import add_option
from tests.runs import refuses


def test_records_are_put_together_whatever_their_order():
    made = records.suite_records("compare", rounds=3) + records.suite_records("strong", rounds=2)
    random.Random(1).shuffle(made)
    found = {s.study: s for s in suites_of([*made, records.record()])}
    assert {study: s.n for study, s in found.items()} == {"compare": 3, "strong": 2}
    rounds = [[r.label.round for r in program.records] for program in found["compare"].programs.values()]
    assert rounds == [[0, 1, 2]] * 5


def test_a_round_that_is_not_whole_is_left_out_and_kept_in_sight():
    made = records.suite_records("compare", rounds=3)
    found = records.one_suite([r for r in made if (r.program, r.label.round) != ("ddp", 1)])
    assert found.rounds == [0, 2] and {len(program.records) for program in found.programs.values()} == {2}
    assert len(found.left_out) == 4 and {r.label.round for r in found.left_out} == {1}


def test_of_a_round_that_was_repeated_the_last_complete_attempt_counts():
    made = records.suite_records("compare", rounds=2)
    first = [r for r in made if r.label.round == 0]
    labels = {"suite": first[0].label.suite, "study": "compare", "round": 0}
    again = [records.record(r.config.mode, 50.0, r.num_devices, program=r.program, seconds=9e5 + i, **labels)
             for i, r in enumerate(first)]  # fmt: skip
    found = records.one_suite([*again, *made])
    assert [program.throughputs[0] for program in found.programs.values()] == pytest.approx([50.0] * 5)
    assert sorted(r.run_id for r in found.left_out) == sorted(r.run_id for r in first)
    cut = records.one_suite([*again[:-1], *made])  # the second attempt was interrupted: nothing of it counts
    assert [p.records[0].run_id for p in cut.programs.values()] == [r.run_id for r in first]
    assert len(cut.left_out) == len(again) - 1


def test_failed_and_profiled_records_are_no_rounds_and_programs_are_in_order():
    made = records.suite_records("compare", rounds=2)
    labels = {"suite": made[0].label.suite, "program": "ddp"}
    made += [records.record(failed="killed", round=2, **labels), records.record(profile=True, round=0, **labels)]
    found = records.one_suite(made)
    assert (found.n, len(found.failed), len(found.extra)) == (2, 1, 1)
    weak = records.suite_records("weak", rounds=1)
    random.Random(2).shuffle(weak)
    found = records.one_suite(weak)
    devices = [label[-1] for label in found.programs]
    assert next(iter(found.programs)) == "single 1" and devices == sorted(devices)


def fact(found, name, rules=NOTHING_VARIES):
    return next(f for f in certify(records_of(found), rules).facts if f.name == name)


def changed(change, program: str | None = None):
    return records.suite("compare", rounds=3, change=change, of=program)


def facts(**changes):
    return records.in_samples(lambda part: part["facts"].update(changes))


def test_equal_programs_are_fair():
    result = compare_suite(records.suite("compare"))
    assert result.certificate.fair, result.certificate.sentence()
    assert {f.name for f in result.certificate.inherent} >= {"device set", "images per norm layer"}


def test_the_tries_of_a_searched_batch_are_a_fact():
    name, tries = "tries of BATCH=max", [{"program": "ddp", "batch": 4, "fitted": True, "peak_gib": 0.5}]
    for program, status in ((None, "equal"), ("ddp", "differs")):
        assert fact(changed(lambda data: data.update(batch_search=tries), program), name).status == status
    with pytest.raises(StopIteration):
        fact(records.suite("compare", rounds=1), name)


# What was done unfairly -> the line that must name it. Each change is made in the record, not in the config.
UNFAIR = {
    "loader workers in total": records.in_samples(lambda part: part.update(loader_workers=3)),
    "threads in total": records.in_samples(lambda part: part.update(threads=9)),
    "initial weights": records.in_samples(lambda part: part.update(initial_weights_sha256="d" * 64)),
    "images of the first steps": records.in_samples(lambda part: part.update(batch_fingerprints=[1, 2])),
    "learning rate": facts(lr=0.4),
    "gradient compression": facts(compression="fp16"),
    "precision": facts(autocast="bfloat16"),
    "activation checkpointing": facts(recomputed_blocks=8),
    "extra work per step": facts(step_barrier=True),
    "optimizer": facts(weight_decay=0.1),
    "norm": facts(norm="SyncBatchNorm × 20"),
    "gradient": facts(gradient="each process its own"),
    "storage": facts(storage_ms=3.0),
    "parameters": facts(parameters=5),
}


@pytest.mark.parametrize("name", UNFAIR)
def test_what_one_program_got_and_the_others_not_is_named(name):
    result = compare_suite(changed(UNFAIR[name], "ddp"))
    assert name in [f.name for f in result.certificate.differences]
    assert result.pair("single", "ddp").flagged and name in result.certificate.sentence()
    assert not result.pair("single", "dp").flagged  # these two got the same treatment


@pytest.mark.parametrize(("source", "status"), [("", "not recorded"), ("a", "equal"), ("{round}", "differs")])
def test_code_with_changes_is_equal_by_its_hash_in_every_round(source, status):
    def change(data: dict) -> None:
        data["environment"]["git"]["dirty"] = True
        data["environment"]["source_sha256"] = source.format(**data["config"]) * 64

    assert fact(changed(change), "code").status == status


def test_the_base_stays_the_base_when_its_first_record_is_lost():
    made = records.suite_records("replay", rounds=4)
    found = records.one_suite([r for r in made if (r.program, r.label.round) != ("base: dp", 0)])
    assert list(found.programs) == list(records.replay_programs()) and compare_suite(found).base == "base: dp"
    found = records.one_suite([r for r in made if r.program != "base: dp"])
    with pytest.raises(UserError):
        study_of(found).result(found)


def test_what_scaling_varies_is_studied_and_what_it_does_not_is_named():
    programs = {label: o for label, o in records.scaling_programs("weak").items() if "indep" not in label}
    found = records.suite("weak", programs, rounds=2)
    assert fact(found, "global batch", WEAK_RULES).status == "inherent"
    assert fact(found, "global batch", STRONG_RULES).status == "differs"  # there it may not grow
    shorter = records.in_samples(lambda part: part.update(first_indices=[*range(9)]))  # unlike others on two devices
    other = records.suite("weak", programs, rounds=2, change=shorter, of="ddp 2")
    assert fact(other, "global batch", WEAK_RULES).status == "differs"


def test_what_a_sweep_or_a_breakdown_varies_is_no_unfairness_there():
    found = records.suite("sweep", rounds=2)
    assert fact(found, "gradient compression", SWEEP_RULES).status == "inherent"
    assert fact(found, "gradient compression").status == "differs"
    found = records.suite("breakdown", rounds=3)
    assert fact(found, "gradient", BREAKDOWN_RULES).status == "inherent"
    assert study_of(found).result(found).certificate.fair and fact(found, "gradient").status == "differs"
    own = {"gradient": "each process its own; weights averaged every 4 steps"}  # MODE=local, and its exchange is on
    found = records.suite("breakdown", rounds=2, change=facts(**own), of="horovod")
    assert fact(found, "gradient", BREAKDOWN_RULES).status == "differs"


def test_precision_and_format_are_studied_where_the_program_is_set_so():
    programs = records.format_programs()
    found = records.suite("sweep", programs, rounds=2)
    for name in ("precision", "memory format", "compiler"):
        assert fact(found, name, SWEEP_RULES).status == "inherent"
        assert fact(found, name).status == "differs"
    for name, unasked in (
        ("precision", {"autocast": "bfloat16"}),  # its options do not say so
        ("OpenMP wait policy", {"waiting_threads": "spin forever"}),
    ):  # no option of a run
        other = records.suite("sweep", programs, rounds=2, change=facts(**unasked), of="single compile=1")
        assert fact(other, name, SWEEP_RULES).status == "differs"
    with refuses("precision"):
        compare_suite(records.suite("compare", programs, rounds=2))


@pytest.mark.parametrize("section", WORK)
def test_an_option_that_is_added_to_the_work_is_named_without_a_line_of_its_own(monkeypatch, section):
    assert {*options.names(*WORK)} >= SHOWN  # those that have a line
    add_option(monkeypatch, section, certificate)
    found = changed(lambda data: data["config"].update(made_up=1), "dp")
    assert fact(found, "other options").status == "differs" and "made_up=1" in fact(found, "other options").values["dp"]
    assert fact(found, "other options", Rules(options=("made_up",))).status == "equal"  # the study varies it


def test_the_answer_names_the_fastest_first_and_the_bound_never():
    speeds = {"single": 90.0, "ddp": 120.0, "dp": 70.0, "horovod": 119.9}
    result = compare_suite(records.suite("compare", records.compare_programs(**speeds)))
    assert result.ranking()[0] == "ddp" and "independent" not in result.ranking()
    assert any("faster than dp" in line for line in result.answer())
    assert result.pair("dp", "ddp") is result.pair("ddp", "dp")
    one = compare_suite(records.suite("compare", rounds=1))
    assert one.pair("single", "ddp").comparison.low is None and not any("faster" in line for line in one.answer())


@pytest.mark.parametrize(("metric", "value"), [("others_cpu_share", 0.5), ("steal_share", 0.06),
                                               ("foreign_gpu_processes", 1), ("gpu_slowed_share", 0.2)])  # fmt: skip
def test_one_disturbed_run_takes_every_verdict_of_its_suite_and_no_interval(metric, value):
    def disturb(**more):
        return lambda data: data["summary"].update({metric: value} | more)

    quiet, loaded = compare_suite(changed(dict)), compare_suite(changed(disturb(), "dp"))
    assert {pair.comparison.verdict for pair in loaded.pairs} == {"disturbed"} and not any(loaded.significant())
    assert [p.comparison.low for p in loaded.pairs] == [p.comparison.low for p in quiet.pairs]
    # the thresholds of a record count, and not those of today
    assert not changed(disturb(disturbed_above={metric: value})).disturbed


@pytest.mark.parametrize(("name", "value"), [("model", "resnet34"), ("image_size", 64), ("data", "synthetic")])
def test_different_workloads_are_refused_by_the_name_of_what_differs(name, value):
    found = changed(lambda data: data["config"].update({name: value}), "dp")
    with refuses(name):
        compare_suite(found)


def test_a_suite_without_a_whole_round_is_refused():
    made = records.suite_records("compare", rounds=2)
    apart = [r for r in made if (r.program, r.label.round) in (("dp", 0), ("ddp", 1))]
    found = records.one_suite([*apart, records.record(profile=True, suite=made[0].label.suite, program="dp", round=0)])
    with pytest.raises(UserError):
        compare_suite(found)
    alone = [r for r in made if (r.program, r.label.round) == ("dp", 0)]
    found = records.one_suite([*alone, records.record(suite="x-1", failed="hung")])
    assert len(compare_suite(found).answer()) == 1 and not compare_suite(found).pairs
