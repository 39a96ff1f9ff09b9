"""bench/studies/accuracy/result.py and what is made of it: table, verdicts, picture and page of an accuracy suite."""

import io
import statistics

import pytest
from rich.console import Console

from bench.analysis import comparison, tables
from bench.analysis.suite import suites_of
from bench.config import options as cfg
from bench.errors import UserError
from bench.report import page
from bench.studies.accuracy import figures as picture
from bench.studies.accuracy import result as accuracy
from tests import records
from tests.unit.report.test_page import plain
from tests.unit.studies.test_figures import text_of


@pytest.fixture(scope="module")
def suite():
    """Three seeds of four modes."""
    return records.suite("accuracy", records.accuracy_programs(), rounds=3)


@pytest.fixture(scope="module")
def result(suite):
    """The same, compared."""
    return accuracy.compare_accuracy(suite)


def row(result, role: str) -> accuracy.Row:
    """One mode's row."""
    return next(row for row in result.rows if row.role == role)


def test_modes_are_paired_by_seed_against_single(result):
    assert [row.role for row in result.rows] == ["single", "dp", "ddp", "horovod"] and result.base == "single"
    assert result.rows[0].against_base is None and result.rows[0].differences == []
    dp = row(result, "dp")
    assert dp.differences == pytest.approx([0.1, -0.1, 0.1])
    assert dp.against_base.mean_difference == pytest.approx(statistics.fmean([0.1, -0.1, 0.1]))
    low, high = dp.against_base.low95, dp.against_base.high95  # t(2) = 4.303; the deviation is 0.2 / sqrt(3)
    assert (low, high) == pytest.approx((1 / 30 - 4.303 * 0.2 / 3, 1 / 30 + 4.303 * 0.2 / 3), abs=1e-4)


def test_the_verdicts(result):
    found = {row.role: accuracy.verdict_of(row.against_base) for row in result.rows if row.against_base}
    assert found == {"dp": "equivalent within ±1 point", "ddp": "different", "horovod": "not shown"}


def test_the_last_epoch_counts_and_the_best_is_beside_it():
    fell = records.accuracy_programs(single=[0.95, 0.96], ddp=[0.95, 0.96])
    for options in fell.values():
        options["top1"] = [[0.90, 0.99, last] for *_, last in options["top1"]]
    single = accuracy.compare_accuracy(records.suite("accuracy", fell, rounds=2)).rows[0]
    assert single.mean[0] == pytest.approx(95.5) and single.best == pytest.approx(99)
    assert single.reached == 2 and single.median_seconds == 22  # in the second epoch


def test_a_seed_that_did_not_reach_the_target_took_longest(result):
    """Of horovod's three one stayed below: the median is the slower of the other two. ddp's never got there."""
    horovod = row(result, "horovod")
    assert horovod.seconds_to_target == [33.0, None, 22.0 if 0.999 - 0.02 >= 0.98 else 33.0]
    assert horovod.reached == 2 and horovod.median_seconds == 33
    assert row(result, "ddp").reached == 0 and row(result, "ddp").median_seconds is None
    assert "not reached" in accuracy.cells(result, row(result, "ddp"))


def test_one_seed_shows_nothing():
    result = accuracy.compare_accuracy(records.suite("accuracy", records.accuracy_programs(), rounds=1))
    assert {row.against_base.verdict for row in result.rows[1:]} == {"not shown"}
    assert result.rows[0].mean == (pytest.approx(98.5), None, None)
    assert "with one seed: no interval" in result.answer()[0]


def test_a_seed_a_round_is_fair_and_another_seed_in_one_program_is_not(suite):
    certificate = accuracy.compare_accuracy(suite).certificate
    assert certificate.fair, certificate.sentence()
    for name in ("seed", "initial weights", "images of the first steps"):
        assert next(fact for fact in certificate.facts if fact.name == name).status == "equal"
    found = records.suite_records("accuracy", records.accuracy_programs(), rounds=3)
    for each in found:
        if (each["config"]["role"], each["config"]["round"]) == ("dp", 1):
            each["config"]["seed"] = 9
    (mixed,) = suites_of(found)
    result = accuracy.compare_accuracy(mixed)
    assert [fact.name for fact in result.certificate.differences] == ["seed"]
    assert "in one round" in result.certificate.differences[0].why
    assert "NOT A FAIR COMPARISON: seed" in text_of(picture.draw(mixed))
    assert any("(unfair)" in cell for cell in accuracy.cells(result, row(result, "dp")))


