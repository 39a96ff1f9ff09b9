"""Pictures that stand in a chapter's text, so that it can be read without running it.

Under a cell that is one expression, as ``course.diagrams.turns()`` or ``course.pictures(course.reference("weak"))[…]``,
the text may have a line ``![what it shows](pictures/NAME.svg)``, or with the path of a committed record's picture: the
file holds what the cell shows, and `bench renew` draws it. A notebook has no such line, for its cell shows the picture.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from bench.analysis.drawing import svg_of

LINE = re.compile(r"^!\[[^\]]+\]\((?P<file>[\w./-]*pictures/[\w-]+\.svg)\)\n\n?", re.MULTILINE)
CELL = re.compile(r"^```python\n(?P<code>(?:(?!```).*\n)+)```\n\n" + LINE.pattern, re.MULTILINE)


def without_pictures(text: str) -> str:
    """A chapter's text as its notebook has it."""
    return LINE.sub("", text)


def files_in(path: Path) -> list[Path]:
    """The files of the pictures that a chapter's text names."""
    return [(Path(path).parent / found["file"]).resolve() for found in LINE.finditer(Path(path).read_text())]


def drawn(path: Path) -> Iterator[tuple[Path, str]]:
    """(file, SVG) of every picture in a chapter's text. Raises whatever a cell raises that cannot stand alone."""
    from bench import course

    for found in CELL.finditer(Path(path).read_text()):
        shown = eval(found["code"], {"course": course})  # our own text
        yield (Path(path).parent / found["file"]).resolve(), shown.svg() if hasattr(shown, "svg") else svg_of(shown)
