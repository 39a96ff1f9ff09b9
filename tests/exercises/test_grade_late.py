"""Notebooks that do not end by themselves, and those that reach for what is not theirs: what each costs its student,
and that nothing of it is left. nbgrader and the kernel to which files are closed are fresh processes here."""

import os
import shutil
import subprocess
import sys

import psutil
import pytest

from bench.course.exercises import closed, grade, nbgrading
from tests.exercises.conftest import edited
from tests.forked_programs import copied_chapters
from tests.runs import refuses

CELL_LIMIT_S = 15  # also for the cells that end well, on a busy machine

DEAF = {
    "task1_answer": "import subprocess, sys, warnings\n"
    "sleep = [sys.executable, '-S', '-c', 'import time; time.sleep(601)']\n"
    "subprocess.Popen(sleep); subprocess.Popen(sleep, start_new_session=True)\n"
    "def global_batch(per_device_batch, num_devices):\n"
    "    warnings.warn('said on stderr, which costs nothing')\n"
    "    return per_device_batch * num_devices",
    "task2_answer": "import time\nfor _ in range(120):\n"
    "    try:\n        time.sleep(1)\n    except BaseException:\n        pass\n"
    "def total(rank):\n    return rank",
}


def test_a_cell_that_swallows_the_interrupt_costs_its_task_and_those_after_it(sample, solved, prepared):
    """Not the whole notebook: what ran before it keeps its points, and nothing of it is left."""
    with copied_chapters():
        found = grade.grade_text(prepared, sample, edited(solved, **DEAF), CELL_LIMIT_S)
    assert found.tasks == {1: 1, 2: 0, 3: 0}
    assert "NotRun" in found.feedback and f"{CELL_LIMIT_S} s" in found.feedback
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "import time; time.sleep(601)" in line]


def test_a_notebook_that_takes_too_long_as_a_whole(blank, tmp_path, monkeypatch):
    """The last resort: whatever nbgrader is waiting for, it is ended."""
    monkeypatch.setattr(nbgrading, "START_S", 0.2)
    with refuses("0.7 s", error=nbgrading.NotGraded):
        nbgrading.grade(nbgrading.Course({}, b""), "00_sample", blank, tmp_path, 0.1)


FOLDER = "from pathlib import Path\nfolder = [p for p in Path.cwd().parents if (p / 'gradebook.db').exists()][0]\n"
OTHER = FOLDER + "import subprocess, sys\n"  # another program, which nothing is closed to
CURIOUS = {
    "task1_answer": f"print('x' * 3_000_000)\n{FOLDER}(folder / 'gradebook.db').read_bytes()",
    "task2_answer": "from bench.course.exercises import text\ntext.sets()[0].read_text()",
    "task3_answer": OTHER
    + """
points = "import json; open('scores.json', 'w').write(json.dumps(dict.fromkeys(['s00-task1-test'], 99)))"
writing = f"import time\\nwhile True:\\n    {points}\\n    time.sleep(0.01)"
subprocess.Popen([sys.executable, "-S", "-c", writing], cwd=folder, start_new_session=True)
refused = 0
for path in Path("00_sample.ipynb"), folder / "gradebook.db-journal", folder / "gradebook.db-wal":
    try:
        path.open("a")
    except PermissionError:
        refused += 1
import os
variables = [f"{name}={value}" for name, value in os.environ.items()]  # as horovodrun starts its ranks
allowed = subprocess.run(["env", *variables, "true"]).returncode == 0
answers = {"times": 2 if refused == 3 and allowed else None}""",
}


def test_solutions_and_points_are_closed_to_answers(sample, solved, prepared):
    """And what prints without end is cut, and a process that writes points is ended before they are read."""
    found = grade.grade_text(prepared, sample, edited(solved, **CURIOUS), 60)
    assert found.tasks == {1: 0, 2: 0, 3: 1}
    assert found.feedback.count("PermissionError") >= 2
    assert found.feedback.count("x" * 1000) <= 2_000


STARTS = """
import os, shlex, subprocess
value = os.environ["BENCH_CLOSED"]
subprocess.run(["env", f"BENCH_CLOSED={value}", "true"], check=True)
subprocess.run(f"env BENCH_CLOSED={shlex.quote(value)} true", shell=True, check=True)  # as horovodrun starts its ranks
for start, command in (
    (os.system, f"ls {shlex.quote(value)}"),
    (subprocess.run, ["ls", value]),
    (subprocess.run, [b"ls", os.fsencode(value)]),
):
    try:
        start(command)
    except PermissionError:
        print("refused")
"""


@pytest.mark.parametrize("name", ["sets", "my sets", "用户"])
def test_a_command_may_pass_on_the_closed_paths_but_not_open_them(name, tmp_path):
    shutil.copy(closed.__file__, tmp_path / "sitecustomize.py")
    variables = {"PYTHONPATH": str(tmp_path), closed.VARIABLE: str(tmp_path / name)}
    done = subprocess.run([sys.executable, "-c", STARTS], env=os.environ | variables, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("refused\n" * 3, "", 0)


CHANGES = {
    "the file": "import sqlite3; c = sqlite3.connect('gradebook.db'); "
    "c.execute('update grade_cells set max_score = 99'); c.commit()",
    "its journal": "open('gradebook.db-journal', 'w').write('SQLite reads this first')",
}


@pytest.mark.parametrize("what", ["the file", pytest.param("its journal", marks=pytest.mark.wide)])
def test_who_changes_the_gradebook_has_no_points(what, sample, solved, prepared):
    """Answers themselves cannot open the journal: CURIOUS."""
    source = f"{OTHER}subprocess.run([sys.executable, '-S', '-c', {CHANGES[what]!r}], cwd=folder, check=True)"
    with copied_chapters(), refuses("gradebook", error=nbgrading.NotGraded):
        grade.grade_text(prepared, sample, edited(solved, task3_answer=source), 60)
