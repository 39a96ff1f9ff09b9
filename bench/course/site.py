"""`bench site`: executed chapters, manual and problem sets as HTML pages that load nothing from other hosts.

Input: ``tutorials/`` and the notebooks executed here, or else the committed outputs; a chapter without either is
executed. Output: ``build/site``, to be opened from disk or put on any server. Style, scripts and interactive figures:
``tutorials/site``.
"""

import copy
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.course import chapters, figures, guesses, landing
from bench.course.chapters import BUILD, TUTORIALS, required
from bench.course.exercises.text import without_solutions
from bench.course.outputs import captions, describe_images, fold_code, fold_long_outputs
from bench.errors import RunFailed
from bench.files import PROJECT
from bench.process.tree import capture

SITE = PROJECT / "build" / "site"
LOOK = PROJECT / "tutorials" / "site"  # conf.py and the style sheet
LIMIT_S = 600
READ = '<p class="chapter-end"><label><input type="checkbox" data-read="{name}"> I have read this chapter</label></p>'

CODE, TARGET = r"`[^`\n]+`", r"\((?P<target>[^()\s]+)\)"  # inline code first, because no link starts in it
LINK = re.compile(rf"{CODE}|(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]{TARGET}")
PICTURE = re.compile(rf"{CODE}|!\[(?P<text>[^\]]*)\]{TARGET}")
FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*?$", re.MULTILINE | re.DOTALL)


def build(quick: bool = False, tutorials: Path = TUTORIALS, notebooks: Path = BUILD, to: Path = SITE) -> Path:
    """Returns the first page. Raises RunFailed when a chapter fails, and for every warning of Sphinx."""
    for module in ("sphinx", "myst_nb", "sphinx_book_theme"):
        required(module)
    texts = chapters.reading_order(Path(tutorials))
    shown = {path: chapters.find_or_execute(path, quick, notebooks) for path in texts}
    source = to.with_name(f"{to.name}-source")
    for folder in (source, to):
        shutil.rmtree(folder, ignore_errors=True)
    notebooks = assemble(shown, Path(tutorials), source)
    render(source, to)
    for path, notebook in notebooks.items():  # for the button that downloads one
        write(to / "_sources" / f"{path.stem}.ipynb", chapters.written(notebook))
    return to / "index.html"


