"""The pictures in the chapters' texts, drawn by the cells above them (bench/course/chapters.py)."""

import re
from collections.abc import Iterator
from pathlib import Path

from bench import course
from bench.analysis.drawing import svg_of
from bench.course.chapters import PICTURE_LINE

CELL = re.compile(r"^```python\n(?P<code>(?:(?!```).*\n)+)```\n\n" + PICTURE_LINE.pattern, re.MULTILINE)


def files_in(path: Path) -> list[Path]:
    """The files of the pictures that a chapter's text names."""
    return [(Path(path).parent / found["file"]).resolve() for found in PICTURE_LINE.finditer(Path(path).read_text())]


def drawn(path: Path) -> Iterator[tuple[Path, str]]:
    """(file, SVG) of every picture in a chapter's text. Raises whatever a cell raises that cannot stand alone."""
    for found in CELL.finditer(Path(path).read_text()):
        shown = eval(found["code"], {"course": course})  # our own text
        svg = shown._repr_svg_() if hasattr(shown, "_repr_svg_") else svg_of(shown)
        yield (Path(path).parent / found["file"]).resolve(), svg
