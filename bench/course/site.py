"""The course as a site: the executed chapters, the manual and the problem sets as HTML pages that load nothing from
outside.

What comes in: ``tutorials/`` and the notebooks that `bench notebooks` has executed here, or else the committed
outputs; a chapter whose code has neither is executed first. What goes out: ``build/site``, opened from the disk or put
on any server. The look is in ``tutorials/site``.
"""

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

from bench.course import chapters
from bench.course.chapters import BUILD, TUTORIALS, required
from bench.course.exercises.text import without_solutions
from bench.errors import RunFailed
from bench.files import PROJECT
from bench.process.tree import capture

SITE = PROJECT / "build" / "site"
LOOK = PROJECT / "tutorials" / "site"  # conf.py and the style sheet
LIMIT_S = 600

INDEX = "# The course\n\nTutorial chapters on data-parallel training.\n"
EXERCISES = "# Problem sets\n\nOne for each chapter.\n"
CODE, TARGET = r"`[^`\n]+`", r"\((?P<target>[^()\s]+)\)"  # code within a line: no link begins in it
LINK = re.compile(rf"{CODE}|(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]{TARGET}")
PICTURE = re.compile(rf"{CODE}|!\[(?P<text>[^\]]*)\]{TARGET}")
FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*?$", re.MULTILINE | re.DOTALL)


def build(quick: bool = False, tutorials: Path = TUTORIALS, notebooks: Path = BUILD, to: Path = SITE) -> Path:
    """Make the site; returns its first page. quick: chapters that must be executed are, at the small sizes.

    tutorials: the folder of the texts. notebooks: of the executed chapters. Raises RunFailed when a chapter fails, or
    when Sphinx finds fault with a text: each of its warnings is an error.
    """
    for module in ("sphinx", "myst_nb", "sphinx_book_theme"):
        required(module)
    texts = sorted(Path(tutorials).glob("[0-9][0-9]_*.md"))
    shown = {path: chapters.shown(path, quick, notebooks) for path in texts}
    source = to.with_name(f"{to.name}-source")
    for folder in (source, to):
        shutil.rmtree(folder, ignore_errors=True)
    assemble(shown, Path(tutorials), source)
    render(source, to)
    return to / "index.html"


