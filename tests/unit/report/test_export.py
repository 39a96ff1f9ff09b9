"""bench/report/export.py: every value of the table is the record's, and no file is overwritten or left half-written."""

import importlib.util
import io
import sys

import pandas as pd
import pytest

from bench.__main__ import main
from bench.report import export as frame
from tests import records
from tests.runs import refuses

SUITE = records.suite_records("compare", rounds=2)
FAILED = records.record("ddp", failed="killed", seconds=900)


def test_one_row_per_record_with_the_records_own_values():
    table = frame.runs_frame(SUITE)
    assert list(table.columns[:6]) == ["run_id", "study", "suite", "program", "variant", "round"]
    for (_, row), record in zip(table.iterrows(), SUITE, strict=True):
        label = record.config.label
        expected = {
            "run_id": record["run_id"], "study": label.study, "suite": label.suite, "program": label.program,
            "round": label.round, "num_devices": record.num_devices, "global_batch": record.global_batch,
            "throughput_per_s": record.throughput, "step_time_s_median": record.step_time["median"],
            "torch_version": record["environment"]["versions"]["torch"],
        }  # fmt: skip
        assert row[list(expected)].to_dict() == expected


def test_memory_is_the_fullest_devices_and_phases_are_medians_over_ranks_and_steps():
    record = records.record("dp", device="cuda", num_devices=3)
    peaks = record["summary"]["peak_memory_gib"]
    table, long = frame.runs_frame([record]), frame.memory_frame([record])
    assert table.loc[0, "peak_memory_gib_torch_reserved_max"] == max(d["torch_reserved"] for d in peaks)
    of_one = long[(long.device == "cuda:1") & (long.source == "nvml_process")]
    assert len(long) == 3 * len(records.GPU_MIB) and of_one.peak_memory_gib.tolist() == [peaks[1]["nvml_process"]]
    times = {0: [1.0, 2.0], 1: [3.0, 4.0]}
    change = records.in_samples(lambda part: part["phase_time_s"].update(forward=times[part["rank"]]))
    (edited,) = records.edited([records.record("ddp")], change)
    assert frame.runs_frame([edited]).loc[0, "phase_time_s_forward_median"] == 2.5


def test_what_a_record_does_not_have_is_missing_and_keeps_its_type():
    """A failed run, a profiled one, whose speed counts for nothing, and what migrate leaves of the first schema."""
    table = frame.runs_frame([SUITE[0], FAILED, records.record("ddp", profile=True)])
    for row in (table.iloc[1], table.iloc[2]):
        assert pd.isna(row["throughput_per_s"]) and pd.isna(row["step_time_s_median"]) and pd.isna(row["round"])
    assert table.loc[1, "failure_kind"] == "killed"
    assert str(table["round"].dtype) == "Int64" and str(table["overlap"].dtype) == "boolean"
    assert str(frame.runs_frame([FAILED])["global_batch"].dtype) == "Int64"
    assert frame.runs_frame([]).empty and frame.memory_frame([FAILED]).empty
    change = records.in_samples(lambda part: [part.pop(name) for name in ("facts", "phase_time_s")])
    row = frame.runs_frame(records.edited([records.record("ddp")], change)).loc[0]
    assert row["mode"] == "ddp" and not any(name.startswith("phase_time_s") for name in row.index)


@pytest.mark.parametrize("form", ["csv", pytest.param("parquet", marks=pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"))])  # fmt: skip
def test_a_table_and_back(tmp_path, form):
    path, table = tmp_path / "new" / f"table.{form}", frame.runs_frame([*SUITE, FAILED])
    frame.write_table([*SUITE, FAILED], path)
    if form == "csv":
        back = pd.read_csv(path)
        assert list(back.columns) == list(table.columns)
        assert back["throughput_per_s"].tolist()[:-1] == table["throughput_per_s"].tolist()[:-1]
    else:
        pd.testing.assert_frame_equal(pd.read_parquet(path), table, check_dtype=False)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_markdown_says_once_what_is_equal_and_a_table_goes_to_standard_output(capsys):
    frame.write_table(SUITE, None, "md")
    head, blank, names, rule, *rows = capsys.readouterr().out.splitlines()
    assert "resnet18" in head and blank == "" and "throughput_per_s" in names and "model" not in names
    assert len(rows) == len(SUITE) and {line.count("|") for line in (names, rule, *rows)} == {names.count("|")}
    frame.write_table(SUITE, None, "csv")
    assert len(pd.read_csv(io.StringIO(capsys.readouterr().out))) == len(SUITE)


def test_no_file_is_overwritten(tmp_path):
    path = tmp_path / "table.md"
    path.write_text("mine")
    with refuses("table.md"):
        frame.write_table(SUITE, path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("to, form, named", [("a.xls", None, "xls"), ("a", None, "a"), (None, "parquet", "parquet"),
                                             (None, "html", "html"), ("a.parquet", None, "pyarrow")])  # fmt: skip
def test_what_cannot_be_written_is_refused_by_name(tmp_path, monkeypatch, to, form, named):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refuses(named):
        frame.write_table(SUITE, to and tmp_path / to, form)
    assert not list(tmp_path.iterdir())


def test_the_command_names_refused_files_and_uses_the_rest(tmp_path, capsys):
    folder = records.store(tmp_path / "runs", SUITE[:3])
    (folder / "bad").mkdir()
    (folder / "bad" / "record.json").write_text('{"schema_version"')
    assert main(["report", str(folder), f"--out={tmp_path / 't.csv'}"]) == 0
    out, err = capsys.readouterr()
    assert str(tmp_path / "t.csv") in out and "bad/record.json" in err and len(pd.read_csv(tmp_path / "t.csv")) == 3
    assert main(["report", str(folder / "bad")]) == 2 and "record.json" in capsys.readouterr().err


def test_energy_per_example_is_that_of_all_boards_once_and_missing_where_it_is_not_known():
    two = records.record("ddp", device="cuda", num_devices=2, batch=32)  # 6 steps of 64 examples

    def found(joules: list, boards: list[int]) -> float:
        for part, energy, board in zip(two["samples"], joules, boards, strict=True):
            part["devices"][0] |= {"energy_j": energy, "uuid": f"GPU-{board}"}
        return frame.runs_frame([two]).loc[0, "joules_per_example"]

    assert found([300.0, 340.0], [0, 1]) == pytest.approx(640 / (6 * 64))
    assert found([300.0, 340.0], [0, 0]) == pytest.approx(340 / (6 * 64))  # both ranks read the same board
    assert pd.isna(found([300.0, None], [0, 0]))
    profiled = records.record("ddp", device="cuda", profile=True)
    trained = records.record("ddp", device="cuda", top1=[0.5], epochs=1)  # its validations take energy, too
    assert frame.runs_frame([*SUITE[:1], FAILED, profiled, trained])["joules_per_example"].isna().all()


def test_flops_are_per_device_and_missing_where_they_were_not_counted():
    facts = {"flops_per_example": 24.3e9}
    counted = records.record("ddp", throughput=1000.0, num_devices=2, facts=facts, peak_tflops=24.3)
    found = frame.runs_frame([counted, FAILED, *SUITE[:1]])
    assert found.loc[0, ["tflops_per_device", "mfu"]].tolist() == pytest.approx([12.15, 0.5])
    assert found.loc[1:, ["tflops_per_device", "mfu"]].isna().all(axis=None) and found["hfu"].isna().all()
