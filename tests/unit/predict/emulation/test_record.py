"""The record of an emulation: read, checked, labelled, and never taken for a measurement; and what `bench cluster
emulate` refuses."""

import json

import pytest

from bench import __main__ as cli
from bench.analysis.suite import suites_of
from bench.predict.emulation import record as records
from bench.record.read import find_records, load
from bench.record.schema import BadRecord
from tests import emulations, profiles
from tests.records import record as a_run


def write(folder, data: dict, name: str = "emulation.json"):
    """The content as a file of a run's folder; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (path := folder / name).write_text(json.dumps(data))
    return path


def test_figures_are_divided_back_by_the_dilation_and_labelled(tmp_path):
    for dilate, kind in ((1.0, "emulated"), (40.0, "emulated, ×40")):
        record = records.load(write(tmp_path / f"{dilate:g}", emulations.data(dilate=dilate, ranks=4)))
        assert record.steps_s == pytest.approx([4.0] * 6) and record.throughput == pytest.approx(4 * 32 / 4.0)
        assert record.phases_s["backward"] == pytest.approx(2.0) and record.kind == kind
        table = records.grid(record)
        assert kind in table.rows[0][0] and kind in table.caption
        assert all(kind in line or dilate == 1 or "×" not in line for line in records.provenance_lines(record))
        assert any(f"{dilate:g} times slower" in line for line in records.provenance_lines(record)) == (dilate > 1)


def test_a_machine_whose_cpu_was_full_is_warned_of(tmp_path):
    data = emulations.data()
    usual = records.answer(records.load(write(tmp_path, data)))
    for part in data["samples"]:
        part["load"] = part["load"] | {"machine_cpu_s": 18.0}  # of 2 cores in 10 s
    (warning,) = set(records.answer(records.load(write(tmp_path, data)))) - set(usual)
    assert "90 %" in warning


def test_nothing_that_compares_or_pools_runs_takes_it(tmp_path, capsys):
    """Neither as it lies there, nor under the name of a run's record, nor beside runs."""
    data = emulations.data()
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    write(alone / "suite" / "a", data)
    write(beside / "suite" / "a", data)
    run = a_run("ddp")
    write(beside / "suite" / "b", run.data, "record.json")
    assert find_records(alone, needed=False) == ([], [])
    found, _ = find_records(beside)
    assert [record.run_id for record in found] == [run.run_id]
    assert [record.run_id for suite in suites_of(found) for record in suite.records] in ([run.run_id], [])
    renamed = write(tmp_path / "renamed", data, "record.json")
    with pytest.raises(BadRecord):
        load(renamed)
    for words in (["pool", str(alone), f"--out={tmp_path / 'pooled'}"], ["diff", str(alone), str(beside)],
                  ["table", str(alone)], ["plots", str(alone)], ["forecast", str(alone / "suite" / "a"),
                  "--link=1gbit,1ms"]):  # fmt: skip
        assert cli.main(words) != 0, words
        assert capsys.readouterr().err.strip()
    assert not (tmp_path / "pooled").exists()


@pytest.mark.parametrize(("change", "value"), [
    (lambda data: data.update(emulation_version=9), "9"),
    (lambda data: data.update(kind="measured"), "kind"),
    (lambda data: data.pop("plan"), "plan"),
    (lambda data: data["plan"].update(dilate=0.5), "dilate"),
    (lambda data: data["plan"]["profile"]["tensors"][0].update(ready_s="soon"), "ready_s"),
    (lambda data: data["samples"].pop(), "samples"),
    (lambda data: data["samples"][0]["step_time_s"].pop(), None),
    (lambda data: data["samples"][0].update(timeline={"step": 1, "step_s": 1.0, "notes": []}), "timeline"),
    (lambda data: data["samples"][0].update(rank=1), "rank"),
    (lambda data: data["config"].update(mode="telepathy"), "mode"),
])  # fmt: skip
def test_a_record_that_was_edited_or_cut_is_refused_by_name(change, value, tmp_path):
    change(data := emulations.data())
    path = write(tmp_path, data)
    with pytest.raises(BadRecord, match=value) as error:
        records.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("words", "value"), [
    (["--mode=ddp"], "COMPUTE="),
    (["--mode=single", "--compute=RUN"], "MODE=single"),
    (["--mode=ddp", "--compute=/nowhere"], "/nowhere"),
    (["--mode=ddp", "--compute=RUN", "--link=fast"], "LINK=fast"),
    (["--mode=ddp", "--compute=RUN", "--link=25gbit"], "25000 Mbit/s"),
    (["--mode=ddp", "--compute=RUN", "--dilate=0.5"], "DILATE=0.5"),
    (["--mode=ddp", "--compute=RUN", "--nodes=1"], "NODES=1"),
    (["--mode=ddp", "--compute=RUN", "--cycle-time-ms=5"], "CYCLE_TIME_MS=5.0"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line_before_a_cluster_is_made(words, value, tmp_path, capsys):
    run = str(profiles.record(tmp_path / "profile"))
    words = [word.replace("RUN", run) for word in words]
    assert cli.main(["cluster", "emulate", *words, f"--out={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    assert value in error and error.count("\n") == 1 and not (tmp_path / "out").exists()
