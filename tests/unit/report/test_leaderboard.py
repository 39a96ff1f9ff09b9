"""bench/report/leaderboard.py: what counts, what does not and why, and which places the intervals leave open."""

import pytest

from bench.__main__ import main
from bench.errors import UserError
from bench.report import leaderboard
from tests import records


@pytest.fixture
def hand_in(tmp_path):
    """``hand_in(student)``: a comparison of single and ddp, in the student's folder; gives its records."""

    def write(
        student: str, rounds: int = 8, base: str = "single", image_size: int | None = None, others=0.0, **changes
    ):
        programs = {mode: records.compare_programs()[mode] for mode in (base, "ddp")}
        programs["ddp"] |= changes
        number = f"{len(list(tmp_path.iterdir())) + 1:04x}"
        found = records.suite_records("compare", programs, rounds, number, image_size=image_size)
        records.store(tmp_path / student, records.loaded(found, others) if others else found)
        return found

    return write


def test_the_faster_program_is_first_and_close_ones_share_a_place(hand_in, tmp_path):
    hand_in("ada", throughput=140.0)
    hand_in("bo", throughput=139.9)
    hand_in("cy", throughput=90.0)
    hand_in("di", image_size=32)
    found, said = leaderboard.entries(tmp_path)
    grid, other = leaderboard.grids(found)  # another work has a separate table
    assert [row[:3] for row in grid.rows] == [["1–2", "ada", "ddp"], ["1–2", "bo", "ddp"], ["3", "cy", "ddp"]]
    assert float(grid.rows[0][3]) == pytest.approx(1.40, abs=0.02) and not said
    assert [row[1] for row in other.rows] == ["di"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"facts": {"compression": "fp16"}, "throughput": 200.0}, "gradient compression"),
        ({"facts": {"lr": 0.2}, "throughput": 200.0}, "learning rate"),
        ({"rounds": 4}, "4 complete rounds"),
        ({"base": "dp"}, "MODE=single"),
    ],
)
def test_what_is_not_the_same_update_does_not_count_and_the_reason_is_given(hand_in, tmp_path, changes, why):
    hand_in("ada")
    hand_in("bo", **changes)
    found, said = leaderboard.entries(tmp_path)
    assert [entry.student for entry in found] == ["ada"]
    assert any(line.startswith("bo: ") and why in line for line in said), said


def test_records_that_two_have_handed_in_count_for_nobody(hand_in, tmp_path):
    records.store(tmp_path / "bo", hand_in("ada"))
    hand_in("cy")
    found, said = leaderboard.entries(tmp_path)
    assert [entry.student for entry in found] == ["cy"]
    assert {line.partition(":")[0] for line in said} == {"ada", "bo"}


def test_a_disturbed_comparison_is_shown_in_grey_and_has_no_place(hand_in, tmp_path):
    hand_in("ada", throughput=90.0)
    hand_in("bo", others=0.41, throughput=900.0)
    (grid,) = leaderboard.grids(leaderboard.entries(tmp_path)[0])
    assert [row[:2] for row in grid.rows] == [["1", "ada"], ["disturbed", "bo"]] and grid.grey == {1}


def test_a_folder_without_a_record_ends_nobody_elses_table(hand_in, tmp_path, capsys):
    """What students hand in, and what archives and systems leave beside it."""
    with pytest.raises(UserError, match=str(tmp_path)):  # no student at all
        leaderboard.entries(tmp_path)
    hand_in("ada")
    hand_in("bo", rounds=3)
    for name in ("empty", ".git/objects", "__MACOSX/ada", "odd\x1b]0;name\x07\n2", "cut/run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cut" / "run" / "record.json").write_text("{")
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path), "--by=student"]) == 0
    said = capsys.readouterr()
    assert "ada" in said.out and "bo" not in said.out and "\x1b]" not in said.out + said.err
    assert sorted(line.partition(":")[0] for line in said.err.splitlines()) == ["bo", "cut", "empty", "odd?]0;name? 2"]
