"""`bench release`: what is handed out. No solution, no hidden test, no rubric; three ways to work without a clone.

build/release/
    README.md               what to do, by way of working
    NN_name/NN_name.ipynb   a problem set, made by nbgrader from the text
    conftest.py, pytest.ini `python -m pytest` runs the visible tests
    ….whl                   this project, for a hosted notebook
"""

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench import files
from bench.course.exercises import nbgrading, text
from bench.errors import BenchError, UserError
from bench.files import PROJECT
from bench.process.tree import capture

RELEASE = PROJECT / "build" / "release"
BESIDE = ("README.md", "conftest.py", "pytest.ini")  # the sets' folders
WHEEL_S = 600.0  # for pip to build the package
MADE = ".released.json"  # checksums of the notebooks as they were made: one that differs holds answers

CONFTEST = '''\
"""`python -m pytest` runs the visible tests of every notebook in this folder: see README.md."""

import pytest

try:
    from bench.course.exercises.plain import pytest_collect_file, pytest_terminal_summary  # noqa: F401
except ImportError as error:
    raise pytest.UsageError(f"{error}: install the package first: python -m pip install {WHEEL}") from None
'''

PYTEST_INI = """\
[pytest]
addopts = -p no:cacheprovider --tb=short
"""


def run(names: str | None, folder: str | None, out: str | None) -> int:
    problem_sets = [text.read(path) for path in text.sets(names, folder)]
    nbgrading.required()
    to = Path(out) if out else RELEASE
    notebooks = nbgrading.make_release(problem_sets).releases
    for problem_set in problem_sets:
        check(problem_set, notebooks[problem_set.name])
    keep_answers(to, notebooks)
    made = read_made(to)
    for name, notebook in notebooks.items():
        (to / name).mkdir(parents=True, exist_ok=True)
        write(to / name / f"{name}.ipynb", notebook)
        made[name] = checksum(notebook.encode())
        print(to / name / f"{name}.ipynb", flush=True)
    write(to / MADE, json.dumps(made, indent=1, sort_keys=True) + "\n")
    wheel = build_wheel(to)
    there = [text.read(path) for path in text.sets(None, folder) if path.stem in made]
    first = problem_sets[0].name
    words = {"sets": there, "wheel": wheel, "first": first, "limit": nbgrading.CELL_LIMIT_S}
    contents = (from_template("handout.md", **words), CONFTEST.replace("{WHEEL}", wheel), PYTEST_INI)
    for name, written in zip(BESIDE, contents, strict=True):
        write(to / name, written)
    print(f"handed out from: {to}")
    return 0


def from_template(name: str, **words) -> str:
    """The text of a template beside this file."""
    import jinja2

    template = Path(__file__).with_name(f"{name}.j2").read_text()
    options = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "keep_trailing_newline": True}
    return jinja2.Template(template, **options).render(**words)


def check(problem_set: text.ProblemSet, notebook: str) -> None:
    """Raise BenchError when a line of a solution, a hidden test or a rubric is in the students' copy."""
    shown = {line.strip() for cell in json.loads(notebook)["cells"] for line in "".join(cell["source"]).splitlines()}
    leaked = [line for line in text.secrets_of(problem_set) if line in shown]
    if leaked or any(text.MARK.search(line) for line in shown):
        shown_line = repr(leaked[0]) if leaked else "a mark"
        raise BenchError(f"{problem_set.name}: not released: the students' copy would show {shown_line}")


def keep_answers(to: Path, notebooks: dict[str, str]) -> None:
    """Raise UserError when a notebook that would be replaced is not as it was made: it holds answers. And where a file
    would be replaced in a folder that is no release."""
    made = read_made(to)
    for name in notebooks:
        path = to / name / f"{name}.ipynb"
        if path.exists() and checksum(content(path)) not in (made.get(name), checksum(notebooks[name].encode())):
            raise UserError(f"{path} has been edited and is not replaced: move it away, or give another OUT=")
    if not made and (found := [name for name in BESIDE if (to / name).exists()]):
        raise UserError(f"{to / found[0]} is not a release's and is not replaced: give another OUT=")


def read_made(to: Path) -> dict[str, str]:
    """Set -> checksum of its notebook when it was made. Raises UserError."""
    if not (to / MADE).exists():
        return {}
    try:
        return dict(json.loads(content(to / MADE)))
    except (ValueError, TypeError, RecursionError):
        raise UserError(f"{to / MADE} is damaged: move it away, or give another OUT=") from None


def content(path: Path) -> bytes:
    """Of a plain file. Raises UserError."""
    try:
        return files.read_plain(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): move it away, or give another OUT=") from None


def checksum(notebook: bytes) -> str:
    return hashlib.sha256(notebook).hexdigest()


def write(path: Path, content: str) -> None:
    with files.written_whole(path) as temporary:
        temporary.write_text(content)


def build_wheel(to: Path) -> str:
    """Build this project as a wheel into a folder, in place of an older one; returns its name.

    From a copy of what belongs in it, so that nothing of an earlier build gets in. Nothing is downloaded. Raises
    BenchError with pip's words when it fails.
    """
    with tempfile.TemporaryDirectory(prefix="wheel-") as temporary:
        source, built = Path(temporary) / "source", Path(temporary) / "built"
        source.mkdir()
        shutil.copytree(PROJECT / "bench", source / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(PROJECT / name, source / name)
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
                   "--disable-pip-version-check", "--wheel-dir", str(built), str(source)]  # fmt: skip
        done = capture(command, WHEEL_S)
        if done.code != 0:
            last = (done.err or done.out).strip().splitlines() or [f"nothing was printed within {WHEEL_S:g} s"]
            raise BenchError(f"pip could not build the package: {last[-1]}")
        (wheel,) = built.glob("*.whl")
        for old in to.glob(f"{wheel.name.split('-')[0]}-*.whl"):
            old.unlink()
        shutil.copy(wheel, to / wheel.name)
    return wheel.name
