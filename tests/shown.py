"""What a person reads in a picture, on a page or in a terminal, as one line of text."""

import html
import re

from rich.console import Console

from bench.analysis import tables


def text_of(figure) -> str:
    """All text of a picture; line breaks of wrapped sentences are spaces."""
    from matplotlib.text import Text

    return in_one_line(" ".join(text.get_text() for text in figure.findobj(Text)))


def plain(page: str) -> str:
    return html.unescape(in_one_line(re.sub(r"<[^>]+>", " ", page)))


def printed(*grids) -> str:
    console = Console(width=250)
    with console.capture() as capture:
        for grid in grids:
            tables.print_grid(console, grid)
    return in_one_line(capture.get())


def in_one_line(text: str) -> str:
    """The same with single spaces; those that do not break are spaces, too."""
    return " ".join(text.split())
