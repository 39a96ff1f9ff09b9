"""bench/report/export.py: every value of the table is the record's, and no file is overwritten or left half-written."""

import importlib.util
import io
import sys

import pandas as pd
import pytest

from bench.cli import COMMANDS
from bench.errors import UserError
from bench.report import export as frame
from tests import records

SUITE = records.suite_records("compare", records.compare_programs(), rounds=2)
FAILED = records.record("ddp", failed="killed", seconds=900)


def test_one_row_per_record_with_the_records_own_values():
    table = frame.runs_frame(SUITE)
    assert len(table) == len(SUITE)
    for (_, row), record in zip(table.iterrows(), SUITE, strict=True):
        assert row["run_id"] == record["run_id"]
        config = record.config
        assert (row["study"], row["suite"], row["program"], row["round"]) == (
            config.label.study, config.label.suite, config.label.program, config.label.round,
        )  # fmt: skip
        assert (row["num_devices"], row["global_batch"]) == (record.num_devices, record.global_batch)
        assert row["throughput_per_s"] == record.throughput
        assert row["step_time_s_median"] == record.step_time["median"]
        assert row["torch_version"] == record["environment"]["versions"]["torch"]
    assert list(table.columns[:6]) == ["run_id", "study", "suite", "program", "variant", "round"]


def test_memory_is_the_fullest_devices_and_the_long_form_has_every_device():
    record = records.record("dp", device="cuda", num_devices=3)
    peaks = record["summary"]["peak_memory_gib"]
    table, long = frame.runs_frame([record]), frame.memory_frame([record])
    assert table.loc[0, "peak_memory_gib_torch_reserved_max"] == max(d["torch_reserved"] for d in peaks)
    assert len(long) == 3 * len(records.GPU_MIB)
    of_one = long[(long.device == "cuda:1") & (long.source == "nvml_process")]
    assert of_one.peak_memory_gib.tolist() == [peaks[1]["nvml_process"]]


def test_phases_are_medians_over_ranks_and_steps():
    times = {0: [1.0, 2.0], 1: [3.0, 4.0]}
    change = records.in_samples(lambda part: part["phase_time_s"].update(forward=times[part["rank"]]))
    (record,) = records.edited([records.record("ddp")], change)
    assert frame.runs_frame([record]).loc[0, "phase_time_s_forward_median"] == 2.5


def test_what_a_record_does_not_have_is_missing_and_keeps_its_type():
    table = frame.runs_frame([SUITE[0], FAILED])
    last = table.iloc[1]
    assert last["status"] == "failed" and last["failure_kind"] == "killed"
    assert pd.isna(last["throughput_per_s"]) and pd.isna(last["world_size"]) and pd.isna(last["round"])
    assert str(table["round"].dtype) == "Int64" and str(table["overlap"].dtype) == "boolean"
    only_failed = frame.runs_frame([FAILED])
    assert len(only_failed) == 1 and str(only_failed["global_batch"].dtype) == "Int64"
    assert frame.runs_frame([]).empty and frame.memory_frame([FAILED]).empty


def test_a_profiled_runs_speed_is_not_published():
    record = records.record("ddp", profile=True)
    row = frame.runs_frame([record]).iloc[0]
    assert row["profile"] and pd.isna(row["throughput_per_s"]) and pd.isna(row["step_time_s_median"])


def test_a_record_of_the_first_schema_has_a_row():
    """Without facts and phases, and with the options of then: what migrate leaves."""
    change = records.in_samples(lambda part: [part.pop(name) for name in ("facts", "phase_time_s")])
    row = frame.runs_frame(records.edited([records.record("ddp")], change)).loc[0]
    assert row["mode"] == "ddp" and not any(name.startswith("phase_time_s") for name in row.index)


def test_csv_and_back(tmp_path):
    path = tmp_path / "new" / "table.csv"
    frame.write_table([*SUITE, FAILED], path)
    back, table = pd.read_csv(path), frame.runs_frame([*SUITE, FAILED])
    assert list(back.columns) == list(table.columns)
    assert back["throughput_per_s"].tolist()[:-1] == table["throughput_per_s"].tolist()[:-1]
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_and_back(tmp_path):
    frame.write_table([*SUITE, FAILED], tmp_path / "table.parquet")
    back = pd.read_parquet(tmp_path / "table.parquet")
    pd.testing.assert_frame_equal(back, frame.runs_frame([*SUITE, FAILED]), check_dtype=False)
    assert str(back["round"].dtype) == "Int64"


def test_parquet_without_pyarrow_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        frame.write_table(SUITE, tmp_path / "table.parquet")
    assert not list(tmp_path.iterdir())


def test_markdown_says_once_what_is_alike(capsys):
    frame.write_table(SUITE, None, "md")
    head, blank, names, rule, *rows = capsys.readouterr().out.splitlines()
    assert "model resnet18" in head and "device cpu" in head and blank == ""
    assert "throughput_per_s" in names and "model" not in names
    assert len(rows) == len(SUITE) and {line.count("|") for line in (names, rule, *rows)} == {names.count("|")}


def test_a_table_goes_to_standard_output(capsys):
    frame.write_table(SUITE, None, "csv")
    assert len(pd.read_csv(io.StringIO(capsys.readouterr().out))) == len(SUITE)


@pytest.mark.parametrize("memory", [False, True])
def test_no_file_is_overwritten(tmp_path, memory):
    path = tmp_path / "table.md"
    path.write_text("mine")
    with pytest.raises(UserError, match="not overwritten"):
        frame.write_table(SUITE, path, memory=memory)
    assert path.read_text() == "mine"


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        frame.save(tmp_path / "table.csv", fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to, form", [("table.xls", None), ("table", None), (None, "parquet"), (None, "html")])
def test_what_cannot_be_written_is_one_clear_line(tmp_path, to, form):
    with pytest.raises(UserError) as caught:
        frame.write_table(SUITE, to and tmp_path / to, form)
    assert "\n" not in str(caught.value)


def run(*words: str) -> int:
    """The exit code of ``bench report``."""
    return COMMANDS["report"].run(COMMANDS["report"].parse(list(words)))


def test_the_command_names_refused_files_and_uses_the_rest(tmp_path, capsys):
    folder = records.store(tmp_path / "runs", SUITE[:3])
    (folder / "bad").mkdir()
    (folder / "bad" / "record.json").write_text('{"schema_version"')
    assert run(str(folder), f"--out={tmp_path / 't.csv'}") == 0
    out, err = capsys.readouterr()
    assert out == f"table: {tmp_path / 't.csv'}\n" and "bad/record.json" in err
    assert len(pd.read_csv(tmp_path / "t.csv")) == 3


def test_a_folder_of_refused_files_alone_is_no_table(tmp_path, capsys):
    (tmp_path / "record.json").write_text("[]")
    assert run(str(tmp_path)) == 2
    assert "record.json" in capsys.readouterr().err
