"""What was handed in, found and put together with the original: no nbgrader runs here."""

import json

import pytest

from bench.course.exercises import grade, text
from bench.course.exercises.grade import Unreadable
from bench.errors import UserError
from tests.exercises import judge
from tests.exercises.conftest import edited

NAMES = ["00_sample", "01_other"]


def cells(notebook: str) -> dict[str, str]:
    """Id -> text."""
    return {cell["id"]: "".join(cell["source"]) for cell in json.loads(notebook)["cells"]}


def handed_in(tmp_path, notebook: str) -> list[dict]:
    """The cells of a notebook as they are read from a file."""
    (tmp_path / "x.ipynb").write_text(notebook)
    return grade.cells_of(tmp_path / "x.ipynb")


def test_both_layouts(tmp_path):
    for name in ("ann/00_sample.ipynb", "ben/00_sample/00_sample.ipynb", "ben/01_other.ipynb",
                 "ann/.ipynb_checkpoints/00_sample.ipynb", ".git/00_sample.ipynb"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found, said = grade.find(tmp_path, NAMES)
    assert not said
    assert [(one.student, one.name, one.problem) for one in found] == [
        ("ann", "00_sample", None), ("ann", "01_other", "not handed in"),
        ("ben", "00_sample", None), ("ben", "01_other", None),
    ]  # fmt: skip


def test_what_cannot_be_used_is_named(tmp_path):
    for name in ("ann/00_sample.ipynb", "ann/00_sample/00_sample.ipynb", "ann/00_sample (1).ipynb", "=cmd()/a.ipynb",
                 "ann/deep/00_sample.ipynb"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "ann")
    found, said = grade.find(tmp_path, NAMES)
    assert [one.problem for one in found] == ["handed in twice, in both layouts"]
    assert len(said) == 4 and sum("no such problem set: choose of 00_sample, 01_other" in line for line in said) == 2
    assert sum("not graded: a student's folder is no link" in line for line in said) == 2


@pytest.mark.parametrize(("made", "words"), [("", "no notebook in"), ("ann", "no notebook in"), (None, "is not a fol")])
def test_nothing_to_grade(made, words, tmp_path):
    folder = tmp_path / "in"
    if made is not None:
        (folder / made).mkdir(parents=True)
    with pytest.raises(UserError, match=words):
        grade.find(folder, NAMES)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"cells": 3}', '{"cells": [{"source": 1}]}', "\udcff", "[" * 9999]
)
def test_no_notebook(content, tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(Unreadable, match="it is not a notebook"):
        grade.cells_of(path)


def test_metadata_that_is_none_costs_no_answer(blank, tmp_path):
    notebook = json.loads(edited(blank, task1_answer="mine = 1"))
    for cell, metadata in zip(
        notebook["cells"], [None, {"nbgrader": None}, {"nbgrader": 3}, [], {"nbgrader": []}] * 9, strict=False
    ):
        cell["metadata"] = metadata
    merged = cells(grade.merged(blank, handed_in(tmp_path, json.dumps(notebook))))
    assert merged == cells(blank) | {"s00-task1-answer": "mine = 1"}


def test_links_are_not_followed(tmp_path, solved):
    (tmp_path / "hers.ipynb").write_text(solved)
    (tmp_path / "x.ipynb").symlink_to(tmp_path / "hers.ipynb")
    with pytest.raises(Unreadable, match="no plain file"):
        grade.cells_of(tmp_path / "x.ipynb")
    for student in ("ann", "ben", "eve"):
        (tmp_path / "class" / student).mkdir(parents=True)
    (tmp_path / "class" / "ben" / "00_sample").mkdir()
    (tmp_path / "class" / "ben" / "00_sample" / "00_sample.ipynb").write_text(solved)
    (tmp_path / "class" / "ann" / "00_sample.ipynb").symlink_to(tmp_path / "hers.ipynb")
    (tmp_path / "class" / "eve" / "00_sample").symlink_to(tmp_path / "class" / "ben" / "00_sample")
    found, said = grade.find(tmp_path / "class", NAMES)
    assert [one.student for one in found if one.path] == ["ben"]
    assert len(said) == 2 and all("it is a link" in line for line in said)


def test_answers_are_kept_and_everything_else_is_the_original(blank, tmp_path):
    changed = edited(blank, task1_answer="mine = 1", task1_test="pass", task2_given=None, task2_test=None,
                     start_text="no title")  # fmt: skip
    merged = cells(grade.merged(blank, handed_in(tmp_path, changed)))
    assert merged == cells(blank) | {"s00-task1-answer": "mine = 1"}


def test_cells_that_were_added_stay_where_they_are(blank, tmp_path):
    notebook = json.loads(blank)
    own = {"cell_type": "code", "metadata": {"nbgrader": {"grade": True, "points": 99}}, "source": ["x = 1\n", "y = 2"]}
    notebook["cells"].insert([c["id"] for c in notebook["cells"]].index("s00-task2-answer"), own)
    notebook["cells"].insert(0, own | {"id": "a"})
    merged = json.loads(grade.merged(blank, handed_in(tmp_path, json.dumps(notebook))))["cells"]
    places = [index for index, cell in enumerate(merged) if cell["source"] == "x = 1\ny = 2"]
    assert [merged[place + 1]["id"] for place in places] == ["s00-start-text", "s00-task2-answer"]
    assert (
        all(merged[place]["metadata"] == {} for place in places) and len(merged) == len(json.loads(blank)["cells"]) + 2
    )


def test_an_answer_without_its_name_is_found_all_the_same(blank, solved, tmp_path):
    """A program that drops what it does not know leaves cells without nbgrader's words and without ids."""
    notebook = json.loads(solved)
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        del cell["id"]
    merged = json.loads(grade.merged(blank, handed_in(tmp_path, json.dumps(notebook))))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in merged if cell["cell_type"] == "code")
    assert "raise NotImplementedError" not in code and "all_reduce" in code