def render(source: Path, to: Path) -> None:
    """Have Sphinx make the pages. Raises RunFailed with its first complaint."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-E"]
    command += ["-d", str(to.with_name(f"{to.name}-doctrees")), "-c", str(LOOK), str(source), str(to)]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    done = capture(command, LIMIT_S, env=environment)
    if done.code is None:
        raise RunFailed(f"Sphinx was not ready within {LIMIT_S} s")
    if done.code:
        said = [line for line in done.err.splitlines() if line.strip()] or ["it printed nothing"]
        raise RunFailed("Sphinx: " + "\n".join(said[:20]).replace(f"{source}{os.sep}", ""))


# --- What Sphinx is given -------------------------------------------------------------------------------------------


def assemble(shown: dict[Path, Path], tutorials: Path, source: Path) -> None:
    """Lay out all pages in a folder for Sphinx.

    shown: chapter -> the notebook with its outputs. Pages keep their places: ``03_name.md`` is a notebook here, a
    README the index of its folder, and a problem set has no solutions, hidden tests or rubrics.
    """
    texts = list(shown)
    others = sorted(path for path in tutorials.glob("*.md") if path not in texts and path.name != "README.md")
    sets = sorted((tutorials / "exercises").glob("[0-9][0-9]_*.md"))
    manual = sorted((tutorials / "manual").glob("*.md"))
    pages = {path.name: f"{path.stem}.ipynb" for path in texts}
    pages |= {f"{path.stem}.ipynb": f"{path.stem}.ipynb" for path in texts}
    pages |= {place: place for place in (str(path.relative_to(tutorials)) for path in [*others, *sets, *manual])}
    pages |= {"README.md": "index.md", "exercises/README.md": "exercises/index.md", "exercises": "exercises/index.md"}

    for path in texts:
        notebook = as_page(path, shown[path], pages)
        write(source / f"{path.stem}.ipynb", chapters.written(notebook))
    for path in [*others, *sets, *manual]:
        place = str(path.relative_to(tutorials))
        text = without_solutions(path.read_text()) if path in sets else path.read_text()
        write(source / place, with_pictures(inside(text, place, pages), path, source / place, source))
    exercises = inside(read(tutorials / "exercises" / "README.md", EXERCISES), "exercises/README.md", pages)
    write(source / "exercises" / "index.md", exercises + contents("", [path.stem for path in sets]))
    index = inside(read(tutorials / "README.md", INDEX), "README.md", pages)
    index += contents("Chapters", [path.stem for path in texts])
    index += contents("Manual", [f"manual/{path.stem}" for path in manual])
    index += contents("More", ["exercises/index", *(path.stem for path in others)])
    write(source / "index.md", index)


def as_page(path: Path, executed: Path, pages: dict[str, str]):
    """An executed chapter as a page of the site: its links lead to pages, and it says where it was executed."""
    notebook = chapters.notebook_of(path)  # its words may be newer
    chapters.take_outputs(required("nbformat").read(executed, 4), notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = inside(cell.source, executed.name, pages)
    made = notebook.metadata["course"]
    sizes = ", at the small sizes that a test uses" if made["quick"] else ""
    head, heading, rest = notebook.cells[0].source.partition("\n## ")
    said = f"*The outputs on this page: {made['where']}{sizes}.*"
    notebook.cells[0].source = f"{head.rstrip()}\n\n{said}\n{heading}{rest}"
    return notebook


def inside(text: str, page: str, pages: dict[str, str]) -> str:
    """A Markdown text whose links lead to pages of the site. A link to another file of the repository becomes its text;
    one to the web stays.

    page: the text's path below ``tutorials``. pages: such place -> place on the site.

    >>> pages = {"03_a.md": "03_a.ipynb"}
    >>> inside("[a](03_a.md#x), [`b`](../Makefile), `[c](d.md)`, [e](https://e.org)", "README.md", pages)
    '[a](03_a.ipynb#x), `b`, `[c](d.md)`, [e](https://e.org)'
    """
    here = posixpath.dirname(page)

    def led(match: re.Match) -> str:
        if match["target"] is None:
            return match[0]
        target, hash_sign, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", target) or not target:
            return match[0]
        place = pages.get(posixpath.normpath(posixpath.join(here, target)))
        if place is None:
            return match["text"]
        return f"[{match['text']}]({posixpath.relpath(place, here or '.')}{hash_sign}{anchor})"

    return "".join(piece if is_code else LINK.sub(led, piece) for is_code, piece in split_code(text))


def with_pictures(text: str, path: Path, page: Path, source: Path) -> str:
    """A Markdown text whose pictures lie in the site: files of the repository are copied to ``source/pictures``.

    path: the text's own file, from which its pictures are named. page: the file that it becomes.
    """

    def copied(match: re.Match) -> str:
        if match["target"] is None or re.match(r"[a-z]+:", match["target"]):
            return match[0]
        file = (path.parent / match["target"]).resolve()
        copy = source / "pictures" / "-".join(file.parts[-3:])  # two folders may have a file of one name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        return f"![{match['text']}]({os.path.relpath(copy, page.parent)})"

    return "".join(piece if is_code else PICTURE.sub(copied, piece) for is_code, piece in split_code(text))


def split_code(text: str) -> list[tuple[bool, str]]:
    """A Markdown text in pieces: (whether it is a fence of code, piece)."""
    pieces, end = [], 0
    for match in FENCE.finditer(text):
        pieces += [(False, text[end : match.start()]), (True, match[0])]
        end = match.end()
    return [*pieces, (False, text[end:])]


def contents(caption: str, entries: list[str]) -> str:
    """A table of contents for the margin; none for no entries."""
    lines = [":hidden:", *([f":caption: {caption}"] if caption else []), "", *entries]
    return "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n" if entries else ""


def read(path: Path, stand_in: str) -> str:
    return path.read_text() if path.exists() else stand_in


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
