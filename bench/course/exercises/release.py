"""`bench release`: what students get, without solutions, hidden tests and rubrics.

build/release/
    README.md               instructions
    NN_name/NN_name.ipynb   a problem set, made by nbgrader from the text
    conftest.py, pytest.ini `python -m pytest` runs the visible tests
    ….whl                   this project, for a hosted notebook

`bench course export`: for other graders.

gradescope  a zip per set for Gradescope's autograder (https://gradescope-autograders.readthedocs.io): ``setup.sh``,
            ``run_autograder``, this project and the set, with solutions and hidden tests. Points as in `bench grade`.
classroom   a template repository for GitHub Classroom (https://github.com/classroom-resources): a release with a
            workflow that runs the visible tests, a step per task. It has no hidden tests, because students read it.
"""

import csv
import hashlib
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from bench import files
from bench.course import translation
from bench.course.chapters import write_text
from bench.course.exercises import chinese, nbgrading, text
from bench.errors import BenchError, UserError
from bench.files import PROJECT
from bench.process.tree import capture

RELEASE = PROJECT / "build" / "release"
WHEEL_S = 600.0  # for pip to build the package
EXPORTS = PROJECT / "build" / "export"
PARTS = ("bench", "pyproject.toml", "README.md", "LICENSE", "Makefile")  # of this project, needed for grading
EXECUTABLE = 0o755 << 16  # of a file in a zip
MADE = ".released.json"  # set -> checksum of its released notebook: one that differs has been edited
PYTEST_INI = "[pytest]\naddopts = -p no:cacheprovider --tb=short\n"


def run(names: str | None, folder: str | None, out: str | None, edition: str = "en") -> int:
    """edition: "zh" for Chinese copies. The copies of sets without a translation are in English."""
    paths = text.sets(names, folder)
    if edition == translation.LANGUAGE:
        translation.select_translated(paths)
    problem_sets = [text.read(path) for path in paths]
    nbgrading.required()
    to = Path(out) if out else RELEASE
    notebooks = nbgrading.make_release(problem_sets, gradebook=False).releases
    for problem_set in problem_sets:
        check(problem_set, notebooks[problem_set.name])
    if edition == translation.LANGUAGE:
        for each in problem_sets:
            notebooks[each.name] = chinese.problem_set(each.path, notebooks[each.name], each.minutes)
    made = read_made(to)
    keep_answers(to, notebooks, made)
    for name, notebook in notebooks.items():
        (to / name).mkdir(parents=True, exist_ok=True)
        write_text(to / name / f"{name}.ipynb", notebook)
        made[name] = checksum(notebook.encode())
        print(to / name / f"{name}.ipynb", flush=True)
    write_text(to / MADE, json.dumps(made, indent=1, sort_keys=True) + "\n")
    wheel = build_wheel(to)
    released = [text.read(path) for path in text.sets(None, folder) if path.stem in made]
    words = {"sets": released, "wheel": wheel, "first": problem_sets[0].name, "limit": nbgrading.CELL_LIMIT_S}
    handout = "handout.zh.md" if edition == translation.LANGUAGE else "handout.md"
    write_text(to / "README.md", text.render_template(handout, **words))
    write_text(to / "conftest.py", text.render_template("conftest.py", wheel=wheel))
    write_text(to / "pytest.ini", PYTEST_INI)
    print(f"handed out from: {to}")
    return 0


def check(problem_set: text.ProblemSet, notebook: str) -> None:
    """Raise BenchError when the students' copy contains a line of a solution, a hidden test or a rubric."""
    shown = {line.strip() for cell in json.loads(notebook)["cells"] for line in "".join(cell["source"]).splitlines()}
    leaked = [line for line in text.secrets_of(problem_set) if line in shown]
    if leaked or any(text.MARK.search(line) for line in shown):
        shown_line = repr(leaked[0]) if leaked else "a mark"
        raise BenchError(f"{problem_set.name}: not released: the students' copy would show {shown_line}")


