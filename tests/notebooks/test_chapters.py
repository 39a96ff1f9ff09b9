"""The chapters: their form, and their notebooks. That each can be executed is tested in test_run_*.py."""

import json
import re

import pytest

from bench.course import chapters, chinese_notebooks, guesses, site, translation
from bench.course.chapters import MOST_BYTES
from bench.files import PROJECT
from tests.runs import refuses

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")

TEXTS = sorted(chapters.TUTORIALS.glob("[0-9][0-9]_*.md"))
MOST_LINES = 10  # of a code cell
ENDING = ["The answer", "What surprised us", "Summary", "Exercises"]

pytestmark = pytest.mark.quick
each_chapter = pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.stem)


def cells(path, kind: str) -> list[str]:
    return [cell.source for cell in chapters.notebook_of(path).cells if cell.cell_type == kind]


def prose(path) -> str:
    text = "\n\n".join(cells(path, "markdown"))
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def section(path, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


@each_chapter
def test_the_form_of_a_chapter(path):
    """Its headings; a head that says what one can do afterwards, the minutes and what it needs; a guess that comes
    back; three exercises with a hint and an answer each, and the problem set."""
    text = path.read_text()
    assert re.search(rf"\A(---\n.*?\n---\n+)?# {int(path.name[:2])}\. \S", text, re.DOTALL), "no `# N. Title`"
    headings = re.findall(r"^## (.+)$", prose(path), re.MULTILINE)
    assert headings[0] == "A prediction" and headings[-4:] == ENDING and len(headings) > 5
    assert re.findall(r"^# (?!#)", prose(path), re.MULTILINE) == ["# "], "one title"

    head = text.partition("\n## ")[0]
    news = ["**New since the last chapter.**", "**What you need.**"][: 2 if path.name.startswith("01") else 1]
    parts = ["**Question.**", "?", "**After this chapter** you can", "**Time:**", "**Needs:**"]
    places = [head.find(part) for part in parts]
    assert -1 not in places and places == sorted(places) and any(new in head[places[0] :] for new in news)
    assert re.search(r"\*\*Time:\*\*\s\d+\sminutes\sto\sread", head)

    asked = guesses.questions(chapters.notebook_of(path))
    later = text.partition("## A prediction")[2]
    assert asked and not [g for g in asked if not re.search(rf"compare_guess\(.*\b{g}={g}\)", later, re.DOTALL)]
    assert all(asked.values()), "the comment of a guess is the label of its box"

    exercises = section(path, "Exercises")
    assert re.findall(r"^(\d+)\. ", exercises, re.MULTILINE) == ["1", "2", "3"]
    assert f"exercises/{path.name}" in exercises.strip().rpartition("\n\n")[2]
    for exercise in re.split(r"^\d+\. ", exercises, flags=re.MULTILINE)[1:]:
        found = re.findall(r"^   <details><summary>(.*?)</summary>(.*?)</details>$", exercise, re.MULTILINE | re.DOTALL)
        assert [title for title, _ in found] == ["Hint", "Answer"] and all(text.strip() for _, text in found), exercise
        assert exercise.count("<details>") == 2, exercise
    assert len(re.findall(r"^[-*] ", section(path, "Summary"), re.MULTILINE)) in (0, 3, 4, 5, 6)


@each_chapter
def test_code_cells_are_short_and_have_no_shell_lines(path):
    codes = cells(path, "code")
    assert re.search(r"^from bench import .*\bcourse\b", "\n".join(codes[:2]), re.MULTILINE)  # imports may need two
    for code in codes:
        lines = code.splitlines()
        assert len(lines) <= MOST_LINES, f"{len(lines)} lines:\n{code}"
        assert not [line for line in lines if line.lstrip().startswith("!")], code
        assert all(line.startswith("%%writefile") for line in lines if line.startswith("%")), code


@each_chapter
def test_formulas_can_be_drawn_without_a_script_from_elsewhere(path):
    """As the site draws them. A pair of dollar signs in a line of prose would be a formula, too."""
    from matplotlib.mathtext import MathTextParser

    for formula in re.findall(r"\$\$(.+?)\$\$|\$([^$\n\s\d][^$\n]*)\$", prose(path), re.DOTALL):
        MathTextParser("path").parse(f"${' '.join(''.join(formula).split())}$")


@pytest.mark.parametrize("path", [*TEXTS, *translation.own_chapters()], ids=lambda p: p.stem)
def test_the_notebook_is_the_text_with_what_its_code_gave_at_full_size(path):
    text, remedy = path.with_suffix(".ipynb").read_text(), f"make notebooks PAIR=1 NAME={path.stem}"
    assert text == chapters.written(chapters.notebook_to_commit(path)), remedy
    notebook = json.loads(text)
    made = notebook["metadata"].get("course")
    assert made, f"its code is newer than its outputs: make notebooks OUTPUTS=1 NAME={path.stem}"
    assert made["where"] and not made["quick"]
    assert len(text) <= MOST_BYTES and str(PROJECT) not in text
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]


def test_chinese_notebooks_keep_code_and_outputs_and_their_links_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(chinese_notebooks, "FOLDER", tmp_path / "build" / "zh")
    monkeypatch.setattr(chapters, "BUILD", tmp_path / "build")
    monkeypatch.setattr(chinese_notebooks, "PROJECT", tmp_path)
    with refuses("EDITION=zh", "02_data_parallel"):
        chinese_notebooks.write_all("02")
    assert chinese_notebooks.write_all("04,05,02") == 0
    assert "not translated: 02_data_parallel\n" in capsys.readouterr().out
    (edited := chinese_notebooks.FOLDER / "04_ddp.ipynb").write_text("a reader's answers")
    assert chinese_notebooks.write_all("04", keep=True) == 0 and edited.read_text() == "a reader's answers"
    assert chinese_notebooks.write_all("04") == 0
    made = [path for path in chapters.chapters() if translation.Page.of(path).chinese.exists()]
    for path in chapters.chapters("04,05"):
        ours = chapters.read_notebook(chinese_notebooks.FOLDER / f"{path.stem}.ipynb")
        english = chapters.notebook_to_commit(path)
        assert chapters.code_digest(ours) == chapters.code_digest(english)
        assert [c.outputs for c in chapters.code_cells(ours)] == [c.outputs for c in chapters.code_cells(english)]
        texts = [cell.source for cell in ours.cells if cell.cell_type == "markdown"]
        assert all(re.search(r"[\u4e00-\u9fff]", source) for source in texts)
        found = [
            match["target"] for text in texts for form in (site.LINK, site.PICTURE) for match in form.finditer(text)
        ]
        files = [target.partition("#")[0] for target in found if target and not re.match(r"[a-z]+:|#", target)]
        built = {f"{path.stem}.ipynb" for path in [*made, *translation.own_chapters()]}
        assert files and not [f for f in files if f not in built and not (chinese_notebooks.FOLDER / f).exists()]


def test_a_translated_heading_keeps_the_english_anchor():
    """Of its first line, without the target of a link."""
    heading = "## The `loss` of [a page](page.md)\nand a line"
    texts = {translation.digest(heading): "## 损失"}
    assert chinese_notebooks.translated(heading, texts) == '<a id="the-loss-of-a-page"></a>\n\n## 损失'
