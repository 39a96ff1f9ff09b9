"""CSV files that are safe in spreadsheets: no cell is executed as a formula."""

import csv
import io
import re
from collections.abc import Iterable
from typing import TextIO

# What a spreadsheet takes as the start of a formula, also in full width, and after blanks.
FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@＝＋－＠]")


def cell(value):
    """A cell: text that starts like a formula gets a leading ', so that a spreadsheet shows it as text.

    >>> cell("=cmd|x"), cell(" @SUM(1)"), cell(-0.5), cell("cat"), cell("a-b")
    ("'=cmd|x", "' @SUM(1)", -0.5, 'cat', 'a-b')
    """
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def write(file: TextIO, rows: Iterable[Iterable]) -> None:
    """Write rows of cells to a file that was opened with newline=""."""
    csv.writer(file, lineterminator="\n").writerows(map(cell, row) for row in rows)


def text(rows: Iterable[Iterable]) -> str:
    """Rows of cells as text."""
    file = io.StringIO()
    write(file, rows)
    return file.getvalue()
