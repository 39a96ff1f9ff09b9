"""bench/report/leaderboard.py: what counts, what does not and why, and which places the intervals leave open."""

import json

import pytest

from bench.cli.actions import leaderboard as command
from bench.errors import UserError
from bench.report import leaderboard
from tests import records


def handed_in(folder, student: str, number: str, rounds: int = 8, **changes) -> list:
    """The records of a comparison of single and ddp, in the student's folder. changes: to the options of ddp."""
    programs = {mode: records.compare_programs()[mode] for mode in ("single", "ddp")}
    programs["ddp"] |= changes
    found = records.suite_records("compare", programs, rounds, number)
    write(folder / student, found)
    return found


def write(folder, found) -> None:
    for record in found:
        place = folder / record.run_id
        place.mkdir(parents=True)
        (place / "record.json").write_text(json.dumps(record.data))


def test_the_faster_program_is_first_and_close_ones_share_a_place(tmp_path):
    handed_in(tmp_path, "ada", "0001", throughput=140.0)
    handed_in(tmp_path, "bo", "0002", throughput=139.9)
    handed_in(tmp_path, "cy", "0003", throughput=90.0)
    found, said = leaderboard.entries(tmp_path)
    (grid,) = leaderboard.grids(found)
    assert [row[:3] for row in grid.rows] == [["1–2", "ada", "ddp"], ["1–2", "bo", "ddp"], ["3", "cy", "ddp"]]
    assert float(grid.rows[0][3]) == pytest.approx(1.40, abs=0.02) and not said
    assert grid.caption.startswith("2 CPU workers")


def test_another_work_is_a_table_of_its_own(tmp_path):
    handed_in(tmp_path, "ada", "0001")
    programs = {mode: records.compare_programs()[mode] for mode in ("single", "ddp")}
    write(tmp_path / "bo", records.suite_records("compare", programs, 8, "0002", image_size=32))
    found, _ = leaderboard.entries(tmp_path)
    assert [len(grid.rows) for grid in leaderboard.grids(found)] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"facts": {"compression": "fp16"}, "throughput": 200.0}, "gradient compression"),
        ({"facts": {"lr": 0.2}, "throughput": 200.0}, "learning rate"),
        ({"rounds": 4}, "4 whole rounds, and 6 are needed"),
    ],
)
def test_what_is_not_the_same_update_does_not_count_and_it_is_said_why(tmp_path, changes, why):
    handed_in(tmp_path, "ada", "0001")
    handed_in(tmp_path, "bo", "0002", **changes)
    found, said = leaderboard.entries(tmp_path)
    assert [entry.student for entry in found] == ["ada"]
    assert any(line.startswith("bo: ") and why in line for line in said), said


def test_a_comparison_without_single_does_not_count(tmp_path):
    programs = {mode: records.compare_programs()[mode] for mode in ("dp", "ddp")}
    write(tmp_path / "ada", records.suite_records("compare", programs))
    found, said = leaderboard.entries(tmp_path)
    assert not found and "MODE=single" in said[0]


def test_records_that_two_have_handed_in_count_for_nobody(tmp_path):
    found = handed_in(tmp_path, "ada", "0001")
    write(tmp_path / "bo", found)
    handed_in(tmp_path, "cy", "0002")
    found, said = leaderboard.entries(tmp_path)
    assert [entry.student for entry in found] == ["cy"]
    assert sum("handed in twice" in line for line in said) == 2


def test_a_folder_without_students_is_one_line(tmp_path):
    with pytest.raises(UserError, match="one per student"):
        leaderboard.entries(tmp_path)


def test_the_command_prints_tables_and_says_the_rest_on_standard_error(tmp_path, capsys):
    handed_in(tmp_path, "ada", "0001")
    handed_in(tmp_path, "bo", "0002", rounds=3)
    args = type("Args", (), {"records": str(tmp_path)})
    assert command.run(args) == 0
    said = capsys.readouterr()
    assert "ada" in said.out and "bo" not in said.out
    (line,) = said.err.splitlines()  # once, with the reason
    assert line.startswith("bo: ") and "3 whole rounds, and 6 are needed" in line


def test_a_disturbed_comparison_is_shown_in_grey_and_has_no_place(tmp_path):
    handed_in(tmp_path, "ada", "0001", throughput=90.0)
    programs = {mode: records.compare_programs()[mode] for mode in ("single", "ddp")}
    programs["ddp"]["throughput"] = 900.0
    write(tmp_path / "bo", records.loaded(records.suite_records("compare", programs, 8, "0002"), 0.41))
    (grid,) = leaderboard.grids(leaderboard.entries(tmp_path)[0])
    assert [row[:2] for row in grid.rows] == [["1", "ada"], ["disturbed", "bo"]] and grid.grey == {1}


def test_a_folder_without_a_record_ends_nobody_elses_table(tmp_path, capsys):
    """What students hand in, and what archives and systems leave beside it."""
    handed_in(tmp_path, "ada", "0001")
    for name in ("empty", ".git/objects", "__MACOSX/ada", "odd\x1b]0;name\x07\n2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cut" / "run").mkdir(parents=True)
    (tmp_path / "cut" / "run" / "record.json").write_text("{")
    (tmp_path / "file").touch()
    assert command.run(type("Args", (), {"records": str(tmp_path)})) == 0
    said = capsys.readouterr()
    assert "ada" in said.out and "\x1b]" not in said.out + said.err
    lines = said.err.splitlines()
    assert len(lines) == 3 and lines[1] == "empty: no record.json in it" and lines[0].startswith("cut: ")
    assert lines[2].startswith("odd?]0;name? 2: ")
