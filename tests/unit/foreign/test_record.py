"""The record of an external script: read, checked, shown beside runs, and compared only with records of its kind."""

import json

import pytest

from bench import __main__ as cli
from bench.foreign import record as foreign_record
from bench.foreign import result
from bench.foreign.record import NAME, find
from bench.record.schema import BadRecord
from bench.report.difference import compare_foreign
from tests import foreigners, records


def test_figures_follow_from_the_steps_that_all_ranks_timed(tmp_path):
    made = foreigners.data(step_s=0.5, steps=10)
    for column in ("step_number", "step_time_s", "data_wait_s", "watch_s"):
        made["samples"][1][column] = made["samples"][1][column][:-2]  # rank 1 timed fewer
    record = foreigners.write(tmp_path, made)
    assert record.step_time == {"n": 8, "mean": 0.5, "median": 0.5, "p5": 0.5, "p95": 0.5}  # rank 0 is the slower one
    assert record.steps_per_s == pytest.approx(2) and record.throughput == pytest.approx(64)
    assert record.wait_share == pytest.approx(0.2)  # rank 1's, whose steps are half as long
    assert record.unit == "examples/s" and not record.on_gpu and record.config.num_devices == 2


def test_a_script_is_as_fast_as_the_rank_that_takes_longest_for_all_steps(tmp_path):
    """Step ends that vary between ranks are not lost time: both ranks need 0.2 s for two steps."""
    made = foreigners.data()
    for part, steps in zip(made["samples"], ([0.09, 0.11], [0.11, 0.09]), strict=True):
        part["step_time_s"] = steps * 10
    record = foreigners.write(tmp_path, made)
    assert record.steps_per_s == pytest.approx(10) and record.throughput == pytest.approx(320)


def test_unknown_examples_are_steps_and_never_examples(tmp_path):
    record = foreigners.write(tmp_path, foreigners.data(batch=None))
    assert record.throughput == pytest.approx(10) and record.unit == "steps/s"
    assert "?" in result.grid([record]).rows[0] and any("BATCH" in line for line in result.lines(record))


@pytest.mark.parametrize(("change", "value"), [
    (lambda data: data.pop("engine"), "engine"),
    (lambda data: data.update(foreign_version=9), "9"),
    (lambda data: data.update(kind="run"), "kind"),
    (lambda data: data["samples"].pop(), None),
    (lambda data: data["samples"][0]["step_time_s"].pop(), None),
    (lambda data: data["samples"][0]["step_time_s"].__setitem__(0, -1.0), "1e-09"),
    (lambda data: data["samples"][0].update(step_number=list(range(900, 920))), None),
    (lambda data: data["observed"].update(data={"same_neighbours": "x"}), "observed"),
])  # fmt: skip
def test_a_record_that_was_edited_or_cut_is_refused_by_name(change, value, tmp_path):
    change(made := foreigners.data())
    (path := tmp_path / NAME).write_text(json.dumps(made))
    with pytest.raises(BadRecord, match=value) as error:
        foreign_record.load(path)
    assert str(path) in str(error.value)
    assert find(tmp_path) == ([], [str(error.value)])


def test_check_finds_the_possible_mistake_in_it(tmp_path, capsys):
    foreigners.write(tmp_path, foreigners.data())
    foreigners.write(tmp_path, foreigners.data(observed=None, number=2))
    assert cli.main(["mistake", "check", str(tmp_path)]) == 0  # an order that may be meant: a possible mistake
    said = capsys.readouterr().out
    assert "train.py" in said and "no-reshuffle" in said and "drift" in said  # the latter was not observed in one


def test_diff_compares_foreign_scripts_of_one_name_alone_and_never_with_runs(tmp_path, capsys):
    a, b = ([foreigners.write(tmp_path / side, foreigners.data(step_s=step_s * (1 + n / 100), number=n))
             for n in range(1, 6)] for side, step_s in (("a", 0.1), ("b", 0.2)))  # fmt: skip
    found = compare_foreign(a, [*b, foreigners.write(tmp_path / "b", foreigners.data("more.py"))])
    (difference,) = found.differences
    assert difference.verdict == "slower" and difference.low < 0.5 < difference.high and difference.n_b == 5
    assert found.only_a == [] and "more.py" in found.only_b[0]
    assert cli.main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--bound", "5"]) == 3
    said = capsys.readouterr().out
    assert "train.py on 2 × cpu" in said and "more.py" in said
    records.store(tmp_path / "runs", [records.record("ddp")])
    assert cli.main(["diff", str(tmp_path / "a"), str(tmp_path / "runs")]) == 2


def test_another_text_of_the_script_gets_no_verdict(tmp_path):
    a, b = (foreigners.write(tmp_path / side, foreigners.data(sha=side * 64)) for side in "ab")
    (difference,) = compare_foreign([a], [b]).differences
    assert difference.verdict == "preview"
