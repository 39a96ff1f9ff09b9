"""Figures in a notebook: one that was made without pyplot is shown as well as one that was made with it."""

import sys


def show_figures() -> None:
    """From now on a matplotlib figure that is the value of a cell is shown as a picture. Outside of IPython: nothing.

    matplotlib's own backend for notebooks does that only after pyplot has made a first figure; our pictures need none.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", as_png)


def as_png(figure) -> bytes:
    """A figure as the reports save it."""
    from bench.analysis.drawing import rendered

    return rendered(figure, "png")
