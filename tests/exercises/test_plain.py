"""Without nbgrader: a notebook's cells in a plain process, and its tests as tests of pytest."""

import json
import subprocess
import sys

import pytest

from bench.course.exercises import plain, release, text
from tests.exercises.conftest import edited
from tests.runs import ROOT

STUCK = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(600)"


def notebook(path, *sources: str):
    cells = [{"cell_type": "code", "id": f"c{n}", "metadata": {}, "source": s} for n, s in enumerate(sources)]
    path.write_text(json.dumps({"cells": cells}))
    return path


def errors(path, limit_s: float = 60) -> dict:
    """Cell -> the last line of its error."""
    results = plain.run([path], limit_s)[0]
    return {cell: result["error"] and result["error"].splitlines()[-1] for cell, result in results.items()}


def test_cells_run_in_order_and_go_on_after_an_error(tmp_path):
    path = notebook(tmp_path / "a.ipynb", "x = 1\n%time x", "assert x == 2, 'x is not 2'", "import sys; sys.exit(3)",
                    "x +", "display(x)")  # fmt: skip
    results = plain.run([path])[0]
    said = [one["error"] and one["error"].splitlines()[-1] for one in results.values()]
    assert said.pop(3).startswith("SyntaxError") and results["c4"]["output"] == "1\n"
    assert said == [None, "AssertionError: x is not 2", "SystemExit: 3", None]


def test_a_loop_without_an_end_costs_its_cell_alone(tmp_path):
    """One that cannot be interrupted, or that ends the process, costs those after it as well."""
    loop = "try:\n    while True: pass\nexcept Exception: pass"
    found = errors(notebook(tmp_path / "a.ipynb", loop, "x = 1", STUCK, "y = 2"), 1)
    assert list(found) == ["c0", "c1", "c2"] and found["c1"] is None
    assert "1 s" in found["c0"] and "1 s" in found["c2"] and found["c0"] != found["c2"]
    assert errors(notebook(tmp_path / "a.ipynb", "x = 1", "import os; os._exit(0)", "y = 2")) == {"c0": None}


def test_notebooks_share_a_process_and_nothing_else(tmp_path):
    first = notebook(tmp_path / "a.ipynb", "x = 1")
    second = notebook(tmp_path / "b.ipynb", "assert 'x' not in globals(); assert __name__ == '__main__'")
    assert [one["c0"]["error"] for one in plain.run([first, second])] == [None, None]


@pytest.fixture(scope="module")
def folder(blank, solved, tmp_path_factory):
    """A release with one set of which two tasks are answered, and a notebook that is not a set."""
    folder = tmp_path_factory.mktemp("release")
    (folder / "00_sample").mkdir()
    answered = edited(solved, task2_answer="def total(rank): raise ValueError('I do not know')")
    (folder / "00_sample" / "00_sample.ipynb").write_text(answered)
    notebook(folder / "notes.ipynb", "x = 1")
    (folder / "conftest.py").write_text(text.render_template("conftest.py", wheel="some.whl"))
    (folder / "pytest.ini").write_text(release.PYTEST_INI)
    return folder


def test_pytest_in_the_folder_of_a_release(folder, copied_python):
    command = [sys.executable, "-m", "pytest", "-v"]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = [line.split()[:2] for line in done.stdout.splitlines() if "::" in line and "%" in line]
    where = "00_sample/00_sample.ipynb::s00-task"
    assert outcomes == [[f"{where}1-test", "PASSED"], [f"{where}2-test", "FAILED"], [f"{where}3-test", "PASSED"]]
    assert "I do not know" in done.stdout and "2 of 4" in done.stdout
    assert "bench/course" not in done.stdout  # the frames of our own code do not help