def test_in_a_comparison_of_speed_a_seed_may_not_change():
    programs = records.accuracy_programs()
    found = comparison.compare_suite(records.suite("compare", programs, rounds=2))
    assert "seed" in [fact.name for fact in found.certificate.differences]


def test_throughputs_of_trainings_are_not_compared(suite):
    with pytest.raises(UserError, match="is about accuracy: its throughputs are not compared"):
        comparison.compare_suite(suite)


def test_runs_that_were_not_validated_are_refused():
    untrained = {mode: options | {"top1": [None] * 3} for mode, options in records.accuracy_programs().items()}
    with pytest.raises(UserError, match="was not validated"):
        accuracy.compare_accuracy(records.suite("accuracy", untrained, rounds=2))


def test_the_table_in_the_terminal(result):
    out = io.StringIO()
    tables.print_accuracy_result(Console(file=out, width=160), result)
    said = " ".join(out.getvalue().split())
    assert "parity certificate: fair" in said and "images/s" not in said
    for words in ("98.77", "3 of 3", "2 of 3", "0 of 3", "equivalent within ±1 point", "different", "not shown", "CPU",
                  "Margin, fixed before the runs: ±1 percentage point of top-1"):  # fmt: skip
        assert words in said, words


def test_the_picture_has_every_seed_the_intervals_and_the_margin(result):
    figure = picture.draw(result)
    curves, differences = figure.axes
    thin = [line for line in curves.get_lines() if line.get_linewidth() < 0.7]
    assert len(thin) == 4 * 3 and all(list(line.get_xdata()) == [1, 2, 3] for line in thin)
    bars = [sorted(line.get_xdata()) for line in differences.get_lines() if line.get_linewidth() == 4]
    others = result.rows[1:]
    low, high = differences.get_xlim()
    for bar, each in zip(bars, others, strict=True):
        found = each.against_base
        assert bar == pytest.approx([max(found.low95, low), min(found.high95, high)])
    dots = [list(line.get_xdata()) for line in differences.get_lines() if line.get_marker() in "osD^v"]
    assert [each.differences for each in others] == dots
    (band,) = differences.patches
    assert (band.get_x(), band.get_width()) == (-1, 2)
    assert "±1 percentage point of top-1, fixed before the runs" in text_of(figure)


def test_the_page_has_answer_table_picture_and_no_throughput(suite):
    text = page.page([suite], [], [])
    said = plain(text)
    assert "Do all modes reach the same accuracy?" in said and text.count("<svg") == 1
    assert said.index("dp against single: equivalent within ±1 point") < said.index("Was it fair?")
    assert "Top-1 accuracy, paired by seed" in said
    assert "Ratio of throughput" not in said and "images/s" not in said and "faster" not in said
    assert "n = 3 interleaved rounds, each with its own seed" in said


def test_the_page_says_how_to_repeat_it(suite):
    command = page.suite_command(suite)
    assert command.startswith("make accuracy GPUS=2 SEEDS=3 ") and " EPOCHS=3 " in command
    assert "SEED=" not in command and "WARMUP=" not in command and " STEPS=" not in command
    assert "CHECKPOINT" not in command and "DATA=" not in command  # the recipe's own
    assert "SCHEDULE=constant" in command  # it is not the recipe's: without it cosine would be used
    later = records.suite_records("accuracy", records.accuracy_programs(), rounds=2)
    for each in later:
        each["config"]["seed"] += 40
    (moved,) = suites_of(later)
    assert page.suite_command(moved).startswith("make accuracy GPUS=2 SEEDS=2 SEED=40 ")


def test_the_recipe_is_what_nobody_says_otherwise():
    import argparse

    parser = argparse.ArgumentParser()
    cfg.add_arguments(parser, cfg.ACCURACY)
    recipe = cfg.from_arguments(parser.parse_args([]))
    assert {name: getattr(recipe, name) for name in cfg.ACCURACY} == cfg.ACCURACY
    asked = cfg.from_arguments(parser.parse_args(["--lr=0.05", "--schedule=constant", "--weight-decay=0"]))
    assert (asked.lr, asked.schedule, asked.weight_decay, asked.epochs) == (0.05, "constant", 0.0, recipe.epochs)
