"""`bench grade`: points and feedback for all submissions. `bench course check`: solutions score full, blanks zero.

build/grades/
    grades.csv              student, set, points, max, reason, look: one row per notebook
    tasks.csv               student, set, task, points, max
    STUDENT/NN_name.html    feedback: the executed notebook, with points and test messages

nbgrader grades each notebook in its own folder and session. All processes that a notebook starts are ended.
"""

import html
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import files, spreadsheet
from bench.course.chapters import write_text
from bench.course.exercises import contained, nbgrading, release, text
from bench.course.exercises.nbgrading import Course, NotGraded
from bench.errors import ExitCode, UserError, as_unicode, printable
from bench.files import CLONE, PROJECT

GRADES = (PROJECT if CLONE else Path()) / "build" / "grades"
# A line in nbgrader's list of contents; text.py makes the ids of cells.
CONTENTS = re.compile(
    r"(?P<open><a href=\"#(?P<comment>comment-)?s\d\d-task(?P<task>\d+)-[a-z]+(?:-(?P<test>\d+))?\">)"
    r"(?:Test cell|Comment)</a>"
)
ERROR_PAGE = (
    "<!DOCTYPE html><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>"
    "<p>0 of {points:g} points: {reason}</p>\n"
)

STUDENT_NAME = re.compile(r"\w[\w .@+-]{0,99}")
MOST_BYTES = 20e6  # a notebook with many pictures has a few
# Unusual in an answer: a person should look at it. It costs no points, and a student can hide it.
NOTICED = {
    "the notebook's own machinery": r"\bget_ipython\b|\bIPython\b|\bipykernel\b|\bast_transformers\b|\b_ih\b|"
    r"\b(?:In|Out)\s*\[[^\],\n]*\]",
    "a command of the shell": r"^\s*!|^%%?[a-z]",
    "other programs": r"\bsubprocess\b|\bctypes\b|"
    r"\b(?:os\.|from os import [^\n]*\b)(?:system|popen|fork|kill|exec\w*|spawn\w*|posix_spawn\w*)\b",
    "code or objects of others": r"\b_getframe\b|\bimport (?:inspect|linecache|gc)\b|\bsettrace\b|\bsetprofile\b",
    "Python's own functions": r"\b__builtins__\b|\bbuiltins\b|\bglobals\(\)|\bsys\.modules\b|"
    r"(?<!__name__ == .)\b__main__\b",
    "objects that say what they equal": r"\b__eq__\b|\b__bool__\b",
    # Includes a KEY of the student's own: the hidden tests give it their value.
    "the graders' files": r"gradebook|nbgrader|\.ipynb\b|tutorials|course\.exercises|HIDDEN TESTS|\bKEY\b|\bdir_fd\b",
    "the network": r"\burllib\b|\bimport (?:[\w.]+, *)*requests\b|\bfrom requests[\w.]* import\b|"
    r"\bimport socket\b|\bhttps?://",
}
NOT_FOUND = "# This answer was not found in the notebook that was handed in."


class Unreadable(Exception):
    """A file is not a notebook, with the reason."""


@dataclass(frozen=True)
class Submission:
    """One notebook of one student. name: of the set. problem: why it cannot be read, or None."""

    student: str
    name: str
    path: Path | None
    problem: str | None = None


