"""What `bench release` writes, and that it works where there is nothing but it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from bench.course import translation
from bench.course.exercises import cells, nbgrading, release
from bench.errors import BenchError
from tests.exercises.conftest import SAMPLE
from tests.forked_programs import copied_chapters
from tests.runs import ROOT, bench, refuses


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    with copied_chapters():
        bench("course", "release", "--sets", SAMPLE, "--out", folder).ok()
    return folder


def test_what_lies_there(handed_out, tmp_path):
    (wheel,) = handed_out.glob("*.whl")
    assert sorted(path.name for path in handed_out.iterdir()) == sorted(
        [".released.json", "00_sample", "README.md", "conftest.py", "pytest.ini", wheel.name]
    )
    readme = (handed_out / "README.md").read_text()
    assert wheel.name in readme and "| 00_sample | 3 | 4 | 25 |" in readme
    notebook = json.loads((handed_out / "00_sample" / "00_sample.ipynb").read_text())
    source = "".join(next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["source"])
    assert len(source.splitlines()) <= 10
    missing = f"import sys; sys.modules['bench'] = None\n{source}"
    done = subprocess.run([sys.executable, "-c", missing], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode and ".whl" in done.stderr  # the file to upload


def test_rubrics_and_solutions_are_the_teachers_and_objectives_the_students(handed_out, sample, blank, solved):
    copy = (handed_out / "00_sample" / "00_sample.ipynb").read_text()
    assert sum("By hand:" in cell.source for cell in sample.notebook.cells) == 3
    assert "By hand:" not in copy and "RUBRIC" not in copy and "KEY" not in copy
    assert copy.count("**Objective.** You can ") == 3 and "**Minutes:** 15." in copy
    release.check(sample, blank)
    rubric, mark = (json.loads(blank) for _ in range(2))
    rubric["cells"][0]["source"] = ["arguments; 0.5 for a number, not a tensor."]
    mark["cells"][-1]["source"] = ["### BEGIN HIDDEN TESTS"]
    for leaking in (solved, json.dumps(rubric), json.dumps(mark)):
        with pytest.raises(BenchError):
            release.check(sample, leaking)


def test_a_release_in_chinese(tmp_path, blank, monkeypatch, capsys):
    """The translation of a teacher's own set lies in the folder ``zh`` beside it. Sets without one are named."""
    monkeypatch.setattr(nbgrading, "make_release", lambda s, **_: nbgrading.Course({x.name: blank for x in s}, b""))
    monkeypatch.setattr(release, "build_wheel", lambda to: "data_parallel_bench.whl")
    shutil.copytree(SAMPLE, sets := tmp_path / "sets")
    with refuses("EDITION=zh", "00_sample"):
        release.run(None, str(sets), str(tmp_path / "out"), edition="zh")
    shutil.copy(sets / "00_sample.md", sets / "01_english.md")
    title = "".join(json.loads(blank)["cells"][0]["source"]).partition("\n")[0]
    (sets / "zh").mkdir()
    (sets / "zh" / "00_sample.md").write_text(f"<!-- en {translation.digest(title)} -->\n# 样例\n")
    assert release.run(None, str(sets), str(tmp_path / "out"), edition="zh") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not translated")]
    assert "01_english" in line and "00_sample" not in line
    copy = (tmp_path / "out" / "00_sample" / "00_sample.ipynb").read_text()
    assert "# 样例" in copy and title not in copy and translation.NOTE in copy
    assert (tmp_path / "out" / "README.md").read_text().startswith("# 习题集")


def test_no_answer_and_no_file_of_another_is_replaced(handed_out, blank, tmp_path, monkeypatch):
    """nbgrader makes the same copy again, so here it makes none."""
    monkeypatch.setattr(nbgrading, "make_release", lambda *_, **__: nbgrading.Course({"00_sample": blank}, b""))
    path = handed_out / "00_sample" / "00_sample.ipynb"
    assert release.run(None, str(SAMPLE), str(handed_out)) == 0
    assert path.read_text() == blank and len(list(handed_out.glob("*.whl"))) == 1
    path.write_text(blank.replace("Your answer here", "I work here"))
    with refuses(path):
        release.run(None, str(SAMPLE), str(handed_out))
    assert "I work here" in path.read_text()
    path.write_text(blank)

    def refused(name: str) -> None:
        with refuses(name):
            release.run(None, str(SAMPLE), str(tmp_path))

    (tmp_path / "README.md").write_text("my project")
    refused("README.md")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    for damaged in (b"[", b"7", b"[[1]]", b"\xff", b"[" * 100_000):
        (tmp_path / release.MADE).write_bytes(damaged)
        refused("released.json")
    (tmp_path / release.MADE).unlink()
    (folder := tmp_path / "00_sample").mkdir()
    os.mkfifo(folder / "00_sample.ipynb")
    refused("00_sample.ipynb")
    with refuses("PLATFORM=canvas", "gradescope, classroom"):
        release.export("canvas", None, str(SAMPLE), str(tmp_path))


def test_the_wheel_alone_is_enough(handed_out, solved, tmp_path):
    """Installed into an empty folder, away from the clone: as in a hosted notebook, whose first cell does that."""
    (wheel,) = handed_out.glob("*.whl")
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a wheel of plain Python
    (work / "a.ipynb").write_text(solved)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-m", cells.__name__, str(tmp_path / "results"), "60", str(work / "a.ipynb")]
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=240)
    results = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    assert done.returncode == 0 and [r["error"] for r in results] == [None] * len(results), results
    command = [sys.executable, "-c", "import bench; print(bench.__file__)"]
    assert str(site) in subprocess.run(command, cwd=work, env=env, capture_output=True, text=True).stdout


def test_the_template_of_a_classroom_assignment(handed_out, sample, monkeypatch):
    """A step per task with its points; each step's command is one that works in the released folder."""
    import yaml

    monkeypatch.setattr(release, "run", lambda *_: 0)  # it has been made
    (path,) = release.classroom(None, str(SAMPLE), handed_out)
    job = yaml.safe_load(path.read_text())["jobs"]["run-autograding-tests"]
    steps = {step["id"]: step["with"] for step in job["steps"] if "id" in step}
    assert [step["max-score"] for step in steps.values()] == [task.points for task in sample.tasks]
    report = job["steps"][-1]
    assert report["with"]["runners"].split(",") == list(steps)
    assert list(report["env"]) == [f"{name.upper()}_RESULTS" for name in steps]
    command = [sys.executable, *steps["set00-task1"]["command"].split()[1:], "--collect-only", "-q"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=handed_out, capture_output=True, text=True, timeout=100, env=env)
    assert "s00-task1-test" in done.stdout and "s00-task2" not in done.stdout, done.stdout + done.stderr
    assert any(str(step.get("run", "")).startswith("python -m pip install ./data_parallel") for step in job["steps"])
