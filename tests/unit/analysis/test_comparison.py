"""Suites, the parity certificate and the answer, from records."""

import random

import pytest

from bench.analysis import certificate
from bench.analysis.certificate import FACTS, NOTHING_VARIES, SHOWN, Rules, certify
from bench.analysis.comparison import compare_suite, records_of
from bench.analysis.suite import suites_of
from bench.config import options
from bench.config.options import WORK
from bench.errors import UserError
from bench.studies.breakdown.study import RULES as BREAKDOWN_RULES
from bench.studies.registry import study_of
from bench.studies.scaling.study import STRONG_RULES, WEAK_RULES
from bench.studies.sweep.study import RULES as SWEEP_RULES
from tests.added import add_option
from tests.records import (
    breakdown_programs,
    compare_programs,
    edited,
    format_programs,
    in_samples,
    record,
    replay_programs,
    scaling_programs,
    suite,
    suite_records,
    sweep_programs,
)

# --- Suites ----------------------------------------------------------------------------------------------------------


def test_records_are_put_together_whatever_their_order():
    records = suite_records("compare", compare_programs(), rounds=3) + suite_records(
        "weak", compare_programs(), rounds=2
    )
    random.Random(1).shuffle(records)
    found = {s.study: s for s in suites_of([*records, record()])}
    assert {study: s.n for study, s in found.items()} == {"compare": 3, "weak": 2}
    rounds = [[r.label.round for r in program.records] for program in found["compare"].programs.values()]
    assert rounds == [[0, 1, 2]] * 5


def test_a_round_that_is_not_whole_is_left_out_and_kept_in_sight():
    records = suite_records("compare", compare_programs(), rounds=3)
    (found,) = suites_of([r for r in records if (r.program, r.label.round) != ("ddp", 1)])
    assert found.rounds == [0, 2] and {len(program.records) for program in found.programs.values()} == {2}
    assert len(found.left_out) == 4 and {r.label.round for r in found.left_out} == {1}


def test_of_a_round_that_was_repeated_the_last_complete_attempt_counts():
    records = suite_records("compare", compare_programs(), rounds=2)
    first = [r for r in records if r.label.round == 0]
    labels = {"suite": first[0].label.suite, "study": "compare", "round": 0}
    again = [record(r.config.mode, 50.0, r.num_devices, program=r.program, seconds=9e5 + i, **labels)
             for i, r in enumerate(first)]  # fmt: skip
    (found,) = suites_of([*again, *records])
    assert [program.throughputs[0] for program in found.programs.values()] == pytest.approx([50.0] * 5)
    assert sorted(r.run_id for r in found.left_out) == sorted(r.run_id for r in first)
    (cut,) = suites_of([*again[:-1], *records])  # the second attempt was interrupted: nothing of it counts
    assert [p.records[0].run_id for p in cut.programs.values()] == [r.run_id for r in first]
    assert len(cut.left_out) == len(again) - 1


def test_failed_and_profiled_records_are_no_rounds_and_programs_are_in_order():
    records = suite_records("compare", compare_programs(), rounds=2)
    labels = {"suite": records[0].label.suite, "program": "ddp"}
    records += [record(failed="killed", round=2, **labels), record(profile=True, round=0, **labels)]
    (found,) = suites_of(records)
    assert (found.n, len(found.failed), len(found.extra)) == (2, 1, 1)
    weak = suite_records("weak", scaling_programs("weak"), rounds=1)
    random.Random(2).shuffle(weak)
    (found,) = suites_of(weak)
    devices = [label[-1] for label in found.programs]
    assert next(iter(found.programs)) == "single 1" and devices == sorted(devices)


# --- The certificate -------------------------------------------------------------------------------------------------


def fact(found, name, rules=NOTHING_VARIES):
    return next(f for f in certify(records_of(found), rules).facts if f.name == name)


def changed(change, program: str | None = None):
    """A comparison of two rounds whose records differ from what they did; of one program, or of all."""
    (found,) = suites_of(edited(suite_records("compare", compare_programs(), rounds=2), change, program))
    return found


def test_equal_programs_are_fair():
    result = compare_suite(suite("compare", compare_programs()))
    assert result.certificate.fair, result.certificate.sentence()
    assert {f.name for f in result.certificate.inherent} >= {"device set", "images per norm layer"}


