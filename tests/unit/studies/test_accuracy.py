"""bench/studies/accuracy: verdicts by seed, table, picture and page of an accuracy suite."""

import pytest

from bench.analysis import comparison, stats
from bench.analysis.equivalence import verdict_of
from bench.cli import COMMANDS
from bench.config.command_line import from_arguments
from bench.errors import UserError
from bench.report import page
from bench.studies.accuracy import result as accuracy
from bench.studies.accuracy.study import ACCURACY
from tests import records
from tests.shown import plain, text_of


@pytest.fixture(scope="module")
def result():
    return ACCURACY.result(records.suite("accuracy", rounds=3))


def test_modes_are_paired_by_seed_against_single(result):
    rows = {row.label: row for row in result.rows}
    assert list(rows) == ["single", "dp", "ddp", "horovod"] and result.base == "single"
    assert rows["single"].against_base is None and rows["single"].differences == []
    dp = rows["dp"]
    assert dp.differences == pytest.approx([0.1, -0.1, 0.1])
    assert dp.against_base == stats.equivalence(dp.differences, dp.against_base.margin)
    found = {label: verdict_of(row.against_base) for label, row in rows.items() if row.against_base}
    assert found == {"dp": "equivalent within ±1 point", "ddp": "different", "horovod": "not shown"}


def test_the_last_epoch_counts_and_a_seed_that_did_not_reach_the_target_took_longest(result):
    """Of horovod's three one stayed below: the median is the slower of the other two. ddp's never got there."""
    fell = records.accuracy_programs(single=[0.95, 0.96], ddp=[0.95, 0.96])
    for options in fell.values():
        options["top1"] = [[0.90, 0.99, last] for *_, last in options["top1"]]
    single = ACCURACY.result(records.suite("accuracy", fell, rounds=2)).rows[0]
    assert single.top1 == pytest.approx([95, 96]) and single.best == pytest.approx(99)
    assert single.reached == 2 and single.median_seconds == 22  # in the second epoch
    _, _, ddp, horovod = result.rows
    assert horovod.seconds_to_target == [33.0, None, 33.0]
    assert (horovod.reached, horovod.median_seconds) == (2, 33) and (ddp.reached, ddp.median_seconds) == (0, None)


def test_a_seed_a_round_is_fair_and_another_seed_in_one_program_is_not(result):
    assert result.certificate.fair, result.certificate.sentence()

    def another_in_the_second_round(data):
        if data["config"]["round"] == 1:
            data["config"]["seed"] = 9

    result = ACCURACY.result(records.suite("accuracy", rounds=3, change=another_in_the_second_round, of="dp"))
    assert [fact.name for fact in result.certificate.differences] == ["seed"]
    assert "NOT A FAIR COMPARISON: seed" in text_of(accuracy.draw(result))
    flagged = {r.label for r in result.rows if any("(unfair)" in cell for cell in accuracy.cells(result, r))}
    assert flagged == {"dp"}, "of several programs the one that differs is flagged, and not the others"
    found = comparison.compare_suite(records.suite("compare", records.accuracy_programs(), rounds=2))
    assert "seed" in [fact.name for fact in found.certificate.differences]  # in a comparison of speed it may not change


def test_runs_that_were_not_validated_are_refused():
    untrained = {mode: options | {"top1": [None] * 3} for mode, options in records.accuracy_programs().items()}
    with pytest.raises(UserError, match="single"):
        ACCURACY.result(records.suite("accuracy", untrained, rounds=2))


def test_table_picture_and_page_have_every_verdict_and_no_speed(result):
    (grid,) = ACCURACY.summary(result)
    cells = {row[0]: " | ".join(row) for row in grid.rows}
    assert "98.77" in cells["single"]
    shown = {"single": ["3 of 3"], "dp": ["equivalent within ±1 point"], "ddp": ["different", "0 of 3"],
             "horovod": ["not shown", "2 of 3"]}  # fmt: skip
    assert all(word in cells[label] for label, words in shown.items() for word in words)
    said = plain(page.page([result.suite], [], []))
    assert said.index("dp vs single: equivalent within ±1 point") < said.index("Was it fair?")
    assert "images/s" not in said and "faster" not in said


def test_the_recipe_is_what_nobody_gives_otherwise():
    parse = COMMANDS["compare"].parts["accuracy"].parse
    recipe = from_arguments(parse([]))
    assert recipe.lr_warmup_epochs == 1  # LR_WARMUP_STEPS=1e
    names = set(ACCURACY.defaults) - {"lr_warmup_steps"}
    assert {name: getattr(recipe, name) for name in names} == {name: ACCURACY.defaults[name] for name in names}
    asked = from_arguments(parse(["--lr=0.01", "--schedule=constant", "--weight-decay=0"]))
    assert (asked.lr, asked.schedule, asked.weight_decay, asked.epochs) == (0.01, "constant", 0.0, recipe.epochs)
