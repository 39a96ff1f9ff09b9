"""A task's tests give the solution and right answers all points, wrong ones not, and the students' blank none.
``judge.py`` says how the answers are written. Ranks are forked here (forked.py); `make course check` has fresh ones."""

import json
import os
import re
import subprocess

import pytest

from bench.course import chapters
from bench.course.exercises import nbgrading, release, text
from tests.exercises import judge
from tests.forked_programs import copied_chapters
from tests.runs import ROOT

PATHS = sorted(text.SETS.glob("[0-9][0-9]_*.md"))
LIMIT_S = 500
FEW = 1  # answers of each function or task that are tried without -m wide, as judge.py says
# what an answer that is wrong by a slip of the pen raises: the tests have not judged it
SLIP = re.compile(r"\b(NameError|SyntaxError|IndentationError|UnboundLocalError|ImportError|ModuleNotFoundError)\b")


@pytest.fixture(scope="module")
def copies():
    """The students' copies of all sets by name, made at once."""
    with copied_chapters():
        return nbgrading.make_release([text.read(path) for path in PATHS], gradebook=False).releases


def test_every_chapter_has_a_set():
    assert {path.stem for path in chapters.chapters()} <= {path.stem for path in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_form_of_a_set(path):
    """Every task has its objective, minutes and rubric, and right and wrong answers."""
    problem_set, found = text.read(path), judge.answers_of(judge.ANSWERS / path.name)
    assert problem_set.notebook.cells[0].source.startswith(f"# Problem set {int(path.name[:2])}")
    assert 3 <= len(problem_set.tasks) <= 5 and 8 <= problem_set.points <= 12
    for task in problem_set.tasks:
        assert task.objective.startswith("You can ") and task.minutes and task.rubric, f"task {task.number}"
        assert [one.points for one in task.rubric] == list(task.tests.values()) == [sum(c.parts) for c in task.rubric]
        right = [answer.right for answer in found if answer.task == task.number]
        assert right.count(True) >= 2 and right.count(False) >= 3, f"task {task.number}"
    minutes = sum(task.minutes for task in problem_set.tasks)
    assert f"{minutes} minutes" in problem_set.notebook.cells[1].source


@pytest.mark.parametrize(("most", "key"), [
    (FEW, 0), pytest.param(999, 0, marks=[pytest.mark.wide, pytest.mark.weekly]),
    pytest.param(999, 432, marks=pytest.mark.wide),
])  # fmt: skip
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_tests_tell_right_from_wrong(path, most, key, copies, tmp_path, monkeypatch, forked_programs):
    """Of each function the right answers (where ranks are started the solution) and the first wrong one; wide: all, and
    with another KEY."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a process without threads is forked
    problem_set, answers = text.read(path, key), judge.answers_of(judge.ANSWERS / path.name)
    release.check(problem_set, copies[path.stem])
    points = {test: worth for task in problem_set.tasks for test, worth in task.tests.items()}
    lines = results(problem_set, copies[path.stem], most, tmp_path, forked_programs)
    solution, blank = (
        {test: error for line in lines if line["answer"] == name for test, error in line["errors"].items()}
        for name in ("solution", "blank")
    )
    assert not any(solution.values()), solution
    assert solution.keys() == blank.keys() == points.keys()
    assert all(error and "NotImplementedError" in error for error in blank.values()), blank
    judged = {line["answer"]: line["errors"] for line in lines}
    wrong = []
    for number, answer in enumerate(answers):
        errors = judged.get(number, {"": "not judged: it defines no function of the task, or the program ended"})
        if errors is None:  # one of many
            continue
        said = "\n".join(error for error in errors.values() if error)
        full = sum(points.get(test, 1) for test in errors)
        got = sum(points.get(test, 1) for test, error in errors.items() if not error)
        right = answer.right or (answer.by_key and not key)
        if (got == full) != right or answer.points not in (None, got) or (not right and SLIP.search(said)):
            kind = "right" if answer.right else "wrong"
            wrong.append(f"task {answer.task}, {kind} ({answer.why}): {got:g} of {full:g} points\n{said}")
    assert not wrong, "\n".join(wrong)


def results(problem_set, blank: str, most: int, tmp_path, forked_programs) -> list[dict]:
    if forked_programs is None:
        pytest.skip("the answers are judged in copies of a process, and here a fork is not safe")
    notebook, empty, lines, log = (tmp_path / name for name in ("notebook", "blank", "lines", "log"))
    notebook.write_text(json.dumps(problem_set.notebook))
    empty.write_text(blank)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    given = [notebook, empty, judge.ANSWERS / f"{problem_set.name}.md", lines, most]
    command = [forked_programs.python, "-m", judge.__name__, *map(str, given)]
    with log.open("w") as file:  # no pipe: a rank that is left over would hold it
        output = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        done = subprocess.run(command, env=environment, timeout=LIMIT_S, **output)
    assert done.returncode == 0, log.read_text()[-3000:]
    return [json.loads(line) for line in lines.read_text().splitlines()]


def test_the_figures_in_the_readme():
    """Counted here, so that they are true."""
    found = [answer for path in PATHS for answer in judge.answers_of(judge.ANSWERS / path.name)]
    tasks = sum(len(text.read(path).tasks) for path in PATHS)
    right = sum(answer.right for answer in found)
    line = f"{tasks} tasks, {right} right answers beside the solutions, {len(found) - right} wrong ones"
    readme = " ".join((text.SETS / "README.md").read_text().split())
    assert line in readme
    hidden = [part["inside"] for path in PATHS for part in text.HIDDEN.finditer(path.read_text())]
    keyed = sum(bool(text.USES_KEY.search(part)) for part in hidden)
    assert f"{keyed} of the {len(hidden)} hidden parts use it" in readme
