"""`bench grade`: points and feedback of everything that was handed in.

build/grades/
    grades.csv              student, set, points, max, reason, look: a row per notebook
    tasks.csv               student, set, task, points, max
    STUDENT/NN_name.html    feedback: the notebook as it ran, with the points and the messages of the tests

Every notebook is graded by nbgrader in a folder and a session of its own. One that hangs is ended; what it has started
is ended in any case.
"""

import html
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench import files, spreadsheet
from bench.course.exercises import code_in_use, nbgrading, submissions, text
from bench.course.exercises.nbgrading import Course, NotGraded
from bench.course.exercises.submissions import Submission, Unreadable
from bench.errors import ExitCode, printable
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
        return sum(self.tasks.values())


def run(submitted: str, names: str | None, folder: str | None, out: str | None, cell_limit_s: float,
        key: int = 0) -> int:  # fmt: skip
    """The command. Returns the exit code: 2 when something that lay there could not be graded. key: of hidden tests.

    All that is read is read before the first answer runs: the answers run as this user, and could change it. What was
    written is written again where they have changed it.
    """
    paths = text.sets(names, folder)
    nbgrading.required()
    found, said = submissions.find(Path(submitted), [path.stem for path in paths])
    wanted = {one.name for one in found}
    problem_sets = {path.stem: text.read(path, key) for path in paths if path.stem in wanted}
    handed_in = [(one, read(one)) for one in found]
    course = nbgrading.make_release(list(problem_sets.values()))
    to = Path(out) if out else GRADES
    to.mkdir(parents=True, exist_ok=True)
    place, code, graded = to.resolve(), code_in_use.state(), []
    print(f"{'student':20} {'set':28} {'points':>10}  {'time':>7}  tasks", flush=True)
    for one, cells in handed_in:
        started = time.monotonic()
        try:
            grade = grade_one(course, problem_sets[one.name], cells, cell_limit_s)
        except Exception as error:  # whatever a notebook does is its own zero, and nobody else's
            known = isinstance(error, NotGraded | Unreadable)
            grade = zero(problem_sets[one.name], one, str(error) if known else f"{type(error).__name__}: {error}")
            said += [f"{str(one.path)!r}: {grade.reason}"] if one.path else []
        said += [f"{one.student}/{one.name} changed {path}: it is written again" for path in write_out(place, graded)]
        graded.append((one, grade))
        write_out(place, graded)  # what is there stays there, should the teacher stop it
        print(line(one, grade, time.monotonic() - started), flush=True)
        if other := code_in_use.changed(code, code_in_use.state()):
            said.append(
                f"{one.student}/{one.name} changed {other[0]}, which would run with every notebook after it: put it "
                "back, take that notebook out, and grade again"
            )
            break
    print(f"hidden tests: KEY={key}{'' if key else ', as they are published'}")
    print(f"grades: {to / 'grades.csv'}")
    print(f"feedback: {to}/STUDENT/SET.html, a page for each student to hand back; by task: {to / 'tasks.csv'}")
    if any(grade.look for _, grade in graded):
        print("look at: read these answers yourself before you hand anything back")
    for sentence in said:
        print(f"bench: {printable(sentence)}", file=sys.stderr)
    return ExitCode.REFUSED if said else ExitCode.DONE


def read(one: Submission) -> list[dict] | Unreadable:
    """The cells of what was handed in, or why there are none."""
    try:
        return Unreadable(one.problem) if one.problem else submissions.cells_of(one.path)
    except Unreadable as error:
        return error


def grade_one(
    course: Course, problem_set: text.ProblemSet, cells: list[dict] | Unreadable, cell_limit_s: float
) -> Grade:
    """Grade the cells of a notebook that was handed in. Raises Unreadable, NotGraded."""
    if isinstance(cells, Unreadable):
        raise cells
    notebook = submissions.merged(course.releases[problem_set.name], cells)
    look = tuple(submissions.noticed(notebook))
    return replace(grade_text(course, problem_set, notebook, cell_limit_s), look=look)


def grade_text(course: Course, problem_set: text.ProblemSet, notebook: str, cell_limit_s: float) -> Grade:
    """Grade a notebook that is given as text. Raises NotGraded."""
    with tempfile.TemporaryDirectory(prefix="notebook-", ignore_cleanup_errors=True) as temporary:
        graded = nbgrading.grade(course, problem_set.name, notebook, Path(temporary), cell_limit_s)
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
    reason = printable(reason)  # a line of nbgrader's log, to which answers can write
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


def tables(graded: list[tuple[Submission, Grade]]) -> dict[str, str]:
    rows = [["student", "set", "points", "max", "reason", "look"]]
    by_task = [["student", "set", "task", "points", "max"]]
    for one, grade in graded:
        points, most = f"{grade.points:g}", f"{grade.problem_set.points:g}"
        rows.append([one.student, one.name, points, most, grade.reason, "; ".join(grade.look)])
        for task in grade.problem_set.tasks:
            by_task.append([one.student, one.name, task.number, f"{grade.tasks[task.number]:g}", f"{task.points:g}"])
    return {"grades.csv": spreadsheet.text(rows), "tasks.csv": spreadsheet.text(by_task)}


def write_out(to: Path, graded: list[tuple[Submission, Grade]]) -> list[str]:
    """Write the pages and the tables that are not there as they should be; returns their paths."""
    wanted = {to / one.student / f"{one.name}.html": grade.feedback for one, grade in graded}
    wanted |= {to / name: content for name, content in tables(graded).items()} if graded else {}
    other = [path for path, content in wanted.items() if not holds(path, content)]
    for path in other:
        put(path, wanted[path])
    return [str(path) for path in other]


def holds(path: Path, content: str) -> bool:
    """Whether a file is a plain one in a plain folder, and has this text."""
    try:
        return not path.parent.is_symlink() and files.read_plain(path, links=False) == content.encode()
    except (OSError, ValueError):
        return False


def put(path: Path, content: str) -> None:
    """Write a file, whatever an answer has left in its place or in its folder's."""
    if path.parent.is_symlink() or path.parent.is_file():
        path.parent.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or not path.is_file():
        path.unlink(missing_ok=True)
    with files.written_whole(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
