"""`bench export`: the problem sets for other graders.

gradescope  a zip per set for Gradescope's autograder (https://gradescope-autograders.readthedocs.io): ``setup.sh``,
            ``run_autograder``, this project and the set, with solutions and hidden tests. Points as in `bench grade`.
classroom   a template repository for GitHub Classroom: what `bench release` makes, with a workflow that runs the
            visible tests, a step per task (https://github.com/classroom-resources). Students read all of it, so it has
            no hidden tests: grade with `bench grade` in the end.
"""

import csv
import json
import sys
import zipfile
from pathlib import Path

from bench import files
from bench.course.chapters import write_text
from bench.course.exercises import release, text
from bench.errors import UserError
from bench.files import PROJECT

EXPORTS = PROJECT / "build" / "export"
PARTS = ("bench", "pyproject.toml", "README.md", "LICENSE", "Makefile")  # of this project, needed for grading
EXECUTABLE = 0o755 << 16  # of a file in a zip


def run(form: str, names: str | None, folder: str | None, out: str | None, key: int = 0) -> int:
    if form not in FORMS:
        raise UserError(f"TO={form}: choose one of {', '.join(FORMS)}")
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
            files.written_whole(made[-1]) as temporary,
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
    write_text(workflow, text.render_template("classroom.yml", wheel=wheel, tasks=tasks))
    return [workflow]


FORMS = {"gradescope": gradescope, "classroom": classroom}


# --- Called by run_autograder -----------------------------------------------------------------------------------------


def results_of(grades: Path, output: str) -> dict:
    """Gradescope's results for the one student in a folder of `bench grade`. output: what that printed.

    Format: https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format. The reason why a notebook
    could not be graded is the output.
    """
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
