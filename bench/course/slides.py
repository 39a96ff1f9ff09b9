"""`bench site slides`: a chapter's slides as one HTML file without external resources.

Each cell with an output gives a slide: the paragraph above it, the cell, and its output. A short cell without output
shares the slide of the next one. The rest of the section's text goes to the notes (key N); text below the last cell is
a slide. Left out: cells that only import or ask for the reader's guess, and the exercises.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.course import chapters
from bench.course.formulas import picture
from bench.course.outputs import is_set_up, texts_of
from bench.errors import UserError
from bench.files import PROJECT

SLIDES = PROJECT / "build" / "slides"
LEFT_OUT = ("Exercises",)  # sections
MOST_LINES = 14  # of code on a slide with two cells
SHOWN = ("image/svg+xml", "image/png", "text/html", "text/plain")  # of an output with several forms, the first one


@dataclass
class Slide:
    """title: of the section. text, code, notes, each of outputs: HTML."""

    title: str
    text: str
    code: str = ""
    outputs: list[str] = field(default_factory=list)
    notes: str = ""


def build(names: str | None = None, to: Path = SLIDES, notebooks: Path = chapters.BUILD) -> list[Path]:
    """The files of all chapters, or of ``names`` (as in ``select``). Chapters without outputs are executed."""
    return [of_chapter(path, to, notebooks) for path in chapters.chapters(names)]


def of_chapter(path: Path, to: Path = SLIDES, notebooks: Path = chapters.BUILD) -> Path:
    import jinja2
    from pygments.formatters import HtmlFormatter

    notebook = chapters.notebook_of(path)
    chapters.take_outputs(chapters.read_notebook(chapters.find_or_execute(path, to=notebooks)), notebook)
    slides = list(slides_of(notebook))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("slides.html.j2").render(
        slides=slides, title=slides[0].title, where=notebook.metadata["course"]["where"],
        style=HtmlFormatter().get_style_defs(".highlight"),
    )  # fmt: skip
    to.mkdir(parents=True, exist_ok=True)
    chapters.write_text(to / f"{path.stem}.html", page)
    return to / f"{path.stem}.html"


def slides_of(notebook) -> Iterator[Slide]:
    """The slides in the order of the text; the first has the chapter's title. Raises UserError without a title."""
    title, text, code = "", [], ""  # since the section's last slide: paragraphs, and a cell without output

    def slide(code: str, outputs: list) -> Slide:
        *before, last = text or [""]
        return Slide(title, as_html(last), as_code(code), list(map(as_output, outputs)), as_html("\n\n".join(before)))

    def remaining() -> Iterator[Slide]:
        if code:
            yield slide(code, [])
        elif text and title not in LEFT_OUT:
            yield Slide(title, as_html("\n\n".join(text)))

    for cell in notebook.cells:
        if cell.cell_type == "code":
            if is_set_up(cell.source) or title in LEFT_OUT:
                continue
            both = f"{code}\n\n{cell.source}" if code else cell.source
            if code and both.count("\n") >= MOST_LINES:
                yield slide(code, [])
                text, both = [], cell.source
            if cell.outputs:
                yield slide(both, cell.outputs)
                text, code = [], ""
            else:
                code = both
            continue
        if code:
            yield slide(code, [])
            text, code = [], ""
        for paragraph in paragraphs(cell.source):
            if heading := re.fullmatch(r"#{1,2} (.+)", paragraph):
                yield from remaining()
                title, text = heading[1], []
            else:
                text.append(paragraph)
    yield from remaining()
    if not title:
        raise UserError("the text has no title: no slides were written")


def paragraphs(text: str) -> list[str]:
    """The blocks of a Markdown text; a fence is one block."""
    return [block.strip("\n") for block in re.findall(r"```.*?^```|(?:(?!```)[^\n]+\n?)+", text + "\n", re.M | re.S)]


def as_html(text: str) -> str:
    """Links become their text, because their targets are not slides."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def formula(content: str, options: dict) -> str:
        return picture(content, "block" if options["display_mode"] else "inline")

    reader = MarkdownIt("commonmark").enable("table")
    reader.use(dollarmath_plugin, renderer=formula, allow_space=False, allow_digits=False)
    text = chapters.without_pictures(text)
    return reader.render(re.sub(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()\s]+\)", r"\1", text))


def as_code(code: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return highlight(code, PythonLexer(), HtmlFormatter())


def as_output(output) -> str:
    data = output.get("data", {})
    kind = next((kind for kind in SHOWN if kind in data), None)
    if kind == "image/png":
        alt = html.escape(" ".join(texts_of(output)), quote=True)
        return f'<img alt="{alt}" src="data:image/png;base64,{data[kind]}">'
    if kind in ("image/svg+xml", "text/html"):
        return data[kind]
    return f"<pre>{html.escape(data.get('text/plain', output.get('text', '')))}</pre>"
