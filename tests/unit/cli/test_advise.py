"""`bench predict mode` on made-up records: which answers are given, and when none is."""

import pytest

from bench.__main__ import main
from tests import profiles, records

ANSWERS = ["Which mode", "Whether to distribute", "What limits the step time", "On 8 devices", "How far it scales",
           "Cost of an epoch", "Unknown"]  # fmt: skip


def advice(folder, capsys, found: list, *words: str) -> str:
    """What the command prints of these records and a profile of one device."""
    records.store(folder, found)
    profiles.record(folder / "profile")
    before = sorted(folder.rglob("*"))
    assert main(["predict", "mode", f"--records={folder}", "--link=10gbit,50us", "--devices=8", *words]) == 0
    assert sorted(folder.rglob("*")) == before
    return capsys.readouterr().out


def test_every_answer_is_given_in_its_order(tmp_path, capsys):
    found = records.suite_records("compare", records.compare_programs(), rounds=4)
    said = advice(tmp_path, capsys, found, "--price=2")
    assert [line for line in said.splitlines() if line in ANSWERS] == ANSWERS
    assert "- use single" in said and said.splitlines()[-1] == f"records: {tmp_path}"


@pytest.mark.parametrize("rounds", [2, 8])
def test_disturbed_runs_and_previews_recommend_nothing(tmp_path, capsys, rounds):
    found = records.suite_records("compare", records.compare_programs(ddp=300.0), rounds=rounds)
    said = advice(tmp_path, capsys, found if rounds == 2 else records.loaded(found, 0.41))
    assert "No recommendation" in said and "- use " not in said and "distribute: ddp" not in said