@dataclass(frozen=True)
class Grade:
    """tasks: task number -> points. reason: why the notebook could not be graded. look: what to check by hand."""

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
    """`bench grade`. Returns exit code 2 when something could not be graded. key: of the hidden tests.

    Reads everything before the first answer runs, because answers run as this user and could change it. Results that
    an answer has changed are written again.
    """
    paths = text.sets(names, folder)
    nbgrading.required()
    found, problems = find(Path(submitted), [path.stem for path in paths])
    wanted = {one.name for one in found}
    problem_sets = {path.stem: text.read(path, key) for path in paths if path.stem in wanted}
    handed_in = []
    for one in found:
        try:
            handed_in.append((one, Unreadable(one.problem) if one.problem else cells_of(one.path)))
        except Unreadable as error:
            handed_in.append((one, error))
    course = nbgrading.make_release(list(problem_sets.values()))
    to = Path(out) if out else GRADES
    to.mkdir(parents=True, exist_ok=True)
    place, code, graded = to.resolve(), contained.code_state(), []
    print(f"{'student':20} {'set':28} {'points':>10}  {'time':>7}  tasks", flush=True)
    for one, cells in handed_in:
        started = time.monotonic()
        try:
            if isinstance(cells, Unreadable):
                raise cells
            notebook = merge_answers(course.releases[one.name], cells)
            grade = grade_text(course, problem_sets[one.name], notebook, cell_limit_s, tuple(find_suspicious(notebook)))
        except Exception as error:  # one notebook's failure must not cost others
            known = isinstance(error, NotGraded | Unreadable)
            grade = zero(problem_sets[one.name], one, str(error) if known else f"{type(error).__name__}: {error}")
            problems += [f"{str(one.path)!r}: {grade.reason}"] if one.path else []
        problems += [f"{one.student}/{one.name} changed {path}: it is written again"
                     for path in write_out(place, graded)]  # fmt: skip
        graded.append((one, grade))
        write_out(place, graded)  # now, in case the teacher stops it
        print(table_line(one, grade, time.monotonic() - started), flush=True)
        if not isinstance(cells, Unreadable) and (other := contained.changed_code(code, contained.code_state())):
            problems.append(
                f"{one.student}/{one.name} changed {other[0]}, which would run with every notebook after it: put it "
                "back, take that notebook out, and grade again"
            )
            break
    print(f"hidden tests: KEY={key}{'' if key else ', as they are published'}")
    print(f"grades: {to / 'grades.csv'}")
    print(f"feedback: {to}/STUDENT/SET.html, a page for each student to hand back; by task: {to / 'tasks.csv'}")
    if any(grade.look for _, grade in graded):
        print("look at: read these answers yourself before you hand anything back")
    for problem in problems:
        print(f"bench: {printable(problem)}", file=sys.stderr)
    return ExitCode.REFUSED if problems else ExitCode.DONE


def grade_text(
    course: Course, problem_set: text.ProblemSet, notebook: str, cell_limit_s: float, look: tuple[str, ...] = ()
) -> Grade:
    with tempfile.TemporaryDirectory(prefix="notebook-", ignore_cleanup_errors=True) as temporary:
        graded = nbgrading.grade(course, problem_set.name, notebook, Path(temporary), cell_limit_s)
    tasks = {task.number: sum(graded.scores.get(test) or 0.0 for test in task.tests) for task in problem_set.tasks}
    titles = {task.number: f"Task {task.number}{': ' * bool(task.title)}{task.title}" for task in problem_set.tasks}

    def name(link: re.Match) -> str:  # nbgrader calls every entry "Test cell"
        title = html.escape(titles.get(int(link["task"]), f"Task {link['task']}"))
        more = ", the grader's comment" if link["comment"] else f", test {link['test']}" if link["test"] else ""
        return f"{link['open']}{title}{more}</a>"

    return Grade(problem_set, tasks, CONTENTS.sub(name, graded.feedback), look=look)


def zero(problem_set: text.ProblemSet, one: Submission, reason: str) -> Grade:
    reason = printable(reason)  # from nbgrader's log, to which answers can write
    title = html.escape(f"{one.student}: {one.name}")
    page = ERROR_PAGE.format(title=title, points=problem_set.points, reason=html.escape(reason))
    return Grade(problem_set, {task.number: 0.0 for task in problem_set.tasks}, page, reason)


def table_line(one: Submission, grade: Grade, seconds: float) -> str:
    tasks = " ".join(f"{task.number}:{grade.tasks[task.number]:g}/{task.points:g}" for task in grade.problem_set.tasks)
    look = f"; look at: {', '.join(grade.look)}" if grade.look else ""
    total = f"{grade.points:g} of {grade.problem_set.points:g}"
    return f"{one.student:20} {one.name:28} {total:>10}  {seconds:5.0f} s  {grade.reason or tasks}{look}"


# --- Submissions ------------------------------------------------------------------------------------------------------
# No name from a student is used as a path, except the student's folder, whose name is checked.