def keep_answers(to: Path, notebooks: dict[str, str], made: dict[str, str]) -> None:
    """Raise UserError when a notebook to be replaced has been edited, or ``to`` has files but is not a release."""
    for name in notebooks:
        path = to / name / f"{name}.ipynb"
        if path.exists() and checksum(read_file(path)) not in (made.get(name), checksum(notebooks[name].encode())):
            raise UserError(f"{path} was edited and will not be replaced: move it away, or choose another OUT=")
    for name in ("README.md", "conftest.py", "pytest.ini"):
        if not made and (to / name).exists():
            raise UserError(f"{to / name} is not part of a release and will not be replaced: choose another OUT=")


def read_made(to: Path) -> dict[str, str]:
    if not (to / MADE).exists():
        return {}
    try:
        return dict(json.loads(read_file(to / MADE)))
    except (ValueError, TypeError, RecursionError):
        raise UserError(f"{to / MADE} is damaged: move it away, or give another OUT=") from None


def read_file(path: Path) -> bytes:
    try:
        return files.read_regular_file(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): move it away, or give another OUT=") from None


def checksum(notebook: bytes) -> str:
    return hashlib.sha256(notebook).hexdigest()


def build_wheel(to: Path) -> str:
    """Build this project as a wheel from a clean copy; returns its name. Downloads nothing."""
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


# --- bench course export ------------------------------------------------------------------------------------------


def export(form: str, names: str | None, folder: str | None, out: str | None, key: int = 0) -> int:
    if form not in FORMS:
        raise UserError(f"PLATFORM={form}: choose one of {', '.join(FORMS)}")
    to = Path(out) if out else EXPORTS / form
    to.mkdir(parents=True, exist_ok=True)
    for path in FORMS[form](names, folder, to, key):
        print(path, flush=True)
    return 0


def gradescope(names: str | None, folder: str | None, to: Path, key: int = 0) -> list[Path]:
    parts = [file for name in PARTS for file in (PROJECT / name, *sorted((PROJECT / name).rglob("*")))]
    parts = [file for file in parts if file.is_file() and "__pycache__" not in file.parts]
    made = []
    for path in text.sets(names, folder):
        text.read(path, key)  # raises UserError for a mistake in the set
        made.append(to / f"{path.stem}.zip")
        with (
            files.atomic_write(made[-1]) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name in ("setup.sh", "run_autograder"):
                info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
                info.external_attr, info.compress_type = EXECUTABLE, zipfile.ZIP_DEFLATED
                archive.writestr(info, text.render_template(name, key=key))
            for file in parts:
                archive.write(file, Path("project") / file.relative_to(PROJECT))
            archive.write(path, Path("project") / "sets" / path.name)
    return made


def classroom(names: str | None, folder: str | None, to: Path, key: int = 0) -> list[Path]:
    if key:
        raise UserError(f"KEY={key}: PLATFORM=classroom has no hidden tests: pass the key to `bench course grade`")
    run(names, folder, str(to))
    tasks = [
        {"name": path.stem, "number": task.number, "id": f"set{path.stem[:2]}-task{task.number}", "points": task.points}
        for path in text.sets(names, folder)
        for task in text.read(path).tasks
    ]
    (wheel,) = (path.name for path in to.glob("*.whl"))
    workflow = to / ".github" / "workflows" / "classroom.yml"
    workflow.parent.mkdir(parents=True, exist_ok=True)
    write_text(workflow, text.render_template("classroom.yml", wheel=wheel, tasks=tasks))
    return [workflow]


FORMS = {"gradescope": gradescope, "classroom": classroom}


# --- Called by run_autograder -----------------------------------------------------------------------------------------


def results_of(grades: Path, output: str) -> dict:
    """Gradescope's output format, of one student's folder of `bench grade`. output: what that printed."""
    if not (grades / "tasks.csv").exists():
        return {"score": 0, "output": output or "nothing was handed in", "visibility": "visible"}
    with (grades / "tasks.csv").open(newline="") as file:
        tests = [{"name": f"{task['set']}, task {task['task']}", "score": float(task["points"]),
                  "max_score": float(task["max"])} for task in csv.DictReader(file)]  # fmt: skip
    with (grades / "grades.csv").open(newline="") as file:
        reasons = [row["reason"] for row in csv.DictReader(file) if row["reason"]]
    return {"tests": tests, "output": "\n".join(reasons), "visibility": "visible"}


def main() -> None:
    grades, output, results = map(Path, sys.argv[1:])
    made = results_of(grades, output.read_text().strip())
    write_text(results, json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
