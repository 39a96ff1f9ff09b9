"""nbgrader in a separate process, in a temporary course folder.

``make_release`` makes the students' copies and the gradebook, which holds hidden tests but no solution or rubric. Both
stay in memory, because the first graded notebook could change files that the others need. ``grade`` writes the
gradebook and one notebook to a folder, runs the cells, and returns each test's points and the feedback. Folders are
never named by students.
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
# In a teacher's browser a student's page runs no script, loads and sends nothing. nbgrader_hooks.py removes the tags
# that this policy does not cover.
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; form-action 'none'; base-uri 'none'\">"
)
NO_PAGE = "<!DOCTYPE html><html><head></head><p>nbgrader could make no page of this notebook: {}</p>\n"
NOTEBOOK_CELLS = 5  # the whole notebook may take as long as this many cells,
START_S = 60.0  # and this much for nbgrader and a kernel to start on a busy machine
LOG_BYTES = 100_000  # read from its end
STUDENT = "student"
HOOKS = "bench.course.exercises.nbgrader_hooks"


class NotGraded(BenchError):
    """A notebook could not be graded, with the reason in one line."""


@dataclass(frozen=True)
class Graded:
    """scores: id of a test cell -> points. feedback: the HTML page."""

    scores: dict[str, float]
    feedback: str


@dataclass(frozen=True)
class Course:
    """releases: name of a set -> the students' copy. gradebook: nbgrader's file. closed: paths that answers may not
    open."""

    releases: dict[str, str]
    gradebook: bytes
    closed: tuple[str, ...] = ()


def required() -> None:
    from importlib.util import find_spec

    if find_spec("nbgrader") is None:
        raise UserError("nbgrader is not installed: run this through make, or `pip install -e '.[notebooks,grading]'`")


def make_release(problem_sets: list, gradebook: bool = True) -> Course:
    """The students' copies of some sets, and the gradebook (or b""). Raises NotGraded when nbgrader refuses a set."""
    required()
    names = [problem_set.name for problem_set in problem_sets]
    with tempfile.TemporaryDirectory(prefix="course-") as temporary:
        course = Path(temporary)
        for problem_set in problem_sets:
            path = course / "source" / problem_set.name / f"{problem_set.name}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_text(chapters.written(text.without_rubrics(problem_set.notebook)))
        call(course, START_S + 10 * len(names), "generate" if gradebook else "copy", *names)
        releases = {name: (course / "release" / name / f"{name}.ipynb").read_text() for name in names}
        points = (course / "gradebook.db").read_bytes() if gradebook else b""
    sources = {text.SETS, PROJECT / "tests" / "exercises", *(problem_set.path.parent for problem_set in problem_sets)}
    return Course(releases, points, tuple(sorted(str(path.resolve()) for path in sources)))


def grade(course: Course, name: str, notebook: str, folder: Path, cell_limit_s: float = CELL_LIMIT_S) -> Graded:
    """Run and grade the text of a notebook in an empty ``folder``. Raises NotGraded."""
    (folder / "gradebook.db").write_bytes(course.gradebook)
    path = folder / "submitted" / STUDENT / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(notebook)
    closed_paths = [*course.closed, *(str(folder.resolve() / f"gradebook.db{end}") for end in ("", *closed.JOURNALS))]
    # The cells run in the folder to which nbgrader has written them with the hidden tests.
    closed_paths.append(str(folder.resolve() / "autograded" / STUDENT / name / f"{name}.ipynb"))
    call(folder, START_S + NOTEBOOK_CELLS * cell_limit_s, "grade", name, str(cell_limit_s), closed_paths=closed_paths)
    page = (folder / "feedback" / STUDENT / name / f"{name}.html").read_text()
    before, head, rest = page.partition("<head>")  # browsers obey a policy from its place on: it comes first
    page = f"{before}{head}{POLICY}{rest}" if head else f"{POLICY}{page}"
    return Graded(json.loads((folder / "scores.json").read_text()), page)


