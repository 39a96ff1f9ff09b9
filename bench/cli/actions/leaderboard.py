"""`bench report --by student`: the comparisons of a class, ranked."""

from pathlib import Path

from bench.analysis import tables
from bench.cli.base import DEFAULT_FOLDER, warn
from bench.errors import ExitCode
from bench.report import leaderboard


def run(args) -> int:
    """Print a table per workload, and on standard error what does not count. Exit code 1 if nothing counts."""
    found, said = leaderboard.entries(Path(args.records or DEFAULT_FOLDER))
    console = tables.terminal()
    for grid in leaderboard.grids(found):
        tables.print_captioned(console, grid)
    for sentence in said:
        warn(sentence)
    return ExitCode.DONE if found else ExitCode.FAILED
