"""Suites, the parity certificate and the answer, from records."""

import copy
import random

import pytest

from bench.analysis.certificate import FACTS, certify
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suites_of
from bench.errors import UserError
from tests.records import (
    breakdown_programs,
    compare_programs,
    format_programs,
    knob_programs,
    record,
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
    found = {s.kind: s for s in suites_of([*records, record()])}
    assert {kind: s.n for kind, s in found.items()} == {"compare": 3, "weak": 2}
    rounds = [[r["config"]["round"] for r in rs] for rs in found["compare"].roles.values()]
    assert rounds == [[0, 1, 2]] * 5


def test_a_round_that_is_not_whole_is_left_out_and_kept_in_sight():
    records = suite_records("compare", compare_programs(), rounds=3)
    lost = next(r for r in records if r["config"]["role"] == "ddp" and r["config"]["round"] == 1)
    records.remove(lost)
    (found,) = suites_of(records)
    assert found.rounds == [0, 2] and {len(rs) for rs in found.roles.values()} == {2}
    assert len(found.left_out) == 4 and {r["config"]["round"] for r in found.left_out} == {1}


def test_failed_and_profiled_records_are_no_rounds():
    records = suite_records("compare", compare_programs(), rounds=2)
    labels = {"suite": records[0]["config"]["suite"], "role": "ddp"}
    records += [record(failed="killed", round=2, **labels), record(profile=True, round=0, **labels)]
    (found,) = suites_of(records)
    assert (found.n, len(found.failed), len(found.extra)) == (2, 1, 1)


# --- The certificate -------------------------------------------------------------------------------------------------


def fact(roles, name, kind="compare"):
    """One line of the certificate."""
    return next(f for f in certify(roles, kind).facts if f.name == name)


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
    "extra work a step": lambda p: p["facts"].update(step_barrier=True),
    "optimizer": lambda p: p["facts"].update(weight_decay=0.1),
    "norm": lambda p: p["facts"].update(norm="SyncBatchNorm × 20"),
    "gradient": lambda p: p["facts"].update(gradient="each process its own"),
    "storage": lambda p: p["facts"].update(storage_ms=3.0),
    "parameters": lambda p: p["facts"].update(parameters=5),
}


@pytest.mark.parametrize("name", UNFAIR)
def test_what_one_program_got_and_the_others_not_is_named(name):
    found = suite("compare", compare_programs(), rounds=2)
    for record_of_ddp in found.roles["ddp"]:
        for part in record_of_ddp["samples"]:
            UNFAIR[name](part)
    result = compare_suite(found)
    assert name in [f.name for f in result.certificate.differences]
    assert name in result.certificate.sentence() and "NOT A FAIR COMPARISON" in result.certificate.sentence()
    assert result.pair("single", "ddp").flagged and "NOT A FAIR" in result.pair("single", "ddp").sentence()
    assert not result.pair("single", "dp").flagged  # these two were treated alike


def test_a_setting_that_changes_between_rounds_is_named():
    found = suite("compare", compare_programs(), rounds=2)
    for records in found.roles.values():
        for n, each in enumerate(records):
            each["environment"]["source_sha256"] = f"{n}" * 64
    assert fact(found.roles, "code").status == "differs"
    assert "round to round" in fact(found.roles, "code").why


def test_code_that_had_been_changed_is_known_by_its_hash_alone():
    found = suite("compare", compare_programs(), rounds=2)
    for records in found.roles.values():
        for each in records:
            each["environment"]["git"]["dirty"] = True
    assert fact(found.roles, "code").status == "not recorded"
    for records in found.roles.values():
        for each in records:
            each["environment"]["source_sha256"] = "a" * 64
    assert fact(found.roles, "code").status == "equal"


def test_two_modes_that_both_start_apart_are_not_equal():
    found = suite("compare", compare_programs(), rounds=2)
    for mode in ("ddp", "horovod"):
        for each in found.roles[mode]:
            each["samples"][1]["initial_weights_sha256"] = "e" * 64
    pair = compare_suite(found).pair("ddp", "horovod")
    assert "initial weights" in [f.name for f in pair.certificate.differences]


def test_other_gpus_for_the_same_number_are_not_excused():
    programs = {m: o | {"device": "cuda"} for m, o in compare_programs().items() if m != "single"}
    found = suite("compare", programs, rounds=2)
    for each in found.roles["ddp"]:
        for part in each["samples"]:
            part["devices"][0]["uuid"] = "GPU-9"
    assert fact(found.roles, "device set").status == "differs"


def test_the_base_stays_the_base_when_its_first_record_is_lost():
    programs = {f"{head}: ddp": {"mode": "ddp"} for head in ("base", "fair", "unfair")}
    records = suite_records("replay", programs, rounds=4)
    (found,) = suites_of([r for r in records if (r["config"]["role"], r["config"]["round"]) != ("base: ddp", 0)])
    assert list(found.roles) == list(programs) and compare_suite(found).base == "base: ddp"
    (found,) = suites_of([r for r in records if r["config"]["role"] != "base: ddp"])
    with pytest.raises(UserError, match="has lost one of its programs"):
        compare_suite(found)


