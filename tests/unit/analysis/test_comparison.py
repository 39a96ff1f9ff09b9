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
from bench.studies.knobs.study import RULES as KNOBS_RULES
from bench.studies.registry import study_of
from bench.studies.scaling.study import STRONG_RULES, WEAK_RULES
from tests.added import add_option
from tests.records import (
    breakdown_programs,
    compare_programs,
    edited,
    format_programs,
    in_samples,
    knob_programs,
    record,
    replay_programs,
    scaling_programs,
    suite,
    suite_records,
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


def test_failed_and_profiled_records_are_no_rounds():
    records = suite_records("compare", compare_programs(), rounds=2)
    labels = {"suite": records[0].label.suite, "program": "ddp"}
    records += [record(failed="killed", round=2, **labels), record(profile=True, round=0, **labels)]
    (found,) = suites_of(records)
    assert (found.n, len(found.failed), len(found.extra)) == (2, 1, 1)


def test_programs_are_in_order_whichever_was_found_first():
    records = [r for study, made in (("weak", scaling_programs("weak")), ("replay", replay_programs()))
               for r in suite_records(study, made, rounds=1)]  # fmt: skip
    random.Random(2).shuffle(records)
    found = {s.study: list(s.programs) for s in suites_of(records)}
    assert found["replay"] == ["base: dp", "fair: ddp", "unfair: ddp"]
    assert found["weak"][0] == "single 1" and [label[-1] for label in found["weak"]] == sorted(
        label[-1] for label in found["weak"]
    )


# --- The certificate -------------------------------------------------------------------------------------------------


def fact(found, name, rules=NOTHING_VARIES):
    """One line of the certificate of a suite."""
    return next(f for f in certify(records_of(found), rules).facts if f.name == name)


def changed(change, program: str | None = None):
    """A comparison of two rounds whose records say something else than they did; of one program, or of all."""
    (found,) = suites_of(edited(suite_records("compare", compare_programs(), rounds=2), change, program))
    return found


def test_equal_programs_are_fair():
    result = compare_suite(suite("compare", compare_programs()))
    assert result.certificate.fair, result.certificate.sentence()
    assert {f.name for f in result.certificate.inherent} >= {"device set", "images a norm layer sees"}


# What was done unfairly -> the line that must name it. Each change is made in the record, not in the config.
UNFAIR = {
    "loader workers in total": lambda p: p.update(loader_workers=3),
    "threads in total": lambda p: p.update(threads=9),
    "initial weights": lambda p: p.update(initial_weights_sha256="d" * 64),
    "images of the first steps": lambda p: p.update(batch_fingerprints=[1, 2]),
    "learning rate": lambda p: p["facts"].update(lr=0.4),
    "gradient compression": lambda p: p["facts"].update(compression="fp16"),
    "precision": lambda p: p["facts"].update(autocast="bfloat16"),
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
    assert name in result.certificate.sentence() and "NOT A FAIR COMPARISON" in result.certificate.sentence()
    assert result.pair("single", "ddp").flagged and "NOT A FAIR" in result.pair("single", "ddp").sentence()
    assert not result.pair("single", "dp").flagged  # these two were treated alike


def test_fused_kernels_of_one_program_alone_are_named():
    """Of the optimizer that the ranks really had, whatever was asked for."""
    found = changed(in_samples(lambda part: part["facts"].update(fused=True)), "ddp")
    assert fact(found, "optimizer").status == "differs" and "fused" in fact(found, "optimizer").values["ddp"]
    asked = changed(lambda data: data["config"].update(fused=True), "ddp")
    assert fact(asked, "optimizer").status == fact(asked, "other options").status == "equal"


def test_a_setting_that_changes_between_rounds_is_named():
    found = changed(lambda data: data["environment"].update(source_sha256=f"{data['config']['round']}" * 64))
    assert fact(found, "code").status == "differs"
    assert "round to round" in fact(found, "code").why


def test_code_that_had_been_changed_is_known_by_its_hash_alone():
    def dirty(data):
        data["environment"]["git"]["dirty"] = True

    def hashed(data):
        dirty(data)
        data["environment"]["source_sha256"] = "a" * 64

    assert fact(changed(dirty), "code").status == "not recorded"
    assert fact(changed(hashed), "code").status == "equal"


def test_two_modes_that_both_start_apart_are_not_equal():
    def apart(data):
        if data["config"]["program"] in ("ddp", "horovod"):
            data["samples"][1]["initial_weights_sha256"] = "e" * 64

    pair = compare_suite(changed(apart)).pair("ddp", "horovod")
    assert "initial weights" in [f.name for f in pair.certificate.differences]


def test_other_gpus_for_the_same_number_are_not_excused():
    programs = {m: o | {"device": "cuda"} for m, o in compare_programs().items() if m != "single"}
    other = in_samples(lambda part: part["devices"][0].update(uuid="GPU-9"))
    (found,) = suites_of(edited(suite_records("compare", programs, rounds=2), other, "ddp"))
    assert fact(found, "device set").status == "differs"


def test_the_base_stays_the_base_when_its_first_record_is_lost():
    records = suite_records("replay", replay_programs(), rounds=4)
    (found,) = suites_of([r for r in records if (r.program, r.label.round) != ("base: dp", 0)])
    assert list(found.programs) == list(replay_programs()) and compare_suite(found).base == "base: dp"
    (found,) = suites_of([r for r in records if r.program != "base: dp"])
    with pytest.raises(UserError, match="has lost one of its programs"):
        study_of(found).result(found)


def test_what_an_old_record_does_not_say_is_not_taken_for_equal():
    found = changed(in_samples(lambda part: part.pop("facts")), "dp")
    assert not certify(records_of(found)).fair and fact(found, "learning rate").status == "not recorded"


def test_what_scaling_varies_is_studied_and_what_it_does_not_is_named():
    programs = {label: o for label, o in scaling_programs("weak").items() if "indep" not in label}
    records = suite_records("weak", programs, rounds=2)
    (found,) = suites_of(records)
    assert fact(found, "global batch", WEAK_RULES).status == "inherent"
    assert fact(found, "global batch", STRONG_RULES).status == "differs"  # there it may not grow
    shorter = in_samples(lambda part: part.update(first_indices=list(range(9))))  # unlike other modes on two devices
    (other,) = suites_of(edited(records, shorter, "ddp 2"))
    assert fact(other, "global batch", WEAK_RULES).status == "differs"


def test_a_sweeps_own_setting_is_no_unfairness():
    found = suite("knobs", knob_programs(), rounds=2)
    assert fact(found, "gradient compression", KNOBS_RULES).status == "inherent"
    assert fact(found, "gradient compression").status == "differs"


def test_precision_and_format_are_studied_where_the_program_is_set_so():
    records = suite_records("knobs", format_programs(), rounds=2)
    (found,) = suites_of(records)
    for name in ("precision", "memory format", "compiler"):
        assert fact(found, name, KNOBS_RULES).status == "inherent"
        assert fact(found, name).status == "differs"
    unasked = in_samples(lambda part: part["facts"].update(autocast="bfloat16"))  # its options do not say so
    (other,) = suites_of(edited(records, unasked, "single compile=1"))
    assert fact(other, "precision", KNOBS_RULES).status == "differs"
    with pytest.raises(UserError, match="different workloads: precision is "):
        compare_suite(suite("compare", format_programs(), rounds=2))


def test_an_option_that_no_line_shows_is_named_all_the_same():
    result = compare_suite(changed(lambda data: data["config"].update(skip_bad=True), "dp"))
    (line,) = result.certificate.differences
    assert line.name == "other options" and "skip_bad" in line.values["dp"] and "skip_bad" not in line.values["ddp"]


@pytest.mark.parametrize("section", WORK)
def test_an_option_that_is_added_to_the_work_is_named_without_a_line_of_its_own(monkeypatch, section):
    add_option(monkeypatch, section, certificate)
    found = changed(lambda data: data["config"].update(made_up=1), "dp")
    assert fact(found, "other options").status == "differs" and "made_up=1" in fact(found, "other options").values["dp"]
    assert fact(found, "other options", Rules(options=("made_up",))).status == "equal"  # the study varies it


def test_the_options_that_a_line_shows_are_options_of_the_work():
    assert set(options.names(*WORK)) >= SHOWN


def test_every_fact_of_a_fair_comparison_has_a_line():
    assert {"global batch", "images of the first steps", "initial weights", "loader workers in total",
            "threads in total", "norm", "precision", "gradient compression", "buffers", "learning rate",
            "code", "device set"} <= set(FACTS)  # fmt: skip


# --- The answer ------------------------------------------------------------------------------------------------------


def test_the_answer_names_the_fastest_first_and_the_bound_never():
    result = compare_suite(suite("compare", compare_programs(single=90.0, ddp=120.0, dp=70.0, horovod=119.9)))
    assert result.ranking()[0] == "ddp" and "independent" not in result.ranking()
    lines = result.answer()
    assert any("faster than dp" in line for line in lines)
    assert any("within ±2 %" in line and "horovod" in line for line in lines)


def test_a_single_round_gives_no_interval_and_says_so():
    result = compare_suite(suite("compare", compare_programs(), rounds=1))
    assert result.pair("single", "ddp").comparison.low is None
    assert all("no verdict" in line for line in result.answer())


def test_an_outlier_is_shown_and_counts():
    steady = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 55.0]
    programs = compare_programs() | {"ddp": compare_programs()["ddp"] | {"throughput": steady}}
    result = compare_suite(suite("compare", programs))
    assert result.outliers["ddp"] == [7]
    assert result.pair("single", "ddp").comparison.n == 8


def test_a_pair_is_stated_in_one_direction_whichever_is_asked_for():
    result = compare_suite(suite("compare", compare_programs()))
    assert result.pair("dp", "ddp") is result.pair("ddp", "dp")


@pytest.mark.parametrize(("metric", "value"), [("others_cpu_share", 0.5), ("steal_share", 0.06),
                                               ("foreign_gpu_processes", 1), ("gpu_slowed_share", 0.2)])  # fmt: skip
def test_one_disturbed_run_takes_every_verdict_of_its_suite_and_no_interval(metric, value):
    def disturb(data: dict) -> None:
        data["summary"][metric] = value

    quiet = compare_suite(suite("compare", compare_programs()))
    (found,) = suites_of(edited(suite_records("compare", compare_programs()), disturb, "dp"))
    loaded = compare_suite(found)
    assert {pair.comparison.verdict for pair in loaded.pairs} == {"disturbed"} and not any(loaded.holding())
    assert [p.comparison.low for p in loaded.pairs] == [p.comparison.low for p in quiet.pairs]
    assert all("no verdict" in line for line in loaded.answer())


def test_the_thresholds_of_a_record_count_and_not_those_of_today():
    quiet = {"others_cpu_share": 0.3, "disturbed_above": {"others_cpu_share": 0.4}}
    assert not changed(lambda data: data["summary"].update(quiet), "dp").disturbed
    strict = {"others_cpu_share": 0.05, "disturbed_above": {"others_cpu_share": 0.02}}
    assert changed(lambda data: data["summary"].update(strict), "dp").disturbed


@pytest.mark.parametrize(("name", "value"), [("model", "resnet34"), ("image_size", 64), ("data", "synthetic")])
def test_different_workloads_are_refused_by_the_name_of_what_differs(name, value):
    found = changed(lambda data: data["config"].update({name: value}), "dp")
    with pytest.raises(UserError, match=f"different workloads: {name} is "):
        compare_suite(found)


def test_a_suite_without_a_whole_round_is_refused():
    records = suite_records("compare", compare_programs(), rounds=2)
    apart = [r for r in records if (r.program, r.label.round) in (("dp", 0), ("ddp", 1))]
    (found,) = suites_of([*apart, record(profile=True, suite=records[0].label.suite, program="dp", round=0)])
    with pytest.raises(UserError, match="no round in which every program ended well"):
        compare_suite(found)


def test_one_program_alone_is_compared_with_nothing():
    records = suite_records("compare", compare_programs(), rounds=1)
    (found,) = suites_of([r for r in records if r.program == "dp"] + [record(suite="x-1", failed="hung")])
    (said,) = compare_suite(found).answer()
    assert "dp" in said and "nothing to compare" in said


def test_without_exchange_the_breakdown_is_no_unfairness():
    found = suite("breakdown", breakdown_programs(), rounds=3)
    assert fact(found, "gradient", BREAKDOWN_RULES).status == "inherent"
    assert study_of(found).result(found).certificate.fair and fact(found, "gradient").status == "differs"


def test_another_update_is_unfair_in_a_breakdown_as_well():
    """Such as that of MODE=local, beside one whose exchange is on, too."""

    def alone(data: dict) -> None:
        for part in data["samples"]:
            part["facts"]["gradient"] = "each process its own; weights averaged every 4 steps"

    found = edited(suite_records("breakdown", breakdown_programs(), rounds=2), alone, "horovod")
    assert fact(suites_of(found)[0], "gradient", BREAKDOWN_RULES).status == "differs"
