"""Slides of a chapter: one HTML file that needs no network, made from the chapter's text and its outputs.

A section gives a slide for each of its cells: the paragraph above the cell, the cell, and what it showed. A cell that
shows nothing and has no text below it stands with the next one, if both are short. The rest of the section's text is in
the notes, which the key N shows; text below the last cell is a slide of its own. Cells that only import, or ask for the
reader's guess, are left out; so are the exercises.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.course import chapters
from bench.course.formula import picture
from bench.course.illustrations import without_pictures
from bench.errors import UserError
from bench.files import PROJECT, written_whole

SLIDES = PROJECT / "build" / "slides"
TEMPLATE = "slides.html.j2"
LEFT_OUT = ("Exercises",)  # sections
MOST_LINES = 14  # of code on a slide that has two cells
SHOWN = ("image/svg+xml", "image/png", "text/html", "text/plain")  # of an output with several forms, the first


@dataclass
class Slide:
    """title: the section's. text and notes: HTML. code: highlighted HTML, "" for none. outputs: HTML of each."""

    title: str
    text: str
    code: str = ""
    outputs: list[str] = field(default_factory=list)
    notes: str = ""


def build(names: str | None = None, to: Path = SLIDES, notebooks: Path = chapters.BUILD) -> list[Path]:
    """Make the slides of all chapters, or of those that ``names`` begin; returns their files.

    The outputs are those of the last `bench notebooks` here, or else the committed ones; a chapter that has neither is
    executed. Raises UserError for a name that no chapter has, RunFailed when a chapter fails.
    """
    return [of_chapter(path, to, notebooks) for path in chapters.chapters(names)]


def of_chapter(path: Path, to: Path = SLIDES, notebooks: Path = chapters.BUILD) -> Path:
    """Make the slides of one text; returns the file."""
    import jinja2

    notebook = chapters.notebook_of(path)
    chapters.take_outputs(chapters.required("nbformat").read(chapters.shown(path, to=notebooks), 4), notebook)
    slides = list(slides_of(notebook))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template(TEMPLATE).render(
        slides=slides, title=slides[0].title, where=notebook.metadata["course"]["where"], style=code_style()
    )
    to.mkdir(parents=True, exist_ok=True)
    with written_whole(to / f"{path.stem}.html") as temporary:
        temporary.write_text(page)
    return to / f"{path.stem}.html"


def slides_of(notebook) -> Iterator[Slide]:
    """The slides in the order of the text; the first has the chapter's title. Raises UserError for a text without."""
    title, text, code = "", [], ""  # since the section's last slide: paragraphs, and a cell that showed nothing
    for cell in notebook.cells:
        if cell.cell_type == "code":
            if is_set_up(cell.source) or title in LEFT_OUT:
                continue
            both = f"{code}\n\n{cell.source}" if code else cell.source
            if code and both.count("\n") >= MOST_LINES:
                yield slide(title, text, code, [])
                text, both = [], cell.source
            if cell.outputs:
                yield slide(title, text, both, cell.outputs)
                text, code = [], ""
            else:
                code = both
            continue
        if code:
            yield slide(title, text, code, [])
            text, code = [], ""
        for paragraph in paragraphs(cell.source):
            heading = re.fullmatch(r"#{1,2} (.+)", paragraph)
            if heading is None:
                text.append(paragraph)
                continue
            yield from remaining(title, text)
            title, text = heading[1], []
    if code:
        yield slide(title, text, code, [])
    else:
        yield from remaining(title, text)
    if not title:
        raise UserError("the text has no title, and so no slides")


def slide(title: str, text: list[str], code: str, outputs: list) -> Slide:
    """The slide of a cell: the last paragraph is shown, those before are notes."""
    *before, last = text or [""]
    return Slide(title, as_html(last), as_code(code), list(map(as_output, outputs)), as_html("\n\n".join(before)))


def remaining(title: str, text: list[str]) -> Iterator[Slide]:
    """A slide of the text below a section's last cell."""
    if text and title not in LEFT_OUT:
        yield Slide(title, as_html("\n\n".join(text)))


def paragraphs(text: str) -> list[str]:
    """The blocks of a Markdown text: what empty lines divide, a fence whole.

    >>> paragraphs("# A\\n\\nb\\nc\\n\\n```\\nd\\n\\ne\\n```")
    ['# A', 'b\\nc', '```\\nd\\n\\ne\\n```']
    """
    return [block.strip("\n") for block in re.findall(r"```.*?^```|(?:(?!```)[^\n]+\n?)+", text + "\n", re.M | re.S)]


def is_set_up(code: str) -> bool:
    """Whether a cell only imports, or only asks for the reader's guess.

    >>> is_set_up("import torch\\n\\nfrom bench import course"), is_set_up("guess = None  # your number")
    (True, True)
    >>> is_set_up("from bench import course\\n\\ncourse.bench()")
    False
    """
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("#", "    ", ")"))]
    return all(re.match(r"import |from |\w+ = None\b|torch\.set_num_threads", line) for line in lines)


# --- As HTML ---------------------------------------------------------------------------------------------------------


def as_html(text: str) -> str:
    """Markdown as HTML: links as their words, for a slide is no page of the site; formulas as pictures."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def formula(content: str, options: dict) -> str:
        return picture(content, "block" if options["display_mode"] else "inline")

    reader = MarkdownIt("commonmark").enable("table")
    reader.use(dollarmath_plugin, renderer=formula, allow_space=False, allow_digits=False)
    words = re.sub(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()\s]+\)", r"\1", without_pictures(text))
    return reader.render(words)


def as_code(code: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return highlight(code, PythonLexer(), HtmlFormatter())


def code_style() -> str:
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter().get_style_defs(".highlight")


def as_output(output) -> str:
    """One output: the first form in the order of SHOWN."""
    data = output.get("data", {})
    kind = next((kind for kind in SHOWN if kind in data), None)
    if kind == "image/png":
        return f'<img alt="" src="data:image/png;base64,{data[kind]}">'
    if kind in ("image/svg+xml", "text/html"):
        return data[kind]
    return f"<pre>{html.escape(data.get('text/plain', output.get('text', '')))}</pre>"
