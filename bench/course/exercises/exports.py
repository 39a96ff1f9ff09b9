"""`bench export`: the problem sets for the graders of other people.

gradescope  a zip for each set, as Gradescope's autograder wants it
            (https://gradescope-autograders.readthedocs.io): ``setup.sh``, ``run_autograder``, this project and the set.
            It holds solutions and hidden tests, and points are those of `bench grade`.
classroom   a folder to be the template repository of a GitHub Classroom assignment: what `bench release` makes, with a
            workflow that runs the visible tests, a step per task (https://github.com/classroom-resources). Hidden tests
            are not in it, for students read all of it: grade with `bench grade` in the end.

Their scripts are the templates ``*.j2`` in this folder. To add a form: a function ``(names, folder, to, key) -> paths``
and its line in FORMS.
"""

import csv
import json
import sys
import zipfile
from pathlib import Path

from bench import files
from bench.course.exercises import release, text
from bench.errors import UserError
from bench.files import PROJECT

EXPORTS = PROJECT / "build" / "export"
PARTS = ("bench", "pyproject.toml", "README.md", "LICENSE", "Makefile")  # of this project, what grading needs
EXECUTABLE = 0o755 << 16  # of a file in a zip


def run(form: str, names: str | None, folder: str | None, out: str | None, key: int = 0) -> int:
    """The command. Returns the exit code. key: of hidden tests. Raises UserError for a form that there is not."""
    if form not in FORMS:
        raise UserError(f"TO={form}: choose one of {', '.join(FORMS)}")
    to = Path(out) if out else EXPORTS / form
    to.mkdir(parents=True, exist_ok=True)
    for path in FORMS[form](names, folder, to, key):
        print(path, flush=True)
    return 0


def gradescope(names: str | None, folder: str | None, to: Path, key: int = 0) -> list[Path]:
    made = []
    for path in text.sets(names, folder):
        text.read(path, key)  # a set with a mistake in it is refused here
        made.append(to / f"{path.stem}.zip")
        with (
            files.written_whole(made[-1]) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name in ("setup.sh", "run_autograder"):
                info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
                info.external_attr, info.compress_type = EXECUTABLE, zipfile.ZIP_DEFLATED
                archive.writestr(info, release.from_template(name, key=key))
            for file in parts():
                archive.write(file, Path("project") / file.relative_to(PROJECT))
            archive.write(path, Path("project") / "sets" / path.name)
    return made


def parts() -> list[Path]:
    """The files of this project that grading needs."""
    found = []
    for name in PARTS:
        place = PROJECT / name
        found += [place] if place.is_file() else sorted(place.rglob("*"))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def classroom(names: str | None, folder: str | None, to: Path, key: int = 0) -> list[Path]:
    """The released folder with the workflow in it. Raises UserError for a KEY, for it has no hidden tests."""
    if key:
        raise UserError(f"KEY={key}: TO=classroom has no hidden tests: give it to `make grade`")
    release.run(names, folder, str(to))
    tasks = [
        {"name": path.stem, "number": task.number, "id": f"set{path.stem[:2]}-task{task.number}", "points": task.points}
        for path in text.sets(names, folder)
        for task in text.read(path).tasks
    ]
    (wheel,) = (path.name for path in to.glob("*.whl"))
    workflow = to / ".github" / "workflows" / "classroom.yml"
    workflow.parent.mkdir(parents=True, exist_ok=True)
    release.write(workflow, release.from_template("classroom.yml", wheel=wheel, tasks=tasks))
    return [workflow]


FORMS = {"gradescope": gradescope, "classroom": classroom}


# --- What run_autograder calls -------------------------------------------------------------------------------------


def results_of(grades: Path, said: str) -> dict:
    """Gradescope's results of the one student in a folder of `bench grade`. said: what that printed.

    The form: https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format. A notebook that could not be
    graded has no points, and its reason is the output.
    """
    if not (grades / "tasks.csv").exists():
        return {"score": 0, "output": said or "nothing was handed in", "visibility": "visible"}
    with (grades / "tasks.csv").open(newline="") as file:
        tasks = list(csv.DictReader(file))
    with (grades / "grades.csv").open(newline="") as file:
        reasons = [row["reason"] for row in csv.DictReader(file) if row["reason"]]
    tests = [
        {"name": f"{task['set']}, task {task['task']}", "score": float(task["points"]), "max_score": float(task["max"])}
        for task in tasks
    ]
    return {"tests": tests, "output": "\n".join(reasons), "visibility": "visible"}


def main() -> None:
    """``python -m bench.course.exercises.exports GRADES SAID RESULTS``."""
    grades, said, results = map(Path, sys.argv[1:])
    made = results_of(grades, said.read_text().strip())
    with files.written_whole(results) as temporary:
        temporary.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