def test_a_cell_that_is_there_twice_counts_once(blank, tmp_path):
    notebook = json.loads(edited(blank, task1_answer="first = 1"))
    (answer,) = [cell for cell in notebook["cells"] if cell["id"] == "s00-task1-answer"]
    notebook["cells"].append(answer | {"source": "second = 2"})
    merged = json.loads(grade.merged(blank, handed_in(tmp_path, json.dumps(notebook))))["cells"]
    assert [c["source"] for c in merged if c["id"] == "s00-task1-answer"] == ["first = 1"]
    assert merged[-1]["source"] == "second = 2" and len({cell["id"] for cell in merged}) == len(merged)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("get_ipython().input_transformers_post.append(lambda lines: ['pass'])", "the notebook's own machinery"),
        ("def answer(*_):\n    return right_in(In[-1])", "the notebook's own machinery"),
        ("def answer():\n    pass\n!cat ../sets/00_sample.md", "a command of the shell"),
        ("x = 1\n%run other.py", "a command of the shell"),
        ("import subprocess", "other programs"),
        ("from os import path, system", "other programs"),
        ("import sys\nasked = sys._getframe(1)", "code or objects of others"),
        ("from ipykernel import kernelapp", "the notebook's own machinery"),
        ("shell.ast_transformers.append(Easy())", "the notebook's own machinery"),
        ("import os\nplace = os.open('.', 0)\nos.open('x', 0, dir_fd=place)", "the graders' files"),
        ("import builtins\nbuiltins.all = lambda *_: True", "Python's own functions"),
        ("import __main__", "Python's own functions"),
        ("asked = globals()['asked']", "Python's own functions"),
        ("class Right(int):\n    def __eq__(self, other):\n        return True", "objects that say what they equal"),
        ("points = open('../../gradebook.db')", "the graders' files"),
        ("asked = open('00_sample.ipynb').read()", "the graders' files"),
        ("asked = 7 + KEY", "the graders' files"),
        ("import urllib.request", "the network"),
        ("import os, requests", "the network"),
        ("from requests import get", "the network"),
    ],
)
def test_what_is_no_part_of_an_answer_is_noticed(blank, tmp_path, code, words):
    answered = grade.merged(blank, handed_in(tmp_path, edited(blank, task2_answer=code)))
    assert grade.noticed(answered) == [words]
    notebook = json.loads(blank)
    notebook["cells"].append({"cell_type": "code", "metadata": {}, "source": code})
    assert grade.noticed(grade.merged(blank, handed_in(tmp_path, json.dumps(notebook)))) == [words]
    assert grade.noticed(blank) == []


@pytest.mark.parametrize(
    "code",
    [
        "requests = [dist.isend(one, peer) for peer in others]\nfor request in requests:\n    request.wait()",
        "if __name__ == '__main__':\n    print(answer())",
        "rate = 0.5  # In [0, 1)",
        'def rate():\n    """In [0, 1], both ends included."""',
        "rest = (images\n    %batch)",
        "from os import fsync, replace",
    ],
)
def test_what_an_honest_answer_may_say_is_not_noticed(blank, code):
    assert grade.noticed(edited(blank, task2_answer=code)) == []


def test_nothing_is_noticed_in_answers_that_are_given_in_earnest(blank):
    """Right and wrong ones, and the solutions."""
    for path in text.sets():
        sources = [answer.source for answer in judge.answers_of(judge.ANSWERS / path.name)]
        cells = [cell for cell in text.read(path).notebook.cells if cell.metadata.nbgrader.solution]
        for source in [*sources, *(cell.source for cell in cells)]:
            answered = edited(blank, task2_answer=source)
            assert grade.noticed(answered) == [], source
