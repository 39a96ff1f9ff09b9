"""What the studies that compare throughput share: the table of the terminal, and the tables of the page."""

from bench.analysis import style, tables
from bench.analysis.comparison import Result


def summary(result: Result) -> list[tables.Grid]:
    return [tables.comparison_grid(result)]


def grids(result: Result) -> list[tables.Grid]:
    caption = style.flagged("Each program", result.certificate)
    return [tables.pairs_grid(result), tables.programs_grid(result.suite, caption)]
