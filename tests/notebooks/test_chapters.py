"""The chapters: their form, and their notebooks. That each can be executed is tested in test_run_*.py."""

import json
import re
import subprocess
import sys

import pytest

from bench.course import chapters
from bench.course.chapters import MOST_BYTES
from bench.files import PROJECT
from tests.runs import ROOT

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")

TEXTS = sorted(chapters.TUTORIALS.glob("[0-9][0-9]_*.md"))
MOST_LINES = 10  # of a code cell
ENDING = ["The answer", "What surprised us", "Summary", "Exercises"]

pytestmark = pytest.mark.quick
each_chapter = pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.stem)


def cells(path, kind: str) -> list[str]:
    return [cell.source for cell in chapters.notebook_of(path).cells if cell.cell_type == kind]


def prose(path) -> str:
    """The text without its code cells, fences and inline code."""
    text = "\n\n".join(cells(path, "markdown"))
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def section(path, title: str) -> str:
    """What is below one heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


# --- Form -----------------------------------------------------------------------------------------------------------


@each_chapter
def test_the_headings_are_in_order(path):
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
def test_it_begins_with_what_one_can_do_afterwards_the_minutes_and_what_it_needs(path):
    head = path.read_text().partition("**New since")[0]
    places = [
        head.find(part) for part in ("**Question.**", "**After this chapter** you can", "**Time:**", "**Needs:**")
    ]
    assert -1 not in places and places == sorted(places)
    assert re.search(r"\*\*Time:\*\*\s\d+\sminutes\sto\sread", head)


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
def test_each_exercise_unfolds_one_hint_and_one_answer(path):
    """Below its number and indented, so that Markdown counts on after it; first the hint."""
    exercises = re.split(r"^\d+\. ", section(path, "Exercises"), flags=re.MULTILINE)[1:]
    for exercise in exercises:
        found = re.findall(r"^   <details><summary>(.*?)</summary>(.*?)</details>$", exercise, re.MULTILINE | re.DOTALL)
        assert [title for title, _ in found] == ["Hint", "Answer"], exercise
        assert exercise.count("<details>") == 2 and all(text.strip() for _, text in found), exercise


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
    notebook, remedy = path.with_suffix(".ipynb"), f"make notebooks PAIR=1 NAME={path.name[:2]}"
    assert notebook.exists(), remedy
    assert notebook.read_text() == chapters.written(chapters.paired(path)), remedy


@each_chapter
def test_the_notebook_shows_what_its_code_gave_at_full_size(path):
    text = path.with_suffix(".ipynb").read_text()
    notebook = json.loads(text)
    made = notebook["metadata"].get("course")
    assert made, f"its code is newer than its outputs: make notebooks OUTPUTS=1 NAME={path.name[:2]}"
    assert made["where"] and not made["quick"]
    assert len(text) <= MOST_BYTES and str(PROJECT) not in text
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]


def test_the_code_is_in_the_projects_style():
    pytest.importorskip("ruff", reason="ruff is not installed")
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "tutorials"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
