"""The visible tests of notebooks as tests of pytest: imported by the ``conftest.py`` of a release.

A notebook runs once in a fresh process without Jupyter; each of its test cells is one test.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from bench.course.exercises import cells, contained
from bench.course.shell import own_paths

CELL_LIMIT_S = 60.0
NOTEBOOK_LIMIT_S = 600.0
NOT_REACHED = "this cell was not reached: the process ended before it"


def pytest_collect_file(file_path: Path, parent):
    if file_path.suffix == ".ipynb" and tests_of(file_path):
        return NotebookFile.from_parent(parent, path=file_path)
    return None


def pytest_terminal_summary(terminalreporter) -> None:
    points = {"passed": 0.0, "failed": 0.0}
    for outcome in points:
        for report in terminalreporter.getreports(outcome):
            points[outcome] += sum(
                value for name, value in report.user_properties if name == "points" and report.when == "call"
            )
    if total := sum(points.values()):
        terminalreporter.write_line(f"points by the visible tests: {points['passed']:g} of {total:g}")


def tests_of(path: Path) -> dict[str, float]:
    """The test cells of a notebook: id -> points. Empty if the file is not a problem set."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        settings = [cell["metadata"].get("nbgrader", {}) for cell in notebook["cells"]]
        return {one["grade_id"]: float(one["points"]) for one in settings if one.get("grade")}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


class Failed(Exception):
    """A test cell failed; the message is what the student reads."""


class NotebookFile(pytest.File):
    found: dict[str, dict] | None = None

    def collect(self):
        for name, points in tests_of(self.path).items():
            yield TestCell.from_parent(self, name=name, points=points)

    def results(self) -> dict[str, dict]:
        if self.found is None:
            self.found = run([self.path])[0]
        return self.found


class TestCell(pytest.Item):
    def __init__(self, *, points: float, **options):
        super().__init__(**options)
        self.user_properties.append(("points", points))

    def runtest(self) -> None:
        result = self.parent.results().get(self.name, {"error": NOT_REACHED, "output": ""})
        if result["output"]:
            self.add_report_section("call", "stdout", result["output"])
        if result["error"]:
            raise Failed(result["error"])

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value) if isinstance(excinfo.value, Failed) else super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, None, f"{self.path.stem}: {self.name}"


def run(notebooks: list[Path], cell_limit_s: float = CELL_LIMIT_S) -> list[dict[str, dict]]:
    """Run notebooks one after the other in one process: for each, cell id -> its line of ``cells``."""
    with tempfile.TemporaryDirectory(prefix="cells-", ignore_cleanup_errors=True) as temporary:
        results, log = Path(temporary) / "results", Path(temporary) / "log"
        paths = [str(Path(notebook).resolve()) for notebook in notebooks]
        program = [sys.executable, "-m", cells.__name__, str(results), str(cell_limit_s), *paths]
        environment = {**os.environ, "PYTHONPATH": own_paths()["PYTHONPATH"], "TMPDIR": temporary}
        contained.run(program, NOTEBOOK_LIMIT_S * len(notebooks), environment, log)
        lines = results.read_text().splitlines() if results.exists() else []
        if not lines:
            raise Failed(f"the notebook could not be run: {log.read_text(errors='replace')[-2000:]}")
    found = [{} for _ in notebooks]
    for line in map(json.loads, lines):
        found[line["notebook"]][line["cell"]] = line
    return found