def find(folder: Path, names: Iterable[str]) -> tuple[list[Submission], list[str]]:
    """The submissions folder/STUDENT/NN_name.ipynb or folder/STUDENT/NN_name/NN_name.ipynb, and a message for each file
    that cannot be used.

    names: of the known sets. If any student has handed in a set, those who have not get an empty submission of it.
    Raises UserError when there is nothing to grade.
    """
    names = list(names)
    if not folder.is_dir():
        raise UserError(f"SUBMITTED={folder} is not a folder")
    students, messages = [], []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__")) or not path.is_dir():
            continue
        if path.is_symlink() or not STUDENT_NAME.fullmatch(path.name):
            messages.append(f"{str(path)!r}: not graded: use a folder (no link) with a name of plain letters")
            continue
        students.append(path)
    found, twice = {}, set()
    for student in students:
        for path in sorted([*student.glob("*.ipynb"), *student.glob("*/*.ipynb")]):
            if path.parent.name.startswith("."):  # .ipynb_checkpoints
                continue
            if path.is_symlink() or path.parent.is_symlink():
                messages.append(f"{str(path)!r}: not graded: it is a link")
            elif path.stem not in names or path.parent.name not in (student.name, path.stem):
                messages.append(f"{str(path)!r}: no such problem set: choose from {', '.join(names)}")
            elif (student.name, path.stem) in found:
                twice.add((student.name, path.stem))
            else:
                found[student.name, path.stem] = path
    if not found:
        raise UserError(messages[0] if messages else f"no notebook in {folder}/STUDENT/NN_name.ipynb")
    submissions = []
    for student in students:
        for name in sorted({name for _, name in found}):
            key = student.name, name
            problem = "handed in twice, in both layouts" if key in twice else None if key in found else "not handed in"
            submissions.append(Submission(student.name, name, found.get(key), problem))
    return submissions, messages


def cells_of(path: Path) -> list[dict]:
    """The cells of a submitted notebook: "cell_type", "source", "id". Raises Unreadable.

    id: nbgrader's or, for programs that drop it, the cell's own, which is the same.
    """

    def get(value, key: str):
        return value.get(key) if isinstance(value, dict) else None

    if path.is_symlink() or not path.is_file():
        raise Unreadable("it is not a notebook: no plain file")
    if path.stat().st_size > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES / 1e6:g} MB: clear its outputs")
    try:
        cells = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = cell["source"]
            source = as_unicode(source if isinstance(source, str) else "".join(source))
            name = get(get(cell.get("metadata"), "nbgrader"), "grade_id") or cell.get("id") or ""
            cells.append({"cell_type": str(cell["cell_type"]), "source": source, "id": str(name)})
        return cells
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise Unreadable(f"it is not a notebook: {type(error).__name__}") from None


def merge_answers(release: str, handed_in: list[dict]) -> str:
    """The students' copy of a set (release) with a student's answers and added cells, as text.

    Other cells that the student has changed or deleted are the original ones. An added cell stays behind its
    predecessor; of an original cell that is there twice the first one counts. A missing answer becomes NOT_FOUND
    instead of the blank, because the answer may be in an added cell.
    """
    notebook = json.loads(release)
    known = {cell["id"]: cell for cell in notebook["cells"]}
    answers, added, behind = {}, {None: []}, None
    for cell in handed_in:
        name = cell["id"]
        if name in known and name not in added:
            behind = name
            added[name] = []
            if is_answer(known[name]):
                answers[name] = cell["source"]
        elif cell["cell_type"] in ("code", "markdown"):
            added[behind].append(cell)
    cells = []
    for name, cell in known.items():
        if is_answer(cell):
            cell["source"] = answers.get(name, NOT_FOUND)
        cells += [cell, *(new_cell(one, len(cells) + number) for number, one in enumerate(added.get(name, []), 1))]
    first = [new_cell(one, -number) for number, one in enumerate(added[None], 1)]
    notebook["cells"] = first + cells
    return json.dumps(notebook, indent=1, ensure_ascii=False)


