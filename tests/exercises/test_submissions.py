"""What was handed in, found and put together with the original: no nbgrader runs here."""

import json
import os

import pytest

from bench.course.exercises import grade, text
from bench.course.exercises.grade import Unreadable
from tests.exercises import judge
from tests.exercises.conftest import edited
from tests.runs import refuses

NAMES = ["00_sample", "01_other"]


def cells(notebook: str) -> dict[str, str]:
    return {cell["id"]: "".join(cell["source"]) for cell in json.loads(notebook)["cells"]}


def handed_in(tmp_path, notebook: str) -> list[dict]:
    (tmp_path / "x.ipynb").write_text(notebook)
    return grade.cells_of(tmp_path / "x.ipynb")


def test_both_layouts_are_found_and_what_cannot_be_used_is_named(tmp_path):
    for name in ("ann/00_sample.ipynb", "ben/00_sample/00_sample.ipynb", "ben/01_other.ipynb",
                 "ann/.ipynb_checkpoints/00_sample.ipynb", ".git/00_sample.ipynb",
                 "cat/00_sample.ipynb", "cat/00_sample/00_sample.ipynb",  # twice
                 "ann/00_sample (1).ipynb", "=cmd()/a.ipynb", "ann/deep/00_sample.ipynb"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for link, to in (("link", "ann"), ("eve/00_sample", "ben/00_sample"), ("eve/01_other.ipynb", "ben/01_other.ipynb")):
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to(tmp_path / to)
    found, said = grade.find(tmp_path, NAMES)
    usable = [(one.student, one.name[:2]) for one in found if not one.problem]
    assert usable == [("ann", "00"), ("ben", "00"), ("ben", "01")]
    problems = {(one.student, one.name[:2]) for one in found if one.problem}
    assert problems == {("ann", "01"), ("cat", "00"), ("cat", "01"), ("eve", "00"), ("eve", "01")}
    for name in ("=cmd()", "/link'", "00_sample (1).ipynb", "deep/00_sample.ipynb", "eve/00_sample", "eve/01_other"):
        assert sum(name in line for line in said) == 1, (name, said)
    with refuses(error=Unreadable):
        grade.cells_of(tmp_path / "eve" / "01_other.ipynb")


NO_NOTEBOOKS = ["", "[]", "{}", '{"cells": 3}', '{"cells": [{"source": 1}]}', "\udcff", "[" * 9999, os.mkfifo, os.mkdir]


@pytest.mark.parametrize("content", NO_NOTEBOOKS)
def test_no_notebook(content, tmp_path):
    path = tmp_path / "x.ipynb"
    content(path) if callable(content) else path.write_bytes(content.encode(errors="surrogateescape"))
    with refuses(error=Unreadable):
        grade.cells_of(path)


def test_answers_are_kept_and_everything_else_is_the_original(blank, tmp_path):
    """Whatever the metadata have become."""
    changed = edited(blank, task1_answer="mine = 1", task1_test="pass", task2_given=None, task2_test=None,
                     start_text="no title")  # fmt: skip
    notebook = json.loads(edited(blank, task1_answer="mine = 1"))
    strange = [None, {"nbgrader": None}, {"nbgrader": 3}, [], {"nbgrader": []}] * 9
    for cell, metadata in zip(notebook["cells"], strange, strict=False):
        cell["metadata"] = metadata
    for there in (changed, json.dumps(notebook)):
        merged = cells(grade.merge_answers(blank, handed_in(tmp_path, there)))
        assert merged == cells(blank) | {"s00-task1-answer": "mine = 1"}


def test_cells_that_were_added_stay_where_they_are(blank, tmp_path):
    notebook = json.loads(blank)
    own = {"cell_type": "code", "metadata": {"nbgrader": {"grade": True, "points": 99}}, "source": ["x = 1\n", "y = 2"]}
    notebook["cells"].insert([c["id"] for c in notebook["cells"]].index("s00-task2-answer"), own)
    notebook["cells"].insert(0, own | {"id": "a"})
    merged = json.loads(grade.merge_answers(blank, handed_in(tmp_path, json.dumps(notebook))))["cells"]
    places = [index for index, cell in enumerate(merged) if cell["source"] == "x = 1\ny = 2"]
    assert [merged[place + 1]["id"] for place in places] == ["s00-start-text", "s00-task2-answer"]
    assert all(merged[place]["metadata"] == {} for place in places)
    assert len(merged) == len(json.loads(blank)["cells"]) + 2


def test_an_answer_without_its_name_is_found_and_one_that_is_there_twice_counts_once(blank, solved, tmp_path):
    """A program that drops what it does not know leaves cells without nbgrader's words and without ids."""
    notebook = json.loads(solved)
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        del cell["id"]
    merged = json.loads(grade.merge_answers(blank, handed_in(tmp_path, json.dumps(notebook))))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in merged if cell["cell_type"] == "code")
    assert "raise NotImplementedError" not in code and "all_reduce" in code
    notebook = json.loads(edited(blank, task1_answer="first = 1"))
    (answer,) = [cell for cell in notebook["cells"] if cell["id"] == "s00-task1-answer"]
    notebook["cells"].append(answer | {"source": "second = 2"})
    merged = json.loads(grade.merge_answers(blank, handed_in(tmp_path, json.dumps(notebook))))["cells"]
    assert [c["source"] for c in merged if c["id"] == "s00-task1-answer"] == ["first = 1"]
    assert merged[-1]["source"] == "second = 2" and len({cell["id"] for cell in merged}) == len(merged)


