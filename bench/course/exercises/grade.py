"""`bench grade`: points and feedback of everything that was handed in.

build/grades/
    grades.csv              student, set, points, max, reason, look: a row per notebook
    tasks.csv               student, set, task, points, max
    STUDENT/NN_name.html    feedback: the notebook as it ran, with the points and the messages of the tests

Every notebook is graded by nbgrader in a folder and a session of its own. One that hangs is ended; what it has started
is ended in any case.
"""

import csv
import html
import re
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench import files
from bench.course.exercises import nbgrading, submissions, text
from bench.course.exercises.nbgrading import NotGraded
from bench.course.exercises.submissions import Submission, Unreadable
from bench.errors import ExitCode
from bench.files import CLONE, PROJECT

GRADES = (PROJECT if CLONE else Path()) / "build" / "grades"
# A line of the contents that nbgrader makes; a cell's id begins as text.py makes it.
CONTENTS = re.compile(
    r"(?P<open><a href=\"#(?P<comment>comment-)?s\d\d-task(?P<task>\d+)-[a-z]+(?:-(?P<test>\d+))?\">)"
    r"(?:Test cell|Comment)</a>"
)
ERROR_PAGE = (
    "<!DOCTYPE html><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>"
    "<p>0 of {points:g} points: {reason}</p>\n"
)


@dataclass(frozen=True)
class Grade:
    """tasks: points by number of the task. reason: why there are none, when the notebook could not be graded.
    look: what a person should look at in the answers."""

    problem_set: text.ProblemSet
    tasks: dict[int, float]
    feedback: str
    reason: str = ""
    look: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """Of all tasks."""
        return sum(self.tasks.values())


def run(submitted: str, names: str | None, folder: str | None, out: str | None, cell_limit_s: float,
        key: int = 0) -> int:  # fmt: skip
    """The command. Returns the exit code: 2 when something that lay there could not be graded. key: of hidden tests."""
    paths = text.sets(names, folder)
    nbgrading.required()
    found, said = submissions.find(Path(submitted), [path.stem for path in paths])
    wanted = {one.name for one in found}
    to = Path(out) if out else GRADES
    to.mkdir(parents=True, exist_ok=True)
    graded = []
    with tempfile.TemporaryDirectory(prefix="grading-") as temporary:
        problem_sets = {path.stem: text.read(path, key) for path in paths if path.stem in wanted}
        prepared = Path(temporary)
        nbgrading.make_release(list(problem_sets.values()), prepared)
        print(f"{'student':20} {'set':28} {'points':>10}  {'time':>7}  tasks", flush=True)
        for one in found:
            started = time.monotonic()
            try:
                grade = grade_one(prepared, problem_sets[one.name], one, cell_limit_s)
            except Exception as error:  # whatever a notebook does is its own zero, and nobody else's
                known = isinstance(error, NotGraded | Unreadable)
                grade = zero(problem_sets[one.name], one, str(error) if known else f"{type(error).__name__}: {error}")
                said += [f"{str(one.path)!r}: {grade.reason}"] if one.path else []
            graded.append((one, grade))
            write_feedback(to, one, grade)
            write_tables(to, graded)  # what is there stays there, should the teacher stop it
            print(line(one, grade, time.monotonic() - started), flush=True)
    print(f"hidden tests: KEY={key}{'' if key else ', as they are published'}")
    print(f"grades: {to / 'grades.csv'}")
    print(f"feedback: {to}/STUDENT/SET.html, a page for each student to hand back; by task: {to / 'tasks.csv'}")
    if any(grade.look for _, grade in graded):
        print("look at: read these answers yourself before you hand anything back")
    for sentence in said:
        print(f"bench: {sentence}", file=sys.stderr)
    return ExitCode.REFUSED if said else ExitCode.DONE


def grade_one(prepared: Path, problem_set: text.ProblemSet, one: Submission, cell_limit_s: float) -> Grade:
    """Grade a notebook that was handed in. Raises Unreadable, NotGraded."""
    if one.problem:
        raise Unreadable(one.problem)
    release = nbgrading.released(prepared, problem_set.name)
    notebook = submissions.merged(release, submissions.cells_of(one.path))
    look = tuple(submissions.noticed(notebook))
    return replace(grade_text(prepared, problem_set, notebook, cell_limit_s), look=look)


def grade_text(prepared: Path, problem_set: text.ProblemSet, notebook: str, cell_limit_s: float) -> Grade:
    """Grade a notebook that is given as text. Raises NotGraded."""
    with tempfile.TemporaryDirectory(prefix="notebook-", ignore_cleanup_errors=True) as temporary:
        graded = nbgrading.grade(prepared, problem_set.name, notebook, Path(temporary), cell_limit_s)
    tasks = {task.number: sum(graded.scores.get(test) or 0.0 for test in task.tests) for task in problem_set.tasks}
    return Grade(problem_set, tasks, named(graded.feedback, problem_set))


def named(feedback: str, problem_set: text.ProblemSet) -> str:
    """A page of nbgrader's with the names of the tasks in its list of contents, where it writes "Test cell"."""
    titles = {task.number: f"Task {task.number}{': ' * bool(task.title)}{task.title}" for task in problem_set.tasks}

    def name(link: re.Match) -> str:
        title = html.escape(titles.get(int(link["task"]), f"Task {link['task']}"))
        more = ", the grader's comment" if link["comment"] else f", test {link['test']}" if link["test"] else ""
        return f"{link['open']}{title}{more}</a>"

    return CONTENTS.sub(name, feedback)


def zero(problem_set: text.ProblemSet, one: Submission, reason: str) -> Grade:
    """No points, and a page that says why."""
    title = html.escape(f"{one.student}: {one.name}")
    page = ERROR_PAGE.format(title=title, points=problem_set.points, reason=html.escape(reason))
    return Grade(problem_set, {task.number: 0.0 for task in problem_set.tasks}, page, reason)


def line(one: Submission, grade: Grade, seconds: float) -> str:
    """A row of the table on the terminal."""
    tasks = " ".join(f"{number}:{points:g}/{task.points:g}" for task, (number, points)
                     in zip(grade.problem_set.tasks, grade.tasks.items(), strict=True))  # fmt: skip
    look = f"; look at: {', '.join(grade.look)}" if grade.look else ""
    total = f"{grade.points:g} of {grade.problem_set.points:g}"
    return f"{one.student:20} {one.name:28} {total:>10}  {seconds:5.0f} s  {grade.reason or tasks}{look}"


def write_feedback(to: Path, one: Submission, grade: Grade) -> None:
    """The page of one notebook."""
    (to / one.student).mkdir(parents=True, exist_ok=True)
    with files.written_whole(to / one.student / f"{one.name}.html") as temporary:
        temporary.write_text(grade.feedback)


def write_tables(to: Path, graded: list[tuple[Submission, Grade]]) -> None:
    """grades.csv and tasks.csv."""
    rows = [["student", "set", "points", "max", "reason", "look"]]
    by_task = [["student", "set", "task", "points", "max"]]
    for one, grade in graded:
        points, most = f"{grade.points:g}", f"{grade.problem_set.points:g}"
        rows.append([one.student, one.name, points, most, grade.reason, "; ".join(grade.look)])
        for task in grade.problem_set.tasks:
            by_task.append([one.student, one.name, task.number, f"{grade.tasks[task.number]:g}", f"{task.points:g}"])
    for name, table in (("grades.csv", rows), ("tasks.csv", by_task)):
        with files.written_whole(to / name) as temporary, temporary.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