def test_the_tries_of_a_searched_batch_are_a_fact():
    name, tries = "tries of BATCH=max", [{"program": "ddp", "batch": 4, "fitted": True, "peak_gib": 0.5}]
    for program, status in ((None, "equal"), ("ddp", "differs")):
        assert fact(changed(lambda data: data.update(batch_search=tries), program), name).status == status
    facts = certify(records_of(suite("compare", compare_programs()))).facts
    assert name not in [each.name for each in facts]


# What was done unfairly -> the line that must name it. Each change is made in the record, not in the config.
UNFAIR = {
    "loader workers in total": lambda p: p.update(loader_workers=3),
    "threads in total": lambda p: p.update(threads=9),
    "initial weights": lambda p: p.update(initial_weights_sha256="d" * 64),
    "images of the first steps": lambda p: p.update(batch_fingerprints=[1, 2]),
    "learning rate": lambda p: p["facts"].update(lr=0.4),
    "gradient compression": lambda p: p["facts"].update(compression="fp16"),
    "precision": lambda p: p["facts"].update(autocast="bfloat16"),
    "activation checkpointing": lambda p: p["facts"].update(recomputed_blocks=8),
    "extra work per step": lambda p: p["facts"].update(step_barrier=True),
    "optimizer": lambda p: p["facts"].update(weight_decay=0.1),
    "norm": lambda p: p["facts"].update(norm="SyncBatchNorm × 20"),
    "gradient": lambda p: p["facts"].update(gradient="each process its own"),
    "storage": lambda p: p["facts"].update(storage_ms=3.0),
    "parameters": lambda p: p["facts"].update(parameters=5),
}


@pytest.mark.parametrize("name", UNFAIR)
def test_what_one_program_got_and_the_others_not_is_named(name):
    result = compare_suite(changed(in_samples(UNFAIR[name]), "ddp"))
    assert name in [f.name for f in result.certificate.differences]
    assert result.pair("single", "ddp").flagged and name in result.certificate.sentence()
    assert not result.pair("single", "dp").flagged  # these two got the same treatment


def test_code_is_equal_by_its_hash_in_every_round():
    """Code with changes that are not committed is known by its hash alone."""

    def dirty(data):
        data["environment"]["git"]["dirty"] = True

    def hashed(data):
        dirty(data)
        data["environment"]["source_sha256"] = "a" * 64

    by_round = changed(lambda data: data["environment"].update(source_sha256=f"{data['config']['round']}" * 64))
    found = [fact(each, "code").status for each in (changed(dirty), changed(hashed), by_round)]
    assert found == ["not recorded", "equal", "differs"]


def test_the_base_stays_the_base_when_its_first_record_is_lost():
    records = suite_records("replay", replay_programs(), rounds=4)
    (found,) = suites_of([r for r in records if (r.program, r.label.round) != ("base: dp", 0)])
    assert list(found.programs) == list(replay_programs()) and compare_suite(found).base == "base: dp"
    (found,) = suites_of([r for r in records if r.program != "base: dp"])
    with pytest.raises(UserError):
        study_of(found).result(found)


def test_what_scaling_varies_is_studied_and_what_it_does_not_is_named():
    programs = {label: o for label, o in scaling_programs("weak").items() if "indep" not in label}
    records = suite_records("weak", programs, rounds=2)
    (found,) = suites_of(records)
    assert fact(found, "global batch", WEAK_RULES).status == "inherent"
    assert fact(found, "global batch", STRONG_RULES).status == "differs"  # there it may not grow
    shorter = in_samples(lambda part: part.update(first_indices=list(range(9))))  # unlike other modes on two devices
    (other,) = suites_of(edited(records, shorter, "ddp 2"))
    assert fact(other, "global batch", WEAK_RULES).status == "differs"


def test_what_a_sweep_or_a_breakdown_varies_is_no_unfairness_there():
    found = suite("sweep", sweep_programs(), rounds=2)
    assert fact(found, "gradient compression", SWEEP_RULES).status == "inherent"
    assert fact(found, "gradient compression").status == "differs"
    found = suite("breakdown", breakdown_programs(), rounds=3)
    assert fact(found, "gradient", BREAKDOWN_RULES).status == "inherent"
    assert study_of(found).result(found).certificate.fair and fact(found, "gradient").status == "differs"

    def own(data: dict) -> None:  # as of MODE=local, beside one whose exchange is on, too
        for part in data["samples"]:
            part["facts"]["gradient"] = "each process its own; weights averaged every 4 steps"

    found = edited(suite_records("breakdown", breakdown_programs(), rounds=2), own, "horovod")
    assert fact(suites_of(found)[0], "gradient", BREAKDOWN_RULES).status == "differs"


