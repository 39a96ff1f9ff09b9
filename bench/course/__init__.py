"""What chapters and exercises use: ``from bench import course``.

run_on_ranks   call a function of the notebook on N fresh processes
run_on_nodes   the same on N emulated nodes, with a limited link between them
bench          run a command of the project as `make` would; returns its records
shell          run any other command with live output; a failing command fails the cell
source         show the project's own code from its file
compare_guess  a measured value beside the reader's guess
machine        a record's machine in one line
reference      a committed suite of records; references: all suites of a study
compared       a suite's results; pictures: its pictures by name; timeline: the profiled step of one mode
size           a smaller number in a quick run (COURSE_QUICK=1)
diagrams       the drawings
"""

import os
import sys

from bench.course import diagrams
from bench.course.guesses import compare_guess
from bench.course.nodes import run_on_nodes
from bench.course.ranks import ipython, run_on_ranks
from bench.course.records import compared, no_gpu_record, pictures, reference, references, timeline
from bench.course.shell import bench, shell
from bench.course.source import source
from bench.record.describe import machine_line as machine

__all__ = [
    "QUICK", "bench", "compare_guess", "compared", "diagrams", "machine", "no_gpu_record", "pictures", "reference",
    "references", "run_on_nodes", "run_on_ranks", "shell", "show_figures", "size", "source", "timeline",
]  # fmt: skip
QUICK = os.environ.get("COURSE_QUICK", "0") not in ("", "0")


def size(full: int, quick: int) -> int:
    """``quick`` if COURSE_QUICK=1 is set, else ``full``: steps, rounds or images of a cell."""
    return quick if QUICK else full


def show_figures() -> None:
    """Show a matplotlib figure that is the value of a cell as a picture, without pyplot, and let the output's text say
    what it shows. Outside IPython: nothing."""
    if ipython() is not None:
        formatters = ipython().display_formatter.formatters
        formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", as_png)
        formatters["text/plain"].for_type_by_name("matplotlib.figure", "Figure", as_text)
        ipython().events.register("pre_execute", describe_figures)


def describe_figures() -> None:
    """As the formatter of the text, which pyplot removes with its first figure."""
    if "matplotlib.figure" in sys.modules:
        sys.modules["matplotlib.figure"].Figure._repr_pretty_ = as_text


def as_png(figure) -> bytes:
    from bench.analysis.drawing import rendered

    return rendered(figure, "png")


def as_text(figure, printer, _) -> None:
    from bench.course.outputs import describe_figure

    printer.text(describe_figure(figure) or repr(figure))


show_figures()
