"""Cells on the site: long code and long outputs folded, images with alternative texts."""

import html
import re
from collections.abc import Callable

from bench.course.guesses import CELL

MOST_CODE, MOST_OUTPUT = 15, 25  # lines that are shown unfolded
MOST_TEXTS = 12  # of a drawing, in its alternative text
CAPTION = re.compile(r"\n\n!\[(?P<caption>[^\]]+)\]\([^)\s]+\)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def fold_code(notebook) -> None:
    """Fold a cell that only imports or asks for a guess, and a long one."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and (cell.source.count("\n") >= MOST_CODE or is_set_up(cell.source)):
            tags = cell.metadata.setdefault("tags", [])
            if "hide-input" not in tags:
                tags.append("hide-input")


def is_set_up(code: str) -> bool:
    """Whether a cell only imports, or only asks for the reader's guess."""
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("#", "    ", ")"))]
    return all(re.match(r"import |from |\w+ = None\b|torch\.set_num_threads", line) for line in lines)


def fold_long_outputs(notebook, say: Callable[[str], str] = str) -> None:
    """Replace printed text of more than MOST_OUTPUT lines by its first lines and the rest in a fold."""
    for cell in notebook.cells:
        outputs = []
        for output in cell.get("outputs", []):
            previous = outputs[-1] if outputs else {}
            if output.get("output_type") == "stream" and previous.get("output_type") == "stream":
                previous["text"] += output["text"]
            else:
                outputs.append(output)
        for output in outputs:
            if output.get("output_type") == "stream" and output["text"].count("\n") > MOST_OUTPUT:
                text = output.pop("text")
                output.pop("name")
                output.update(output_type="display_data", metadata={}, data={"text/html": folded(text, say=say)})
        if cell.cell_type == "code":
            cell.outputs = outputs


def folded(text: str, shown: int = 8, say: Callable[[str], str] = str) -> str:
    """
    >>> folded("1\\n2\\n3\\n", shown=1)
    '<div class="folded-output"><pre>1</pre><details><summary>2 more lines</summary><pre>2\\n3</pre></details></div>'
    """
    lines = COLOUR.sub("", text).rstrip("\n").split("\n")
    first, rest = ("\n".join(map(html.escape, part)) for part in (lines[:shown], lines[shown:]))
    more = say("{} more lines").format(len(lines) - shown)
    fold = f"<details><summary>{more}</summary><pre>{rest}</pre></details>"
    return f'<div class="folded-output"><pre>{first}</pre>{fold}</div>'


def describe_images(notebook, captions: dict[str, str]) -> None:
    """Give each cell with an image an alternative text: ``alt="…"`` of the cell in the text; else the caption of its
    picture there; else the titles and axes of the figure, which are its output's text; else the heading above it."""
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE) or [heading])[-1]
            continue
        images = [output for output in cell.get("outputs", []) if is_image(output)]
        if images:
            noted = [text for output in images for text in texts_of(output)]
            said = cell.metadata.get("alt") or captions.get(cell.source) or " ".join(noted)
            alt = said or f"Figure in the section “{heading.strip('*` ')}”"
            cell.metadata["mystnb"] = {"image": {"alt": alt}}


def alternative_texts(text: str) -> list[str]:
    """Of a chapter's text.

    >>> alternative_texts('```python tags=["hide-input"] alt="A line"\\nx\\n```\\n')
    ['A line']
    """
    return re.findall(r'^```python[^\n]* alt="([^"\n]+)"', text, re.MULTILINE)


def describe_figure(figure) -> str:
    """The words of a matplotlib figure: its title; axes, legends, labelled bars, and sentences in the drawing."""
    said = [text.get_text() for text in figure.texts[:1]] or [figure.get_suptitle()]
    for axes in figure.axes:
        legend, texts = axes.get_legend(), [text.get_text() for text in axes.texts]
        names = [label.get_text() for label in axes.get_yticklabels()]
        said.append(axes.get_title() or axes.get_title(loc="left"))
        said += [f"{name}: {text}" for name, text in (("x", axes.get_xlabel()), ("y", axes.get_ylabel())) if text]
        said += [", ".join(text.get_text() for text in legend.get_texts())] if legend else []
        if len(names) == len(texts):
            said.append(", ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True)))
        else:
            said += [text for text in texts if text.count(" ") > 2]
    sentences = (" ".join(text.split()) for text in said[:MOST_TEXTS])
    return " ".join(text if text.endswith((".", "?")) else f"{text}." for text in sentences if text)


def is_image(output) -> bool:
    return any(kind.startswith("image/") for kind in output.get("data", {}))


def texts_of(output) -> list[str]:
    """A figure in words; a text such as "<Figure size 640x480 with 1 Axes>" says nothing."""
    text = output.get("data", {}).get("text/plain", "")
    return [text] if text and not text.startswith("<") else []


def captions(text: str) -> dict[str, str]:
    """The captions of the pictures below the cells of a chapter's text: code -> caption.

    >>> captions("```python\\ncourse.diagrams.turns()\\n```\\n\\n![Two ranks](pictures/turns.svg)\\n")
    {'course.diagrams.turns()': 'Two ranks'}
    """
    found = {}
    for cell in CELL.finditer(text):
        if below := CAPTION.match(text, cell.end()):
            found[cell["code"]] = below["caption"]
    return found
