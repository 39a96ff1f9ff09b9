"""What nbgrader does, in a process of its own, in a course folder that is made for it and thrown away.

``make_release`` makes the students' copies of some sets and the gradebook, which holds the hidden tests, no solution
and no rubric. Both are kept in memory: a file that all notebooks are graded by could be changed by the first of them.
``grade`` writes that gradebook and one notebook to a folder, runs the cells in a kernel of this Python, and gives the
points of every test cell and the feedback. nbgrader names folders by student and assignment; no name that a student has
chosen is among them.
"""

import html
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.course import chapters
from bench.course.exercises import closed, contained, text
from bench.course.shell import own_paths
from bench.errors import BenchError, UserError
from bench.files import PROJECT

CELL_LIMIT_S = 60.0
# A student's page in a teacher's browser runs no script, fetches and sends nothing: what it needs is in it. What this
# has no say over is not in the page: nbgrader_feedback.py.
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; form-action 'none'; base-uri 'none'\">"
)
NO_PAGE = "<!DOCTYPE html><html><head></head><p>nbgrader could make no page of this notebook: {}</p>\n"
NOTEBOOK_CELLS = 5  # the whole notebook may take as long as so many cells
LOG_BYTES = 100_000  # of its end that are read
START_S = 60.0  # and this more, for nbgrader and a kernel to start on a busy machine
STUDENT = "student"
FEEDBACK = "bench.course.exercises.nbgrader_feedback"


class NotGraded(BenchError):
    """A notebook that could not be graded; one line says why."""


@dataclass(frozen=True)
class Graded:
    """scores: id of a test cell -> points. feedback: the page, as text."""

    scores: dict[str, float]
    feedback: str


@dataclass(frozen=True)
class Course:
    """What all notebooks of a class are graded by. releases: the students' copies by the name of the set. gradebook:
    nbgrader's, as bytes. closed: paths that answers may not open."""

    releases: dict[str, str]
    gradebook: bytes
    closed: tuple[str, ...] = ()


def required() -> None:
    """Raise UserError when nbgrader is missing."""
    from importlib.util import find_spec

    if find_spec("nbgrader") is None:
        raise UserError("nbgrader is missing: run this by make, or `pip install -e '.[notebooks,grading]'`")


def make_release(problem_sets: list) -> Course:
    """The students' copies and the gradebook of some sets. Raises NotGraded with nbgrader's words when it refuses a
    set."""
    required()
    names = [problem_set.name for problem_set in problem_sets]
    with tempfile.TemporaryDirectory(prefix="course-") as temporary:
        course = Path(temporary)
        for problem_set in problem_sets:
            path = course / "source" / problem_set.name / f"{problem_set.name}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_text(chapters.written(text.without_rubrics(problem_set.notebook)))
        call(course, START_S + 10 * len(names), "generate", *names)
        releases = {name: (course / "release" / name / f"{name}.ipynb").read_text() for name in names}
        gradebook = (course / "gradebook.db").read_bytes()
    sources = {text.SETS, PROJECT / "tests" / "exercises", *(problem_set.path.parent for problem_set in problem_sets)}
    return Course(releases, gradebook, tuple(sorted(str(path.resolve()) for path in sources)))


def grade(course: Course, name: str, notebook: str, folder: Path, cell_limit_s: float = CELL_LIMIT_S) -> Graded:
    """Run and grade one notebook, whose text is given, in an empty ``folder``.

    Raises NotGraded when it was not finished within its limit, or broke.
    """
    (folder / "gradebook.db").write_bytes(course.gradebook)
    path = folder / "submitted" / STUDENT / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(notebook)
    closed_paths = [*course.closed, *(str(folder.resolve() / f"gradebook.db{end}") for end in ("", *closed.JOURNALS))]
    # The cells run where nbgrader has written them all, with the hidden tests.
    closed_paths.append(str(folder.resolve() / "autograded" / STUDENT / name / f"{name}.ipynb"))
    call(folder, START_S + NOTEBOOK_CELLS * cell_limit_s, "grade", name, str(cell_limit_s), closed_paths=closed_paths)
    feedback = folder / "feedback" / STUDENT / name / f"{name}.html"
    return Graded(json.loads((folder / "scores.json").read_text()), guarded(feedback.read_text()))


def guarded(page: str) -> str:
    """A page under POLICY, which a browser obeys from where it stands: at the very start of the head.

    >>> guarded("<!DOCTYPE html><html><head><title>x").partition("<title>")[0].endswith(f"<head>{POLICY}")
    True
    """
    before, head, rest = page.partition("<head>")
    return f"{before}{head}{POLICY}{rest}" if head else f"{POLICY}{page}"


