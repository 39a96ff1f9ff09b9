"""The chapters: their form, their notebooks, and each executed at the small sizes with real processes."""

import json
import re
import subprocess
import sys

import pytest

from bench.course import chapters
from bench.errors import RunFailed, UserError
from tests.notebooks.kernel import LIMIT_S
from tests.runs import ROOT

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")

TEXTS = sorted(chapters.TUTORIALS.glob("[0-9][0-9]_*.md"))
NOTEBOOKS = sorted(chapters.TUTORIALS.rglob("*.ipynb"))
CHAPTER_LIMIT_S = 900  # under two minutes on an idle machine; this one may be busy
MOST_LINES = 10  # of a code cell
ENDING = ["The answer", "What surprised us", "Summary", "Exercises"]

each_chapter = pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.stem)


def cells(path, kind: str) -> list[str]:
    return [cell.source for cell in chapters.notebook_of(path).cells if cell.cell_type == kind]


def prose(path) -> str:
    """The text without its code cells, fences and inline code."""
    text = "\n\n".join(cells(path, "markdown"))
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def section(path, title: str) -> str:
    """What stands below one heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


# --- Form -----------------------------------------------------------------------------------------------------------


@each_chapter
def test_the_headings_stand_in_order(path):
    text = path.read_text()
    number = int(path.name[:2])
    assert re.search(rf"\A(---\n.*?\n---\n+)?# {number}\. \S", text, re.DOTALL), "the title is not `# N. Title`"
    headings = re.findall(r"^## (.+)$", prose(path), re.MULTILINE)
    assert headings[0] == "A prediction" and headings[-4:] == ENDING and len(headings) > 5
    assert re.findall(r"^# (?!#)", prose(path), re.MULTILINE) == ["# "], "one title"


@each_chapter
def test_it_begins_with_a_question_and_what_is_new(path):
    head = path.read_text().partition("\n## ")[0]
    question = head.index("**Question.**")
    assert "?" in head[question:]
    news = ["**New since the last chapter.**", "**What you need.**"][: 2 if path.name.startswith("01") else 1]
    assert any(head.find(new) > question for new in news)


@each_chapter
def test_a_guess_is_asked_for_and_comes_back(path):
    guesses = re.findall(r"^(\w+) = .*\bNone\b", section(path, "A prediction"), re.MULTILINE)
    assert guesses, "no `guess = None  # …` in the section A prediction"
    later = path.read_text().partition("## A prediction")[2]
    assert all(len(re.findall(rf"\b{guess}\b", later)) > 1 for guess in guesses), "the guess never comes back"


@each_chapter
def test_code_cells_are_short_and_have_no_shell_lines(path):
    for code in cells(path, "code"):
        lines = code.splitlines()
        assert len(lines) <= MOST_LINES, f"{len(lines)} lines:\n{code}"
        assert not [line for line in lines if line.lstrip().startswith("!")], code
        magic = [line for line in lines if line.startswith("%")]
        assert all(line.startswith("%%writefile") for line in magic), code


@each_chapter
def test_the_imports_bring_the_course(path):
    first = "\n".join(cells(path, "code")[:2])  # imports may need two cells
    assert re.search(r"^from bench import .*\bcourse\b", first, re.MULTILINE)


@each_chapter
def test_there_are_three_exercises_and_a_problem_set(path):
    exercises = section(path, "Exercises")
    assert re.findall(r"^(\d+)\. ", exercises, re.MULTILINE) == ["1", "2", "3"]
    last = exercises.strip().rpartition("\n\n")[2]
    assert f"exercises/{path.name}" in last


@each_chapter
def test_the_summary_is_short(path):
    points = re.findall(r"^[-*] ", section(path, "Summary"), re.MULTILINE)
    assert not points or 3 <= len(points) <= 6


@each_chapter
def test_formulas_can_be_drawn_without_a_script_from_elsewhere(path):
    """As the site draws them. A pair of dollar signs in a line of prose would be a formula, too."""
    from matplotlib.mathtext import MathTextParser

    for formula in re.findall(r"\$\$(.+?)\$\$|\$([^$\n\s\d][^$\n]*)\$", prose(path), re.DOTALL):
        MathTextParser("path").parse(f"${' '.join(''.join(formula).split())}$")


@each_chapter
def test_text_and_notebook_are_one(path):
    notebook = path.with_suffix(".ipynb")
    assert notebook.exists(), f"make notebooks ARGS=--pair NAME={path.name[:2]}"
    assert notebook.read_text() == chapters.written(chapters.notebook_of(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_no_notebook_holds_outputs(path):
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_the_code_is_in_the_projects_style():
    pytest.importorskip("ruff", reason="ruff is not installed")
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "tutorials"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# --- Execution ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(CHAPTER_LIMIT_S)
@each_chapter
def test_it_runs_from_top_to_bottom(path, tmp_path):
    executed = chapters.execute(path, tmp_path, quick=True)
    outputs = [output for cell in json.loads(executed.read_text())["cells"] for output in cell.get("outputs", [])]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    pictures = [o for o in outputs if {"image/png", "image/svg+xml"} & set(o.get("data", {}))]
    drawn = [o for o in outputs if "<svg" in "".join(o.get("data", {}).get("text/html", ""))]
    assert pictures or drawn, "no figure"
    assert chapters.is_current(path, quick=True, to=tmp_path) and not chapters.is_current(path, to=tmp_path)


# --- What executes them, on small texts -----------------------------------------------------------------------------


def text_of(tmp_path, *codes: str):
    path = tmp_path / "01_small.md"
    path.write_text("\n\n".join(["# 1. Small", *(f"```python\n{code}\n```" for code in codes)]) + "\n")
    return path


@pytest.mark.timeout(3 * LIMIT_S)
def test_a_failing_cell_is_one_line_and_what_came_before_is_kept(tmp_path):
    path = text_of(tmp_path, "print('a')\nprint('b')", "raise ValueError('no\\nmore')", "print('c')")
    with pytest.raises(RunFailed, match=r"^01_small\.md: ValueError: no; see .*out/01_small\.ipynb$"):
        chapters.execute(path, tmp_path / "out")
    first, second, third = json.loads((tmp_path / "out" / "01_small.ipynb").read_text())["cells"][1:]
    assert ["".join(o["text"]) for o in first["outputs"]] == ["a\nb\n"] and second["outputs"] and not third["outputs"]
    assert not chapters.is_current(path, to=tmp_path / "out")


@pytest.mark.timeout(3 * LIMIT_S)
def test_a_kernel_that_dies_is_one_line(tmp_path):
    path = text_of(tmp_path, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(RunFailed, match="the kernel died"):
        chapters.execute(path, tmp_path / "out")


@pytest.mark.timeout(3 * LIMIT_S)
def test_a_kernel_that_does_not_start_is_one_line(tmp_path, monkeypatch):
    module = tmp_path / "ipykernel_launcher.py"  # found before the real one
    module.write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(chapters, "START_LIMIT_S", 1)
    with pytest.raises(RunFailed, match="the kernel did not start within 1 s: is this machine very busy"):
        chapters.execute(text_of(tmp_path, "1"), tmp_path / "out")


@pytest.mark.timeout(3 * LIMIT_S)
def test_a_cell_that_takes_too_long_is_one_line_and_leaves_nobody(tmp_path, monkeypatch):
    import psutil

    monkeypatch.setattr(chapters, "CELL_LIMIT_S", 10)
    code = "import subprocess; subprocess.Popen(['sleep', '173'], start_new_session=True).wait()"
    with pytest.raises(RunFailed, match="a cell took longer than 10 s"):
        chapters.execute(text_of(tmp_path, code), tmp_path / "out")
    assert ["sleep", "173"] not in [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]


@pytest.mark.timeout(3 * LIMIT_S)
def test_ctrl_c_ends_the_kernel_and_all_below_it(tmp_path):
    """As from a terminal: SIGINT to the command alone."""
    import signal

    import psutil

    from tests.runs import wait_for

    path = text_of(tmp_path, "from bench import course", "course.shell('sleep 179')")
    code = "import sys; from pathlib import Path; from bench.course import chapters; "
    code += "chapters.execute(Path(sys.argv[1]), Path(sys.argv[2]))"
    process = subprocess.Popen([sys.executable, "-c", code, str(path), str(tmp_path / "out")], cwd=ROOT,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip

    def sleeping() -> bool:
        return any(p.info["cmdline"] == ["sleep", "179"] for p in psutil.process_iter(["cmdline"]))

    wait_for(sleeping, "the cell", within=LIMIT_S)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert not sleeping() and not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_the_same_text_makes_the_same_notebook(tmp_path):
    path = text_of(tmp_path, "a = 1", "b = 2")
    assert chapters.written(chapters.notebook_of(path)) == chapters.written(chapters.notebook_of(path))
    assert [cell.id for cell in chapters.notebook_of(path).cells] == ["cell-01", "cell-02", "cell-03"]


def test_a_notebook_of_another_text_is_not_current(tmp_path):
    path = text_of(tmp_path, "a = 1")
    out = tmp_path / "out"
    out.mkdir()
    assert not chapters.is_current(path, to=out)
    for made, full, quick in (({"quick": False}, True, True), ({"quick": True}, False, True)):
        notebook = {"metadata": {"course": made | {"text": chapters.digest(path)}}}
        (out / "01_small.ipynb").write_text(json.dumps(notebook))
        assert (chapters.is_current(path, to=out), chapters.is_current(path, True, out)) == (full, quick)
    path.write_text(path.read_text() + "more")
    assert not chapters.is_current(path, True, out)


def test_a_chapter_that_there_is_not():
    with pytest.raises(UserError, match="no chapter begins with '99'"):
        chapters.chapters("99")