def call(folder: Path, limit_s: float, *arguments: str, closed_paths: list[str] | None = None) -> None:
    """Run this file as a program in a course folder. closed_paths: what its kernel may not open. Raises NotGraded."""
    folder = folder.resolve()
    (folder / "tmp").mkdir(exist_ok=True)
    without = folder / "without"
    without.mkdir(exist_ok=True)
    (without / f"{chapters.ADDRESSES}.py").write_text("raise ImportError\n")
    (folder / "guard").mkdir(exist_ok=True)
    shutil.copy(closed.__file__, folder / "guard" / "sitecustomize.py")
    paths = own_paths()
    python_path = os.pathsep.join([str(without), paths["PYTHONPATH"]])
    of_kernel = {
        "PYTHONPATH": f"{folder / 'guard'}{os.pathsep}{python_path}",
        "PYTHONSAFEPATH": "",
        closed.VARIABLE: os.pathsep.join(closed_paths or []),
    }
    kernel = {"argv": chapters.kernel_command(), "display_name": "Python 3", "language": "python", "env": of_kernel}
    spec = folder / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(json.dumps(kernel))
    environment = {
        **os.environ,
        # None of the user's settings.
        **{f"JUPYTER_{kind}_DIR": str(folder / "jupyter" / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")},
        "JUPYTER_PATH": str(folder / "jupyter"),
        "IPYTHONDIR": str(folder / "jupyter" / "ipython"),
        **paths,
        "PYTHONPATH": python_path,
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


# --- In its own process -----------------------------------------------------------------------------------------------


def main() -> None:
    """``python -m bench.course.exercises.nbgrading FOLDER generate|copy NAME …``, or ``… grade NAME CELL_LIMIT_S``."""
    folder, what, *arguments = sys.argv[1:]
    {"generate": generate, "copy": copy, "grade": autograde}[what](Path(folder), *arguments)


def api(folder: Path, **settings):
    import nbgrader.api
    from jsonschema import Draft4Validator
    from nbgrader.apps import NbGraderAPI
    from sqlalchemy import event
    from sqlalchemy.engine import Engine
    from traitlets.config import Config

    # The folder is a temporary one: nobody brings its gradebook to a later version, for which nbgrader would start
    # another program, and none of its many small changes need wait for the disk.
    nbgrader.api.get_alembic_version = lambda: "temporary"
    Draft4Validator.check_schema = lambda _: None  # of nbgrader's own schema, again for each cell
    event.listen(Engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    config = Config(settings)
    config.CourseDirectory.root = str(folder)
    config.ClearSolutions.code_stub = {"python": "# Your answer here.\nraise NotImplementedError()"}
    config.HTMLExporter.sanitize_html = True
    config.HTMLExporter.filters = {"markdown2html": f"{HOOKS}.markdown", "clean_html": f"{HOOKS}.clean"}
    return NbGraderAPI(config=config)


def generate(folder: Path, *names: str, **settings) -> None:
    nbgrader = api(folder, **settings)
    for name in names:
        check_success(nbgrader.generate_assignment(name))


def copy(folder: Path, *names: str) -> None:
    """``generate`` without the gradebook, which takes half of the time."""
    generate(folder, *names, SaveCells={"enabled": False}, GenerateAssignment={"no_database": True})


def autograde(folder: Path, name: str, cell_limit_s: str) -> None:
    from nbgrader.api import Gradebook
    from nbgrader.converters.autograde import Autograde

    from bench.course.exercises.nbgrader_hooks import Execution

    steps = Autograde.autograde_preprocessors.default()[1:]  # after its own execution
    Execution.gradebook = folder / "gradebook.db"
    nbgrader = api(
        folder,
        Autograde={"autograde_preprocessors": [Execution, *steps]},
        Execution={"timeout": int(float(cell_limit_s))},
        KernelManager=chapters.kernel_sockets(),
    )
    check_success(nbgrader.autograde(name, STUDENT))
    if Execution.changed:
        sys.exit("the answers have changed the gradebook")
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        grades = gradebook.find_submission_notebook(name, name, STUDENT).grades
        scores = {grade.name: grade.score for grade in grades}
    page = folder / "feedback" / STUDENT / name / f"{name}.html"
    try:
        check_success(nbgrader.generate_feedback(name, STUDENT))
    except SystemExit as why:  # the points stay, whatever an answer displays
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(NO_PAGE.format(html.escape(str(why))), encoding="utf-8")
    (folder / "scores.json").write_text(json.dumps(scores))


def check_success(result: dict) -> None:
    print(result.get("log", ""))
    if not result["success"]:
        print(result["error"])
        reasons = [line for line in result.get("log", "").splitlines() if line and not line.startswith("[INFO]")]
        sys.exit(next((line for line in reversed(reasons) if "Error" in line), result["error"].splitlines()[-1]))


if __name__ == "__main__":
    main()
