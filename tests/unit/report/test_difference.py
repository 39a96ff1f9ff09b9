"""bench/report/difference.py and Welch's formulas: against scipy, by simulation of the interval's promise, and by hand.

The simulations call the functions themselves on seeded draws.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench import formulas
from bench.analysis import stats
from bench.cli import COMMANDS
from bench.errors import UserError
from bench.record.view import Record
from bench.report import difference as diff
from tests import records

DRAWS = 2000


def runs(speeds: list[float], mode: str = "ddp", day: int = 0, **options) -> list[Record]:
    """One record per speed, in images per second."""
    return [records.record(mode, x, seconds=86400 * day + 10 * i, **options) for i, x in enumerate(speeds)]


def speeds(n: int, sd: float, mean: float = 100.0, seed: int = 0) -> list[float]:
    """Draws with this log deviation."""
    return (mean * np.exp(np.random.default_rng([seed, n]).normal(0, sd, n))).tolist()


def only(result: diff.Result) -> diff.Difference:
    (found,) = result.differences
    return found


# The formulas, against scipy


@pytest.mark.parametrize("n, m", [(2, 2), (3, 9), (8, 8), (20, 5)])
def test_the_interval_and_its_df_are_scipys_welch(n, m):
    a, b = speeds(n, 0.03, seed=1), speeds(m, 0.1, 120, seed=2)
    welch = scipy_stats.ttest_ind(np.log(b), np.log(a), equal_var=False)
    expected = welch.confidence_interval(0.95)
    ratio, low, high = formulas.unpaired_log_ratio_interval(a, b, 0.95)
    assert (low, high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert ratio == pytest.approx(scipy_stats.gmean(b) / scipy_stats.gmean(a))
    squares = [np.var(np.log(x), ddof=1) / len(x) for x in (a, b)]
    assert formulas.welch_df(*squares, n, m) == pytest.approx(welch.df)


def test_the_sets_the_other_way_round_have_the_reciprocal_interval():
    a, b = speeds(5, 0.05, seed=3), speeds(9, 0.02, 130, seed=4)
    ratio, low, high = formulas.unpaired_log_ratio_interval(a, b, 0.95)
    inverse = formulas.unpaired_log_ratio_interval(b, a, 0.95)
    assert inverse == pytest.approx((1 / ratio, 1 / high, 1 / low))


def test_one_value_a_side_has_no_interval_and_equal_values_have_a_point():
    with pytest.raises(ValueError, match="two values"):
        formulas.unpaired_log_ratio_interval([1.0], [2.0, 2.0], 0.95)
    assert formulas.unpaired_log_ratio_interval([1.0, 1.0], [2.0, 2.0], 0.95) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize("n, m", [(1, 4), (3, 3), (5, 2), (4, 6)])
def test_the_rank_sum_distribution_is_that_of_all_orders(n, m):
    counts = [0] * (n * m + 1)
    for places in itertools.combinations(range(n + m), n):
        counts[sum(place - i for i, place in enumerate(places))] += 1
    assert formulas.rank_sum_counts(n, m) == counts


@pytest.mark.parametrize("n, m", [(5, 5), (8, 8), (6, 11)])
def test_the_rank_sum_interval_is_the_shifts_that_scipys_exact_test_does_not_reject(n, m):
    draw = np.random.default_rng([n, m])
    a, b = draw.normal(0, 1, n), draw.normal(1, 1, m)
    depth, achieved = formulas.rank_sum_depth(n, m, 0.95)
    _, low, high = formulas.hodges_lehmann_shift(a.tolist(), b.tolist(), depth)
    for end, outward in ((low, -1e-9), (high, 1e-9)):
        outside = scipy_stats.mannwhitneyu(b - end - outward, a, method="exact").pvalue
        inside = scipy_stats.mannwhitneyu(b - end + outward, a, method="exact").pvalue
        assert outside == pytest.approx(1 - achieved) and inside > 0.05


# What the interval promises


@pytest.mark.parametrize(
    "n, m, sd_a, sd_b", [(8, 8, 0.02, 0.02), (8, 8, 0.01, 0.04), (5, 12, 0.05, 0.02), (6, 6, 0.03, 0.05)]
)
def test_the_interval_covers_the_true_ratio_in_93_to_97_of_100_draws(n, m, sd_a, sd_b):
    draw = np.random.default_rng([n, m, 7])
    a = np.exp(draw.normal(0, sd_a, (DRAWS, n))).tolist()
    b = (1.07 * np.exp(draw.normal(0, sd_b, (DRAWS, m)))).tolist()
    ends = [formulas.unpaired_log_ratio_interval(x, y, 0.95) for x, y in zip(a, b, strict=True)]
    covered = sum(low <= 1.07 <= high for _, low, high in ends) / DRAWS
    assert 0.93 <= covered <= 0.97


def test_the_same_program_twice_is_called_faster_in_2_5_of_100_draws_and_slower_in_2_5():
    draw = np.random.default_rng(11)
    a, b = np.exp(draw.normal(0, 0.04, (2, DRAWS, 8))).tolist()
    words = [
        stats.verdict(*formulas.unpaired_log_ratio_interval(x, y, 0.95)[1:], diff.TIE_MARGIN)
        for x, y in zip(a, b, strict=True)
    ]
    assert max(words.count("faster"), words.count("slower")) / DRAWS < 0.025 + 0.0105  # three standard errors


def test_a_regression_is_seldom_called_where_b_is_exactly_at_the_bound():
    """One-sided: 2.5 % of draws."""
    draw = np.random.default_rng(13)
    a = np.exp(draw.normal(0, 0.02, (DRAWS, 8))).tolist()
    b = (0.95 * np.exp(draw.normal(0, 0.03, (DRAWS, 8)))).tolist()
    beyond = sum(formulas.unpaired_log_ratio_interval(x, y, 0.95)[2] < 0.95 for x, y in zip(a, b, strict=True))
    assert beyond / DRAWS == pytest.approx(0.025, abs=0.0105)


# Sets of records


def test_by_hand():
    """log B - log A = 0.2; each s**2 / n is 0.01 / 3; 4 degrees of freedom."""
    a = [100 * math.exp(x) for x in (-0.1, 0, 0.1)]
    found = only(diff.compare_sets(runs(a), runs([x * math.exp(0.2) for x in a], day=1)))
    half = 2.776445 * math.sqrt(0.02 / 3)
    assert [found.ratio, found.low, found.high] == pytest.approx([math.exp(x) for x in (0.2, 0.2 - half, 0.2 + half)])
    assert (found.name, found.n_a, found.n_b, found.verdict) == ("ddp 2", 3, 3, "inconclusive")
    assert found.hl_ratio == pytest.approx(math.exp(0.2)) and found.hl_low is None
    assert found.needed > 3 and f"about {found.needed} records a side" in found.sentence()


def test_each_mode_is_compared_with_itself():
    a = records.suite_records("compare", records.compare_programs())
    b = records.suite_records("compare", records.compare_programs(ddp=84.0), name="0002")
    found = {d.name: d for d in diff.compare_sets(a, b).differences}
    assert list(found) == ["single 1", "dp 2", "ddp 2", "horovod 2", "independent 2"]
    assert {name for name, d in found.items() if d.verdict == "slower"} == {"ddp 2"}
    assert found["ddp 2"].ratio == pytest.approx(84 / 91, rel=1e-3)
    assert "slower than A" in found["ddp 2"].sentence() and "n = 8 and 8" in found["ddp 2"].sentence()
    assert found["dp 2"].unlike == []


def test_engine_options_make_another_program():
    a = runs([100, 101], bucket_cap_mb=1.0) + runs([90, 91])
    result = diff.compare_sets(a, runs([99, 100], bucket_cap_mb=1.0, day=1) + runs([99, 98], overlap=False, day=1))
    assert only(result).name == "ddp 2 bucket_cap_mb=1"
    assert (result.only_a, result.only_b) == (["ddp 2"], ["ddp 2 overlap=0"])


def test_workloads_of_one_program_are_told_apart():
    sides = [runs([100, 101], batch=16, day=d) + runs([100, 101], batch=32, day=d) for d in (0, 1)]
    names = [d.name for d in diff.compare_sets(*sides).differences]
    assert names == ["ddp 2 (per_device_batch=16)", "ddp 2 (per_device_batch=32)"]


def test_different_workloads_are_refused_with_the_fields_named():
    with pytest.raises(UserError) as caught:
        diff.compare_sets(runs([100, 101]), runs([100, 101], batch=16, seed=3, day=1))
    message = str(caught.value)
    assert "per_device_batch is 32 in A and 16 in B" in message and "seed is 0 in A and 3 in B" in message
    assert "ddp 2" in message and "lr" not in message and "\n" not in message


def test_a_cpu_set_is_not_compared_with_a_gpu_set():
    with pytest.raises(UserError, match="device is cpu in A and cuda in B"):
        diff.compare_sets(runs([100, 101]), runs([100, 101], device="cuda"))


def test_sets_without_a_common_program_are_refused():
    with pytest.raises(UserError, match="A has ddp 2; B has dp 2"):
        diff.compare_sets(runs([100, 101]), runs([100, 101], "dp"))


def test_where_a_run_belongs_and_its_threads_do_not_part_programs():
    a = runs([100, 101], threads=2, suite="compare-1", program="ddp", round=0)
    found = only(diff.compare_sets(a, runs([100, 101], threads=4, out="elsewhere", timeout=5.0, day=1)))
    assert found.name == "ddp 2"


def with_threads(found: list[Record], total: int) -> list[Record]:
    def change(data: dict) -> None:
        data["topology"]["threads_total"] = total
        for part in data["samples"]:
            part["threads"] = total // len(data["samples"])

    return records.edited(found, change)


def test_within_one_set_runs_with_other_numbers_of_threads_are_kept_apart(tmp_path, capsys):
    a = runs([100, 101]) + with_threads(runs([150, 151, 152], day=1), 4)
    b = runs([99, 98], day=2)
    result = diff.compare_sets(a, b)
    found = only(result)
    assert (found.name, found.n_a, found.n_b) == ("ddp 2 (threads_total=2)", 2, 2) and found.mark == ""
    assert (result.only_a, result.only_b) == (["ddp 2 (threads_total=4)"], []) and result.by_threads == ["ddp 2"]
    assert run(*sets(tmp_path, a, b)) == 0
    assert "ran with different numbers of threads within one set" in " ".join(capsys.readouterr().out.split())
    both = diff.compare_sets(a, with_threads(runs([140, 141], day=3), 4) + b)
    assert [d.name for d in both.differences] == ["ddp 2 (threads_total=2)", "ddp 2 (threads_total=4)"]
    with pytest.raises(
        UserError, match=r"no program in common: A has ddp 2 \(threads_total=2\), .*; B has ddp 2 \(threads_to"
    ):
        diff.compare_sets(a, with_threads(runs([140, 141], day=3), 8))


def test_two_machines_may_differ_in_threads_and_the_verdict_is_marked(tmp_path, capsys):
    a, b = runs([100, 101, 100.5]), with_threads(runs([150, 151, 150.5], day=1), 4)
    result = diff.compare_sets(a, b)
    found = only(result)
    assert found.name == "ddp 2" and found.unlike == ["threads in total: 2 in A, 4 in B"]
    assert found.sentence().endswith("(runs differ)") and result.by_threads == []
    slower = with_threads(runs([50, 50.1, 50.2], day=1), 4)
    assert diff.compare_sets(a, slower).regressions(5, False)[0].endswith("5 % (runs differ)")
    assert run(*sets(tmp_path, a, b)) == 0
    assert "(runs differ)" in capsys.readouterr().out


def test_other_gpus_of_one_kind_are_no_difference():
    a, b = runs([100, 101], device="cuda"), runs([100, 101], device="cuda", day=1)

    def other(part: dict) -> None:
        for device in part["devices"]:
            device["uuid"] = f"other {device['uuid']}"

    assert only(diff.compare_sets(a, records.edited(b, records.in_samples(other)))).unlike == []


def test_an_option_of_the_work_that_differs_refuses_and_one_of_the_engine_is_another_program():
    a, clipped = runs([100, 101]), runs([100, 101], day=1, clip_norm=1.0)
    with pytest.raises(UserError, match=r"clip_norm is None in A and 1.0 in B"):
        diff.compare_sets(a, clipped)
    with pytest.raises(UserError, match="A has ddp 2; B has ddp 2 bucket_cap_mb=5"):
        diff.compare_sets(a, runs([100, 101], day=1, bucket_cap_mb=5.0))


def test_what_differs_is_read_from_the_records():
    a, b = runs([100, 101]), runs([100, 101], day=1, facts={"tf32": True})
    b = records.edited(b, lambda data: data["environment"]["versions"].update(torch="2.10.0"))
    assert diff.changes(a, b) == ['versions.torch: "2.9.0+test" in A, "2.10.0" in B']
    assert any("precision" in line and "True in B" in line for line in only(diff.compare_sets(a, b)).unlike)


def test_one_record_on_a_side_has_no_interval_and_says_so():
    found = only(diff.compare_sets(runs([100.0]), runs([50.0, 51.0], day=1)))
    assert (found.low, found.verdict) == (None, "preview")
    assert "no verdict" in found.sentence() and found.ratio == pytest.approx(0.505, abs=0.001)


def test_outliers_are_named_and_kept():
    a = runs([100, 101, 99, 100.5, 60])
    found = only(diff.compare_sets(a, runs([100, 101, 99], day=1)))
    assert found.outliers == [a[4].run_id] and found.n_a == 5


def test_many_records_have_no_rank_sum_interval():
    found = only(diff.compare_sets(runs(speeds(70, 0.01)), runs([100, 101, 99], day=9)))
    assert found.hl_ratio is None and found.low is not None


# The judgement


def difference(low, high):
    return diff.Difference("ddp 2", 8, 8, 100.0, 95.0, 0.95, low, high, None, None, None, "slower", None, [], [])


@pytest.mark.parametrize(
    "low, high, bound, place",
    [(0.90, 0.94, 5, "beyond"), (0.90, 0.96, 5, "across"), (0.96, 0.98, 5, "within"), (None, None, 5, "unknown"),
     (1.01, 1.02, 0, "within"), (0.98, 0.99, 0, "beyond")],
)  # fmt: skip
def test_where_an_interval_lies_to_the_bound(low, high, bound, place):
    found = difference(low, high)
    assert found.against(bound) == place
    result = diff.Result([found], [], [])
    assert bool(result.regressions(bound, strict=False)) == (place == "beyond")
    assert bool(result.regressions(bound, strict=True)) == (place != "within")


def sets(tmp_path, a: list[Record], b: list[Record]) -> list[str]:
    return [str(records.store(tmp_path / name, side)) for name, side in (("a", a), ("b", b))]


def run(a: str, b: str, bound: str | None = None, strict: bool = False) -> int:
    """The exit code of ``bench diff A B``."""
    words = [a, b, f"--strict={strict:d}", *([] if bound is None else [f"--bound={bound}"])]
    return COMMANDS["diff"].run(COMMANDS["diff"].parse(words))


@pytest.mark.parametrize(
    "speed, bound, strict, code",
    [(80, "5", False, 3), (80, None, False, 0), (80, "50", True, 0), (96, "5", False, 0), (99.9, "5", True, 0),
     (120, "0", True, 0)],
)  # fmt: skip
def test_the_exit_code(tmp_path, capsys, speed, bound, strict, code):
    a, b = runs(speeds(8, 0.01)), runs(speeds(8, 0.01, speed, seed=1), day=1)
    assert run(*sets(tmp_path, a, b), bound, strict) == code
    out = capsys.readouterr().out
    assert ("regression: ddp 2" in out) == (code == 3)
    assert "share no rounds" in out and "Welch" in out and "n = 8 and 8" in out


@pytest.mark.parametrize("strict, code", [(False, 0), (True, 3)])
def test_one_record_a_side_is_judged_only_strictly(tmp_path, capsys, strict, code):
    assert run(*sets(tmp_path, runs([100.0]), runs([50.0], day=1)), "5", strict) == code
    out = capsys.readouterr().out
    assert "no verdict" in out and ("not judged" in out or strict)


def test_a_mode_that_is_gone_fails_strictly(tmp_path, capsys):
    a, b = runs([100.0, 100.1]) + runs([100.0, 100.1], "dp"), runs([100.0, 100.1], day=1)
    b += [records.record("dp", failed="killed", seconds=99999)]
    folders = sets(tmp_path, a, b)
    assert (run(*folders, "5", False), run(*folders, "5", True)) == (0, 3)
    out = capsys.readouterr().out
    assert "only in A, not compared: dp 2" in out and "1 failed, profiled or interrupted runs in B" in out
    assert "dp 2: B has no good record of it" in out


def test_a_refused_file_is_named_and_the_rest_used(tmp_path, capsys):
    a, b = sets(tmp_path, runs([100.0, 101.0]), runs([100.0, 101.0], day=1))
    (tmp_path / "b" / "bad").mkdir()
    (tmp_path / "b" / "bad" / "record.json").write_text("{")
    assert run(a, b) == 0
    assert "bad/record.json" in capsys.readouterr().out


def test_profiled_runs_are_left_out(tmp_path, capsys):
    profiled = [records.record("ddp", 10.0, seconds=5e5, profile=True)]
    a, b = runs([100.0, 101.0, 100.5]), runs([100.0, 101.0, 100.5], day=1)
    assert run(*sets(tmp_path, a, b + profiled), "5", True) == 0
    assert "1 failed, profiled or interrupted runs in B" in capsys.readouterr().out


def test_a_records_own_file_is_a_set_of_one(tmp_path, capsys):
    sets(tmp_path, runs([100.0]), runs([101.0], day=1))
    files = [str(next((tmp_path / side).rglob("record.json"))) for side in ("a", "b")]
    assert run(*files) == 0 and "no verdict" in capsys.readouterr().out


def test_a_set_against_itself_says_that_it_is_the_same(tmp_path, capsys):
    a, _ = sets(tmp_path, runs([100.0, 101.0]), [])
    assert run(a, a) == 0
    out = capsys.readouterr().out
    assert "2 records are in both sets" in out and "share no rounds" not in out


@pytest.mark.parametrize("bound, strict", [("x", False), ("-1", False), ("100", False), ("nan", False), (None, True)])
def test_a_bad_bound_is_one_clear_line(bound, strict):
    with pytest.raises(UserError, match="BOUND"):
        run("a", "b", bound, strict)


def test_an_empty_or_missing_folder_is_one_clear_line(tmp_path):
    good = str(records.store(tmp_path / "a", runs([100.0])))
    (tmp_path / "empty").mkdir()
    for bad in ("empty", "missing"):
        with pytest.raises(UserError):
            run(good, str(tmp_path / bad))
    failed = records.store(tmp_path / "failed", [records.record("ddp", failed="killed")])
    with pytest.raises(UserError, match="B: no record"):
        run(good, str(failed))


def test_a_config_with_strange_values_is_refused_and_the_rest_compared(tmp_path, capsys):
    a, b = runs([100.0, 101.0]), runs([100.0, 101.0, 102.0], day=1)
    b[2:] = records.edited(b[2:], lambda data: data["config"].update(snapshots=["1", "2"]))
    assert run(*sets(tmp_path, a, b)) == 0
    out = capsys.readouterr().out
    assert "config/snapshots" in out and "n = 2 and 2" in out


def test_disturbed_records_have_no_verdict_and_no_regression_is_judged(tmp_path, capsys):
    a, b = runs(speeds(8, 0.01)), records.loaded(runs(speeds(8, 0.01, 40, seed=1), day=1), 0.41)
    assert only(diff.compare_sets(a, b)).verdict == "disturbed" and diff.grid(diff.compare_sets(a, b), "images").grey
    folders = sets(tmp_path, a, b)
    assert (run(*folders, "5", False), run(*folders, "5", True)) == (0, 3)  # strictly it must be shown to be within
    said = capsys.readouterr().out
    assert "disturbed: other processes took 41 % of the CPU" in said and "1 not judged" in said