def render(source: Path, to: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-E"]
    command += ["-d", str(to.with_name(f"{to.name}-doctrees")), "-c", str(LOOK), str(source), str(to)]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    done = capture(command, LIMIT_S, env=environment)
    if done.code is None:
        raise RunFailed(f"Sphinx was not ready within {LIMIT_S} s")
    if done.code:
        lines = [line for line in done.err.splitlines() if line.strip()] or ["it printed nothing"]
        raise RunFailed("Sphinx: " + "\n".join(lines[:20]).replace(f"{source}{os.sep}", ""))


# --- Input of Sphinx --------------------------------------------------------------------------------------------------


def assemble(shown: dict[Path, Path], tutorials: Path, source: Path) -> dict:
    """Write all pages to a folder for Sphinx. shown: chapter -> executed notebook. Returns chapter -> notebook."""
    texts = list(shown)
    others = sorted(path for path in tutorials.glob("*.md") if path not in texts and path.name != "README.md")
    sets = sorted((tutorials / "exercises").glob("[0-9][0-9]_*.md"))
    manual = sorted((tutorials / "manual").glob("*.md"))
    pages = {f"{path.stem}{end}": f"{path.stem}.ipynb" for path in texts for end in (".md", ".ipynb")}
    pages |= {place: place for place in (str(path.relative_to(tutorials)) for path in [*others, *sets, *manual])}
    pages |= {"README.md": "index.md", "exercises/README.md": "exercises/index.md", "exercises": "exercises/index.md"}

    notebooks = {path: chapter_notebook(path, shown[path], pages) for path in texts}
    for path, notebook in notebooks.items():
        write(source / f"{path.stem}.ipynb", chapters.written(chapter_page(notebook, path)))
    for path in [*others, *sets, *manual]:
        place = str(path.relative_to(tutorials))
        text = without_solutions(path.read_text()) if path in sets else path.read_text()
        text = figures.embed(resolve_links(text, place, pages), "../" * place.count("/"))
        write(source / place, copy_pictures(text, path, source / place, source))

    text = resolve_links((tutorials / "exercises" / "README.md").read_text(), "exercises/README.md", pages)
    write(source / "exercises" / "index.md", text + toctree("", [path.stem for path in sets]))
    index = landing.with_start((tutorials / "README.md").read_text(), LOOK / "start.md", notebooks)
    index = resolve_links(index, "README.md", pages)
    index += toctree("Chapters", [path.stem for path in texts])
    index += toctree("Manual", [f"manual/{path.stem}" for path in manual])
    index += toctree("More", ["exercises/index", *(path.stem for path in others)])
    write(source / "index.md", index)
    return notebooks


def chapter_notebook(path: Path, executed: Path, pages: dict[str, str]):
    """A chapter with its outputs, which readers can download."""
    notebook = chapters.notebook_of(path)  # the text may be newer than the outputs
    chapters.take_outputs(chapters.read_notebook(executed), notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = resolve_links(cell.source, executed.name, pages)
    made = notebook.metadata["course"]
    sizes = ", at the small sizes that a test uses" if made["quick"] else ""
    head, heading, rest = notebook.cells[0].source.partition("\n## ")
    note = f"*The outputs on this page: {made['where']}{sizes}.*"
    notebook.cells[0].source = f"{head.rstrip()}\n\n{note}\n{heading}{rest}"
    return notebook


def chapter_page(notebook, path: Path):
    """A copy with what only the page has: interactive figures, boxes for guesses, folds, alternative texts."""
    page = copy.deepcopy(notebook)
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source = figures.embed(cell.source)
    add_guess_boxes(page, path.stem)
    describe_images(page, captions(path.read_text()))
    fold_long_outputs(page)
    fold_code(page)
    page.cells.append(chapters.required("nbformat").v4.new_markdown_cell(READ.format(name=path.stem), id="cell-read"))
    return page


def add_guess_boxes(notebook, chapter: str) -> None:
    """Below each cell that asks for a guess, a box that the page remembers; its measured value is an HTML output."""
    nbformat, asked = chapters.required("nbformat"), {id(cell) for cell in guesses.cells_of_section(notebook)}
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if id(cell) in asked:
            fields = [(match["name"], match["question"] or "") for match in guesses.ASKED.finditer(cell.source)]
            boxes = [guesses.box(chapter, name, guesses.question(text)) for name, text in fields]
            cells.append(nbformat.v4.new_markdown_cell("\n".join(boxes), id=f"{cell.id}-guess"))
        for output in cell.get("outputs", []):
            if guesses.MIME in output.get("data", {}):
                output["data"] = {
                    "text/html": guesses.answer(chapter, output),
                    "text/plain": output["data"]["text/plain"],
                }
    notebook.cells = cells


def resolve_links(text: str, page: str, pages: dict[str, str]) -> str:
    """Point links to pages of the site. A link to another file of the repository becomes its text.

    page: the text's path below ``tutorials``. pages: path below ``tutorials`` -> path on the site.

    >>> pages = {"03_a.md": "03_a.ipynb"}
    >>> resolve_links("[a](03_a.md#x), [`b`](../Makefile), `[c](d.md)`, [e](https://e.org)", "README.md", pages)
    '[a](03_a.ipynb#x), `b`, `[c](d.md)`, [e](https://e.org)'
    """
    here = posixpath.dirname(page)

    def resolve(match: re.Match) -> str:
        target, hash_sign, anchor = match["target"].partition("#")
        if not target:
            return match[0]
        place = pages.get(posixpath.normpath(posixpath.join(here, target)))
        if place is None:
            return match["text"]
        return f"[{match['text']}]({posixpath.relpath(place, here or '.')}{hash_sign}{anchor})"

    return replace_targets(LINK, resolve, text)


def copy_pictures(text: str, path: Path, page: Path, source: Path) -> str:
    """Copy a text's pictures to ``source/pictures``, and point to the copies. page: the file that the text becomes."""

    def copy(match: re.Match) -> str:
        file = (path.parent / match["target"]).resolve()
        target = source / "pictures" / "-".join(file.parts[-3:])  # two folders may have a file of the same name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return f"![{match['text']}]({os.path.relpath(target, page.parent)})"

    return replace_targets(PICTURE, copy, text)


def replace_targets(pattern: re.Pattern, replace: Callable[[re.Match], str], text: str) -> str:
    def replace_file(match: re.Match) -> str:
        is_file = match["target"] is not None and not re.match(r"[a-z]+:", match["target"])
        return replace(match) if is_file else match[0]

    return "".join(piece if is_code else pattern.sub(replace_file, piece) for is_code, piece in split_code(text))


def split_code(text: str) -> list[tuple[bool, str]]:
    """A Markdown text in pieces: (whether it is a code fence, piece)."""
    pieces, end = [], 0
    for match in FENCE.finditer(text):
        pieces += [(False, text[end : match.start()]), (True, match[0])]
        end = match.end()
    return [*pieces, (False, text[end:])]


def toctree(caption: str, entries: list[str]) -> str:
    lines = [":hidden:", *([f":caption: {caption}"] if caption else []), "", *entries]
    return "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n" if entries else ""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