def call(folder: Path, limit_s: float, *arguments: str, closed_paths: list[str] | None = None) -> None:
    """Run this file as a program in a course folder, with a limit. closed_paths: what its kernel may not open. Raises
    NotGraded when it does not end well."""
    folder = folder.resolve()
    (folder / "tmp").mkdir(exist_ok=True)
    spec = folder / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    without = folder / "without"  # for alembic, too
    without.mkdir(exist_ok=True)
    (without / f"{chapters.ADDRESSES}.py").write_text("raise ImportError\n")
    (folder / "guard").mkdir(exist_ok=True)
    shutil.copy(closed.__file__, folder / "guard" / "sitecustomize.py")
    paths = own_paths()  # nbgrader calls alembic by its name
    path = os.pathsep.join([str(without), paths["PYTHONPATH"]])
    of_kernel = {"PYTHONPATH": f"{folder / 'guard'}{os.pathsep}{path}", "PYTHONSAFEPATH": ""}
    of_kernel[closed.VARIABLE] = os.pathsep.join(closed_paths or [])
    kernel = {"argv": chapters.kernel_command(), "display_name": "Python 3", "language": "python", "env": of_kernel}
    spec.write_text(json.dumps(kernel))
    own = {f"JUPYTER_{kind}_DIR": str(folder / "jupyter" / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment = {
        **os.environ,
        **own,  # nothing of the user's own settings
        "JUPYTER_PATH": str(folder / "jupyter"),
        "IPYTHONDIR": str(folder / "jupyter" / "ipython"),
        **paths,
        "PYTHONPATH": path,
        "PYTHONSAFEPATH": "1",  # no module of the working folder, where answers may have put one
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TMPDIR": str(folder / "tmp"),
    }
    program = [sys.executable, "-m", "bench.course.exercises.nbgrading", str(folder), *arguments]
    code = contained.run(program, limit_s, environment, folder / "log.txt")
    if code is None:
        raise NotGraded(f"not finished within {limit_s:g} s, and stopped")
    if code:
        with (folder / "log.txt").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        raise NotGraded(f"nbgrader ended with code {code}: {lines[-1] if lines else 'it printed nothing'}")


def main() -> None:
    """``python -m bench.course.exercises.nbgrading FOLDER generate NAME …``, or ``… grade NAME CELL_LIMIT_S``."""
    folder, what, *arguments = sys.argv[1:]
    {"generate": generate, "grade": autograde}[what](Path(folder), *arguments)


def api(folder: Path, **settings):
    """nbgrader, working in a folder. settings: class -> its options."""
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    config = Config(settings)
    config.CourseDirectory.root = str(folder)
    config.ClearSolutions.code_stub = {"python": "# Your answer here.\nraise NotImplementedError()"}
    config.HTMLExporter.sanitize_html = True
    config.HTMLExporter.filters = {"markdown2html": f"{FEEDBACK}.markdown", "clean_html": f"{FEEDBACK}.clean"}
    return NbGraderAPI(config=config)


def generate(folder: Path, *names: str) -> None:
    nbgrader = api(folder)
    for name in names:
        succeed(nbgrader.generate_assignment(name))


def autograde(folder: Path, name: str, cell_limit_s: str) -> None:
    """Run, grade, and write the feedback and scores.json."""
    from nbgrader.api import Gradebook
    from nbgrader.converters.autograde import Autograde

    from bench.course.exercises.nbgrader_execution import Execution

    steps = Autograde.autograde_preprocessors.default()[1:]  # after its own execution
    Execution.gradebook = folder / "gradebook.db"
    nbgrader = api(
        folder,
        Autograde={"autograde_preprocessors": [Execution, *steps]},
        Execution={"timeout": int(float(cell_limit_s))},
    )
    succeed(nbgrader.autograde(name, STUDENT))
    if Execution.changed:
        sys.exit("the answers have changed the gradebook")
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        grades = gradebook.find_submission_notebook(name, name, STUDENT).grades
        scores = {grade.name: grade.score for grade in grades}
    page = folder / "feedback" / STUDENT / name / f"{name}.html"
    try:
        succeed(nbgrader.generate_feedback(name, STUDENT))
    except SystemExit as why:  # what an answer has shown is no reason to take its points
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(NO_PAGE.format(html.escape(str(why))), encoding="utf-8")
    (folder / "scores.json").write_text(json.dumps(scores))


def succeed(result: dict) -> None:
    """Leave the program when nbgrader has not done what it was asked; its last line says why."""
    print(result.get("log", ""))
    if not result["success"]:
        print(result["error"])
        reasons = [line for line in result.get("log", "").splitlines() if line and not line.startswith("[INFO]")]
        sys.exit(next((line for line in reversed(reasons) if "Error" in line), result["error"].splitlines()[-1]))


if __name__ == "__main__":
    main()