def test_precision_and_format_are_studied_where_the_program_is_set_so():
    records = suite_records("sweep", format_programs(), rounds=2)
    (found,) = suites_of(records)
    for name in ("precision", "memory format", "compiler"):
        assert fact(found, name, SWEEP_RULES).status == "inherent"
        assert fact(found, name).status == "differs"
    unasked = in_samples(lambda part: part["facts"].update(autocast="bfloat16"))  # its options do not say so
    (other,) = suites_of(edited(records, unasked, "single compile=1"))
    assert fact(other, "precision", SWEEP_RULES).status == "differs"
    waits = in_samples(lambda part: part["facts"].update(waiting_threads="spin forever"))  # no option of a run
    (other,) = suites_of(edited(records, waits, "single compile=1"))
    assert fact(other, "OpenMP wait policy", SWEEP_RULES).status == "differs"
    with pytest.raises(UserError, match="precision"):
        compare_suite(suite("compare", format_programs(), rounds=2))


@pytest.mark.parametrize("section", WORK)
def test_an_option_that_is_added_to_the_work_is_named_without_a_line_of_its_own(monkeypatch, section):
    add_option(monkeypatch, section, certificate)
    found = changed(lambda data: data["config"].update(made_up=1), "dp")
    assert fact(found, "other options").status == "differs" and "made_up=1" in fact(found, "other options").values["dp"]
    assert fact(found, "other options", Rules(options=("made_up",))).status == "equal"  # the study varies it


def test_the_options_that_a_line_shows_are_options_of_the_work():
    assert set(options.names(*WORK)) >= SHOWN and set(UNFAIR) < set(FACTS)


# --- The answer ------------------------------------------------------------------------------------------------------


def test_the_answer_names_the_fastest_first_and_the_bound_never():
    result = compare_suite(suite("compare", compare_programs(single=90.0, ddp=120.0, dp=70.0, horovod=119.9)))
    assert result.ranking()[0] == "ddp" and "independent" not in result.ranking()
    assert any("faster than dp" in line for line in result.answer())
    assert result.pair("dp", "ddp") is result.pair("ddp", "dp")
    one = compare_suite(suite("compare", compare_programs(), rounds=1))
    assert one.pair("single", "ddp").comparison.low is None and not any("faster" in line for line in one.answer())


@pytest.mark.parametrize(("metric", "value"), [("others_cpu_share", 0.5), ("steal_share", 0.06),
                                               ("foreign_gpu_processes", 1), ("gpu_slowed_share", 0.2)])  # fmt: skip
def test_one_disturbed_run_takes_every_verdict_of_its_suite_and_no_interval(metric, value):
    def disturb(data: dict) -> None:
        data["summary"][metric] = value

    quiet = compare_suite(suite("compare", compare_programs()))
    (found,) = suites_of(edited(suite_records("compare", compare_programs()), disturb, "dp"))
    loaded = compare_suite(found)
    assert {pair.comparison.verdict for pair in loaded.pairs} == {"disturbed"} and not any(loaded.significant())
    assert [p.comparison.low for p in loaded.pairs] == [p.comparison.low for p in quiet.pairs]
    # the thresholds of a record count, and not those of today
    assert not changed(
        lambda data: data["summary"].update({metric: value, "disturbed_above": {metric: value}})
    ).disturbed


@pytest.mark.parametrize(("name", "value"), [("model", "resnet34"), ("image_size", 64), ("data", "synthetic")])
def test_different_workloads_are_refused_by_the_name_of_what_differs(name, value):
    found = changed(lambda data: data["config"].update({name: value}), "dp")
    with pytest.raises(UserError, match=name):
        compare_suite(found)


def test_a_suite_without_a_whole_round_is_refused():
    records = suite_records("compare", compare_programs(), rounds=2)
    apart = [r for r in records if (r.program, r.label.round) in (("dp", 0), ("ddp", 1))]
    (found,) = suites_of([*apart, record(profile=True, suite=records[0].label.suite, program="dp", round=0)])
    with pytest.raises(UserError):
        compare_suite(found)
    alone = [r for r in records if (r.program, r.label.round) == ("dp", 0)]
    (found,) = suites_of([*alone, record(suite="x-1", failed="hung")])
    assert len(compare_suite(found).answer()) == 1 and not compare_suite(found).pairs
