"""Every problem set's round trip: the students' copy shows nothing, its blank scores zero, its solution full.

The solution and the blank of a set are run in one process without Jupyter, which has torch already
(tests/forked_programs.py) and forks their ranks (forked.py); `make course check` does the same by nbgrader, on fresh
processes. The blank's ranks are one: an answer that is not
there fails on every rank alike.
"""

import json

import pytest

from bench.course import chapters
from bench.course.exercises import contained, grade, nbgrading, plain, release, text
from bench.process import tree
from tests.forked_programs import start

PATHS = sorted(text.SETS.glob("[0-9][0-9]_*.md"))
CELL_LIMIT_S = 200  # a cell takes seconds; this machine may be busy
FORKED = "from bench import course\nfrom tests.exercises import forked\ncourse.run_on_ranks = forked."


@pytest.fixture(scope="module")
def copies():
    """The students' copies of all sets by name, made at once."""
    return nbgrading.make_release([text.read(path) for path in PATHS]).releases


def test_every_chapter_has_a_set():
    assert {path.stem for path in chapters.chapters()} <= {path.stem for path in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_form_of_a_set(path):
    problem_set = text.read(path)
    assert problem_set.notebook.cells[0].source.startswith(f"# Problem set {int(path.name[:2])}")
    assert 3 <= len(problem_set.tasks) <= 5 and 8 <= problem_set.points <= 12


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_task_has_objective_minutes_and_rubric(path):
    problem_set = text.read(path)
    for task in problem_set.tasks:
        assert task.objective.startswith("You can ") and task.minutes and task.rubric, f"task {task.number}"
        assert [one.points for one in task.rubric] == list(task.tests.values()) == [sum(c.parts) for c in task.rubric]
    shown = problem_set.notebook.cells[1].source
    assert f"take {sum(task.minutes for task in problem_set.tasks)} minutes together" in shown


def forking(notebook: str, road: str) -> str:
    """A notebook whose functions run by a function of forked.py."""
    notebook = json.loads(notebook)
    notebook["cells"].insert(0, {"cell_type": "code", "id": "forked", "metadata": {}, "source": FORKED + road})
    return json.dumps(notebook)


def as_a_copy(argv: list[str], limit_s: float, environment: dict, log) -> int:
    """As ``contained.run``, of a module of this project."""
    call = start(argv[2], argv[3:], environment, log)
    try:
        return call.wait(limit_s)
    finally:
        tree.terminate(tree.with_descendants(call.pid) if call.poll() is None else [], grace_s=0.1)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_round_trip_of_a_set(path, copies, tmp_path, monkeypatch, forked_programs):
    if forked_programs:
        monkeypatch.setattr(contained, "run", as_a_copy)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the nets are tiny, and a process without threads is forked
    problem_set = text.read(path)
    blank = copies[path.stem]
    release.check(problem_set, blank)
    solved = chapters.written(problem_set.notebook)
    (tmp_path / "copy.ipynb").write_text(blank)
    with_hidden_tests = grade.merged(solved, grade.cells_of(tmp_path / "copy.ipynb"))
    (tmp_path / "blank.ipynb").write_text(forking(with_hidden_tests, "alone"))
    (tmp_path / "solved.ipynb").write_text(forking(solved, "run_on_ranks"))
    tests = [test for task in problem_set.tasks for test in task.tests]
    of_solved, of_blank = plain.run([tmp_path / "solved.ipynb", tmp_path / "blank.ipynb"], CELL_LIMIT_S)
    wrong = {test: result["error"] for test, result in of_solved.items() if result["error"]}
    assert not wrong and set(tests) <= set(of_solved), "the solution does not score full"
    errors = {test: of_blank[test]["error"] for test in tests}
    assert all(errors.values()), "a blank scores"
    assert all("NotImplementedError" in error for error in errors.values()), f"not for want of an answer: {errors}"