def find_suspicious(notebook: str) -> list[str]:
    cells = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    own = "\n".join("".join(cell["source"]) for cell in cells if is_answer(cell) or not cell["metadata"])
    return [what for what, pattern in NOTICED.items() if re.search(pattern, own, re.MULTILINE)]


def is_answer(cell: dict) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def new_cell(cell: dict, number: int) -> dict:
    made = {"cell_type": cell["cell_type"], "id": f"added-{number}", "metadata": {}, "source": cell["source"]}
    return made | ({"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {})


# --- Results on disk --------------------------------------------------------------------------------------------------


def write_out(to: Path, graded: list[tuple[Submission, Grade]]) -> list[str]:
    if not graded:
        return []
    rows = [["student", "set", "points", "max", "reason", "look"]]
    by_task = [["student", "set", "task", "points", "max"]]
    for one, grade in graded:
        points, most = f"{grade.points:g}", f"{grade.problem_set.points:g}"
        rows.append([one.student, one.name, points, most, grade.reason, "; ".join(grade.look)])
        for task in grade.problem_set.tasks:
            by_task.append([one.student, one.name, task.number, f"{grade.tasks[task.number]:g}", f"{task.points:g}"])
    wanted = {to / one.student / f"{one.name}.html": grade.feedback for one, grade in graded}
    wanted |= {to / "grades.csv": spreadsheet.text(rows), to / "tasks.csv": spreadsheet.text(by_task)}
    changed = [path for path, content in wanted.items() if not has_content(path, content)]
    for path in changed:
        replace_file(path, wanted[path])
    return [str(path) for path in changed]


def has_content(path: Path, content: str) -> bool:
    try:
        return not path.parent.is_symlink() and files.read_regular_file(path, links=False) == content.encode()
    except (OSError, ValueError):
        return False


def replace_file(path: Path, content: str) -> None:
    """Write a file, whatever an answer has put in place of it or of its folder."""
    if path.parent.is_symlink() or path.parent.is_file():
        path.parent.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or not path.is_file():
        path.unlink(missing_ok=True)
    write_text(path, content)


# --- bench course check --------------------------------------------------------------------------------------------


def check_solutions(names: str | None, folder: str | None, cell_limit_s: float, key: int = 0) -> int:
    """`bench course check`. Returns exit code 1 when a set fails. key: of the hidden tests."""
    problem_sets = [text.read(path, key) for path in text.sets(names, folder)]
    nbgrading.required()
    failed = False
    print(f"{'set':30} {'points':>6}  {'solved':>6}  {'blank':>6}")
    course = nbgrading.make_release(problem_sets)
    for problem_set in problem_sets:
        started = time.monotonic()
        blank = course.releases[problem_set.name]
        release.check(problem_set, blank)
        found, wrong = [], []
        for notebook, full in ((fill_in_solutions(problem_set, blank), True), (blank, False)):
            try:
                graded = grade_text(course, problem_set, notebook, cell_limit_s)
                found.append(f"{graded.points:g}")
                wrong += wrong_tasks(graded, full)
            except NotGraded as error:
                found.append("–")
                wrong.append(str(error))
        failed |= bool(wrong)
        seconds = f"{time.monotonic() - started:.0f} s"
        row = f"{problem_set.name:30} {problem_set.points:6g}  {found[0]:>6}  {found[1]:>6}  {seconds:>6}"
        print(row, "; ".join(wrong), flush=True)
    return ExitCode.FAILED if failed else ExitCode.DONE


def fill_in_solutions(problem_set: text.ProblemSet, blank: str) -> str:
    """The students' copy with the solutions in it."""
    cells = [{"cell_type": cell.cell_type, "source": cell.source, "id": cell.id} for cell in problem_set.notebook.cells]
    return merge_answers(blank, cells)


def wrong_tasks(graded: Grade, full: bool) -> list[str]:
    kind = "the solution" if full else "the blank"
    return [f"Task {task.number}: {kind} scores {graded.tasks[task.number]:g} of {task.points:g}"
            for task in graded.problem_set.tasks
            if graded.tasks[task.number] != (task.points if full else 0)]  # fmt: skip
