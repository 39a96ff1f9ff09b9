"""bench/report/difference.py and Welch's formulas, against scipy and by hand."""

import math

import numpy as np
import pytest
import scipy

from bench import formulas
from bench.cli import COMMANDS
from bench.errors import UserError
from bench.record.view import Record
from bench.report import difference as diff
from tests import records
from tests.runs import refuses


def runs(speeds: list[float], mode: str = "ddp", day: int = 0, **options) -> list[Record]:
    return [records.record(mode, x, seconds=86400 * day + 10 * i, **options) for i, x in enumerate(speeds)]


def speeds(n: int, sd: float, mean: float = 100.0, seed: int = 0) -> list[float]:
    return (mean * np.exp(np.random.default_rng([seed, n]).normal(0, sd, n))).tolist()


def only(result: diff.Result) -> diff.Difference:
    (found,) = result.differences
    return found


@pytest.mark.parametrize("n, m", [(2, 2), (3, 9), (8, 8), (20, 5)])
def test_the_interval_and_its_df_are_scipys_welch(n, m):
    a, b = speeds(n, 0.03, seed=1), speeds(m, 0.1, 120, seed=2)
    welch = scipy.stats.ttest_ind(np.log(b), np.log(a), equal_var=False)
    expected = welch.confidence_interval(0.95)
    ratio, low, high = formulas.unpaired_log_ratio_interval(a, b, 0.95)
    assert (low, high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert ratio == pytest.approx(scipy.stats.gmean(b) / scipy.stats.gmean(a))
    squares = [np.var(np.log(x), ddof=1) / len(x) for x in (a, b)]
    assert formulas.welch_df(*squares, n, m) == pytest.approx(welch.df)


@pytest.mark.parametrize("n, m", [(5, 5), (8, 8), (6, 11)])
def test_the_rank_sum_interval_is_the_shifts_that_scipys_exact_test_does_not_reject(n, m):
    draw = np.random.default_rng([n, m])
    a, b = draw.normal(0, 1, n), draw.normal(1, 1, m)
    depth, achieved = formulas.rank_sum_depth(n, m, 0.95)
    _, low, high = formulas.hodges_lehmann_shift(a.tolist(), b.tolist(), depth)
    for end, outward in ((low, -1e-9), (high, 1e-9)):
        outside = scipy.stats.mannwhitneyu(b - end - outward, a, method="exact").pvalue
        inside = scipy.stats.mannwhitneyu(b - end + outward, a, method="exact").pvalue
        assert outside == pytest.approx(1 - achieved) and inside > 0.05


@pytest.mark.parametrize(
    "low, high, bound, place",
    [(0.90, 0.94, 5, "beyond"), (0.90, 0.96, 5, "across"), (0.96, 0.98, 5, "within"), (None, None, 5, "unknown"),
     (1.01, 1.02, 0, "within"), (0.98, 0.99, 0, "beyond")],
)  # fmt: skip
def test_where_an_interval_lies_to_the_bound(low, high, bound, place):
    found = diff.Difference("ddp 2", 8, 8, 100.0, 95.0, 0.95, low, high, None, None, None, "slower", None, [], [])
    assert found.against(bound) == place
    result = diff.Result([found], [], [])
    assert bool(result.regressions(bound, strict=False)) == (place == "beyond")
    assert bool(result.regressions(bound, strict=True)) == (place != "within")


def with_threads(found: list[Record], total: int) -> list[Record]:
    def change(data: dict) -> None:
        data["topology"]["threads_total"] = total
        records.in_samples(lambda part: part.update(threads=total // len(data["samples"])))(data)

    return records.edited(found, change)


def test_by_hand():
    """log B - log A = 0.2; each s**2 / n is 0.01 / 3; 4 degrees of freedom."""
    a = [100 * math.exp(x) for x in (-0.1, 0, 0.1)]
    found = only(diff.compare_sets(runs(a), runs([x * math.exp(0.2) for x in a], day=1)))
    half = 2.776445 * math.sqrt(0.02 / 3)
    assert [found.ratio, found.low, found.high] == pytest.approx([math.exp(x) for x in (0.2, 0.2 - half, 0.2 + half)])
    assert (found.name, found.n_a, found.n_b, found.verdict) == ("ddp 2", 3, 3, "inconclusive")
    assert found.hl_ratio == pytest.approx(math.exp(0.2)) and found.hl_low is None
    assert found.needed > 3 and str(found.needed) in found.sentence()


def test_each_mode_is_compared_with_itself():
    a = records.suite_records("compare")
    b = records.suite_records("compare", records.compare_programs(ddp=84.0), name="0002")
    found = {d.name: d for d in diff.compare_sets(a, b).differences}
    assert list(found) == ["single 1", "dp 2", "ddp 2", "horovod 2", "independent 2"]
    assert {name for name, d in found.items() if d.verdict == "slower"} == {"ddp 2"}
    assert found["ddp 2"].ratio == pytest.approx(84 / 91, rel=1e-3) and found["dp 2"].unlike == []


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        ({}, {"batch": 16, "seed": 3}, ["per_device_batch", "32", "16", "seed", "ddp 2"]),
        ({}, {"device": "cuda"}, ["device", "cpu", "cuda"]),
        ({}, {"mode": "dp"}, ["ddp 2", "dp 2"]),
        ({}, {"bucket_cap_mb": 5.0}, ["ddp 2", "ddp 2 bucket_cap_mb=5"]),
    ],
)
def test_sets_without_a_common_program_or_of_different_work_are_refused_by_what_differs(a, b, named):
    with refuses(*named):
        diff.compare_sets(runs([100, 101], **a), runs([100, 101], day=1, **b))


def test_backend_options_make_a_program_and_where_a_run_belongs_does_not():
    """What is in one set only is named, and workloads are kept apart."""
    a = runs([100, 101], threads=2, suite="compare-1", program="ddp", round=0)
    assert only(diff.compare_sets(a, runs([99, 100], threads=4, out="elsewhere", timeout=5.0, day=1))).name == "ddp 2"
    a = runs([100, 101], bucket_cap_mb=1.0) + runs([90, 91])
    result = diff.compare_sets(a, runs([99, 100], bucket_cap_mb=1.0, day=1) + runs([99, 98], overlap=False, day=1))
    assert only(result).name == "ddp 2 bucket_cap_mb=1"
    assert (result.only_a, result.only_b) == (["ddp 2"], ["ddp 2 overlap=0"])
    sides = [runs([100, 101], batch=16, day=d) + runs([100, 101], batch=32, day=d) for d in (0, 1)]
    names = [d.name for d in diff.compare_sets(*sides).differences]
    assert names == ["ddp 2 (per_device_batch=16)", "ddp 2 (per_device_batch=32)"]


def test_other_numbers_of_threads_are_kept_apart_within_a_set_and_marked_between_sets():
    a = runs([100, 101]) + with_threads(runs([150, 151, 152], day=1), 4)
    b = runs([99, 98], day=2)
    found = only(result := diff.compare_sets(a, b))
    assert (found.name, found.n_a, found.n_b, found.mark) == ("ddp 2 (threads_total=2)", 2, 2, "")
    assert (result.only_a, result.only_b, result.by_threads) == (["ddp 2 (threads_total=4)"], [], ["ddp 2"])
    both = diff.compare_sets(a, with_threads(runs([140, 141], day=3), 4) + b)
    assert [d.name for d in both.differences] == ["ddp 2 (threads_total=2)", "ddp 2 (threads_total=4)"]
    with pytest.raises(UserError, match=r"threads_total=2.*threads_total=8"):
        diff.compare_sets(a, with_threads(runs([140, 141], day=3), 8))
    found = only(result := diff.compare_sets(runs([100, 101]), with_threads(runs([150, 151], day=1), 4)))
    assert (found.name, result.by_threads) == ("ddp 2", []) and found.mark in found.sentence() and found.mark
    assert len(found.unlike) == 1 and "threads" in found.unlike[0]


@pytest.fixture
def judge(tmp_path, capsys):
    """``judge(a, b, bound, strict)``: `bench diff` of two sets: its exit code and what it printed."""

    def run(a: list[Record], b: list[Record], bound: str | None = "5", strict: bool = False) -> tuple[int, str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        places = [str(records.store(folder / name, side)) for name, side in (("a", a), ("b", b))]
        words = [*places, f"--strict={strict:d}", *([] if bound is None else [f"--bound={bound}"])]
        code = COMMANDS["diff"].run(COMMANDS["diff"].parse(words))
        return code, " ".join(capsys.readouterr().out.split())

    return run


@pytest.mark.parametrize(
    "speed, bound, strict, code",
    [(80, "5", False, 3), (80, None, False, 0), (80, "50", True, 0), (96, "5", False, 0), (99.9, "5", True, 0),
     (120, "0", True, 0)],
)  # fmt: skip
def test_the_exit_code(judge, speed, bound, strict, code):
    found, said = judge(runs(speeds(8, 0.01)), runs(speeds(8, 0.01, speed, seed=1), day=1), bound, strict)
    assert found == code and ("regression: ddp 2" in said) == (code == 3) and "n = 8 and 8" in said


def test_what_cannot_be_judged_fails_strictly_only(judge):
    """One record a side, disturbed records, and a mode that is gone."""
    quiet, one = runs(speeds(8, 0.01)), runs([100.0])
    disturbed = records.loaded(runs(speeds(8, 0.01, 40, seed=1), day=1), 0.41)
    gone = [*runs(speeds(8, 0.01), day=1), records.record("dp", failed="killed", seconds=99999)]
    for a, b, named in ((one, runs([50.0], day=1), "n = 1 and 1"), (quiet, disturbed, "41 % of the CPU"),
                        (quiet + runs([100.0, 100.1], "dp"), gone, "dp 2")):  # fmt: skip
        found = [judge(a, b, "5", strict) for strict in (False, True)]
        assert [code for code, _ in found] == [0, 3] and all(named in said for _, said in found)
    assert only(diff.compare_sets(quiet, disturbed)).verdict == "disturbed"


def test_refused_profiled_and_repeated_records(judge, tmp_path):
    a, b = runs([100.0, 101.0, 100.5]), runs([100.0, 101.0, 100.5], day=1)
    profiled = [records.record("ddp", 10.0, seconds=5e5, profile=True)]
    strange = records.edited(b[:1], lambda data: data["config"].update(snapshots=["1", "2"]))
    code, said = judge(a, [*b[1:], *strange, *profiled])
    assert code == 0 and "config/snapshots" in said and "n = 3 and 2" in said
    assert judge(a, a)[0] == 0
    (path, *_) = sorted((tmp_path / "0" / "a").rglob("record.json"))
    assert COMMANDS["diff"].run(COMMANDS["diff"].parse([str(path), str(path)])) == 0  # a record's own file is a set


def test_a_bad_bound_and_a_folder_without_good_records_are_refused_by_name(tmp_path):
    def refused(a, b, *flags: str, named: str):
        with refuses(named):
            COMMANDS["diff"].run(COMMANDS["diff"].parse([str(a), str(b), *flags]))

    for flags in (["--bound=x"], ["--bound=-1"], ["--bound=100"], ["--bound=nan"], ["--strict=1"]):
        refused("a", "b", *flags, named="BOUND")
    good = records.store(tmp_path / "a", runs([100.0]))
    (tmp_path / "empty").mkdir()
    failed = records.store(tmp_path / "failed", [records.record("ddp", failed="killed")])
    for bad in (tmp_path / "empty", tmp_path / "missing", failed):
        refused(good, bad, named=bad)