NOTICED = {  # the column `look` of grades.csv -> answers
    "the notebook's own machinery": [
        "get_ipython().input_transformers_post.append(lambda lines: ['pass'])",
        "def answer(*_):\n    return right_in(In[-1])",
        "from ipykernel import kernelapp",
        "shell.ast_transformers.append(Easy())",
    ],
    "a command of the shell": ["def answer():\n    pass\n!cat ../sets/00_sample.md", "x = 1\n%run other.py"],
    "other programs": ["import subprocess", "from os import path, system"],
    "code or objects of others": ["import sys\nasked = sys._getframe(1)"],
    "Python's own functions": [
        "import builtins\nbuiltins.all = lambda *_: True", "import __main__", "asked = globals()['asked']",
    ],
    "objects that say what they equal": ["class Right(int):\n    def __eq__(self, other):\n        return True"],
    "the graders' files": [
        "points = open('../../gradebook.db')",
        "asked = open('00_sample.ipynb').read()",
        "import os\nplace = os.open('.', 0)\nos.open('x', 0, dir_fd=place)",
        "asked = 7 + KEY",
    ],
    "the network": ["import urllib.request", "import os, requests", "from requests import get"],
}  # fmt: skip


@pytest.mark.parametrize("what", NOTICED)
def test_what_is_no_part_of_an_answer_is_noticed(blank, tmp_path, what):
    assert NOTICED.keys() == grade.NOTICED.keys() and grade.find_suspicious(blank) == []
    for code in NOTICED[what]:
        answered = edited(blank, task2_answer=code)
        notebook = json.loads(blank)
        notebook["cells"].append({"cell_type": "code", "metadata": {}, "source": code})
        for changed in (answered, json.dumps(notebook)):
            assert grade.find_suspicious(grade.merge_answers(blank, handed_in(tmp_path, changed))) == [what], code


HONEST = [
    "requests = [dist.isend(one, peer) for peer in others]\nfor request in requests:\n    request.wait()",
    "if __name__ == '__main__':\n    print(answer())",
    "rate = 0.5  # In [0, 1)",
    'def rate():\n    """In [0, 1], both ends included."""',
    "rest = (images\n    %batch)",
    "from os import fsync, replace",
]


def test_nothing_is_noticed_in_answers_that_are_given_in_earnest(blank):
    """Right and wrong ones, and the solutions."""
    sources = [*HONEST]
    for path in text.sets():
        sources += [answer.source for answer in judge.answers_of(judge.ANSWERS / path.name)]
        cells = [cell for cell in text.read(path).notebook.cells if cell.metadata.nbgrader.solution]
        sources += [cell.source for cell in cells]
    for source in sources:  # an object that equals everything is not in earnest
        expected = ["objects that say what they equal"] if "def __eq__" in source else []
        assert grade.find_suspicious(edited(blank, task2_answer=source)) == expected, source
