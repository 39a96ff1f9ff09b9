"""`bench predict mode` on made-up records: what is said, and one line for what cannot be."""

import pytest

from bench.__main__ import main
from tests import profiles, records


@pytest.fixture
def folder(tmp_path):
    """A comparison and a profile of one device."""
    records.store(tmp_path, records.suite_records("compare", records.compare_programs(), rounds=4))
    profiles.record(tmp_path / "profile")
    return tmp_path


def test_records_are_read_and_nothing_is_written(folder, capsys):
    before = sorted(folder.rglob("*"))
    assert main(["predict", "mode", f"--records={folder}", "--link=10gbit,50us", "--devices=8", "--price=2"]) == 0
    said = capsys.readouterr().out
    heads = ["Which mode", "Distribute at all", "What holds the step back", "On 8 devices", "How far it scales",
             "Cost of an epoch", "Not known"]  # fmt: skip
    lines = said.splitlines()
    assert [line for line in lines if line in heads] == heads
    assert "- use single" in said and "do not distribute: ddp, the fastest distributed mode, is slower" in said
    assert lines[-1] == f"records: {folder}" and sorted(folder.rglob("*")) == before


def test_what_was_not_fair_is_said_before_the_advice(tmp_path, capsys):
    programs = records.compare_programs()
    programs["dp"]["item_sync"] = True
    records.store(tmp_path, records.suite_records("compare", programs, rounds=3))
    assert main(["predict", "mode", f"--records={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert said.index("NOT A FAIR COMPARISON: extra work per step") < said.index("Which mode")


@pytest.mark.parametrize(("words", "said"), [
    (["--price=free"], "PRICE=free"),
    (["--price=-1"], "PRICE=-1"),
    (["--link=1gbit"], "LINK=1gbit is no link"),
    (["--link=fast,1ms"], "LINK=fast,1ms is no link"),
    (["--link=1gbit,1ms", "--devices=1"], "DEVICES=1: a whole number, at least 2"),
    (["--devices=8"], "DEVICES=8 needs a link"),
    (["--examples=0"], "EXAMPLES=0: a whole number"),
    (["--rounds=0"], "ROUNDS=0: a whole number"),
    (["--records=/nowhere"], "/nowhere is not a folder"),
    (["--records=.", "--model=resnet18"], "MODEL is of runs, and RECORDS=. has made its own"),
    (["--records=.", "--rounds=3"], "ROUNDS is of runs"),
    (["--gpus=1", "--rounds=2"], "GPUS=1 has none"),
    (["--gpus=2", "--mode=fsdp", "--device=cpu"], "MODE belongs to single runs"),
    (["--gpus=2", "--epochs=3"], "EPOCHS belongs to single runs"),
])  # fmt: skip
def test_bad_input_is_one_line(words, said, capsys):
    assert main(["predict", "mode", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("rounds", [2, 8])
def test_disturbed_runs_and_previews_recommend_nothing(tmp_path, capsys, rounds):
    found = records.suite_records("compare", records.compare_programs(ddp=300.0), rounds=rounds)
    records.store(tmp_path, found if rounds == 2 else records.loaded(found, 0.41))
    profiles.record(tmp_path / "profile")
    assert main(["predict", "mode", f"--records={tmp_path}", "--link=10gbit,50us", "--devices=8"]) == 0
    said = capsys.readouterr().out
    assert "No recommendation" in said and "no verdict" in said
    assert "- use " not in said and "distribute: ddp" not in said and ", try 1" not in said