def test_what_an_old_record_does_not_say_is_not_taken_for_equal():
    found = suite("compare", compare_programs(), rounds=2)
    for part in found.roles["dp"][0]["samples"]:
        del part["facts"]
    certificate = certify(found.roles)
    assert not certificate.fair and fact(found.roles, "learning rate").status == "not recorded"


def test_what_scaling_varies_is_studied_and_what_it_does_not_is_named():
    roles = {r: s for r, s in suite("weak", scaling_programs("weak"), rounds=2).roles.items() if "indep" not in r}
    assert fact(roles, "global batch", "weak").status == "inherent"
    assert fact(roles, "global batch", "strong").status == "differs"  # there it may not grow
    other = copy.deepcopy(roles)
    for r in other["ddp 2"]:
        r["samples"][0]["first_indices"] = list(range(9))  # unlike the other modes on two devices
    assert fact(other, "global batch", "weak").status == "differs"


def test_a_sweeps_own_setting_is_no_unfairness():
    programs = {
        r: o | ({"compression": "fp16"} if "fp16" in r else {}) for r, o in knob_programs().items() if "ddp" in r
    }
    assert fact(suite("knobs", programs, rounds=2).roles, "gradient compression", "knobs").status == "inherent"
    assert fact(suite("compare", programs, rounds=2).roles, "gradient compression").status == "differs"


def test_precision_and_format_are_studied_where_the_role_says_so():
    found = suite("knobs", format_programs(), rounds=2)
    for name in ("precision", "memory format", "compiler"):
        assert fact(found.roles, name, "knobs").status == "inherent"
        assert fact(found.roles, name).status == "differs"
    for each in found.roles["single compile=1"]:
        for part in each["samples"]:
            part["facts"]["autocast"] = "bfloat16"  # its name does not say so
    assert fact(found.roles, "precision", "knobs").status == "differs"
    with pytest.raises(UserError, match="different workloads: precision is "):
        compare_suite(suite("compare", format_programs(), rounds=2))


def test_every_fact_of_the_issue_of_fairness_has_a_line():
    assert {"global batch", "images of the first steps", "initial weights", "loader workers in total",
            "threads in total", "norm", "precision", "gradient compression", "buffers", "learning rate",
            "code", "device set"} <= set(FACTS)  # fmt: skip


# --- The answer ------------------------------------------------------------------------------------------------------


def test_the_answer_names_the_fastest_first_and_the_bound_never():
    result = compare_suite(suite("compare", compare_programs(single=90.0, ddp=120.0, dp=70.0, horovod=119.9)))
    assert result.ranking()[0] == "ddp" and "independent" not in result.ranking()
    lines = result.answer()
    assert any("ddp is faster than dp by" in line for line in lines)
    assert any("tie" in line and "horovod" in line for line in lines)


def test_a_single_round_gives_no_interval_and_says_so():
    result = compare_suite(suite("compare", compare_programs(), rounds=1))
    assert result.pair("single", "ddp").comparison.low is None
    assert "one round: no interval" in " ".join(result.answer())


def test_an_outlier_is_shown_and_counts():
    steady = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 55.0]
    programs = compare_programs() | {"ddp": compare_programs()["ddp"] | {"throughput": steady}}
    result = compare_suite(suite("compare", programs))
    assert result.outliers["ddp"] == [7]
    assert result.pair("single", "ddp").comparison.n == 8


def test_pairs_are_the_same_either_way_round():
    result = compare_suite(suite("compare", compare_programs()))
    there, back = result.pair("dp", "ddp").comparison, result.pair("ddp", "dp").comparison
    assert there.ratio == pytest.approx(1 / back.ratio) and there.low == pytest.approx(1 / back.high)


@pytest.mark.parametrize(("name", "value"), [("model", "resnet34"), ("image_size", 64), ("data", "synthetic")])
def test_different_workloads_are_refused_by_the_name_of_what_differs(name, value):
    found = suite("compare", compare_programs(), rounds=2)
    found.roles["dp"][0]["config"][name] = value
    with pytest.raises(UserError, match=f"different workloads: {name} is "):
        compare_suite(found)


def test_a_suite_without_a_whole_round_is_refused():
    records = suite_records("compare", compare_programs(), rounds=1)
    (found,) = suites_of([r for r in records if r["config"]["role"] == "dp"] + [record(suite="x-1", failed="hung")])
    assert compare_suite(found).answer() == ["dp alone was run: nothing to compare"]


def test_without_exchange_the_breakdown_is_no_unfairness():
    result = compare_suite(suite("breakdown", breakdown_programs(), rounds=3))
    names = [f.name for f in result.certificate.differences]
    assert "gradient" not in names
