"""`bench report`: a table of the records below a folder, and with --html one self-contained page."""

import sys
from collections import Counter
from pathlib import Path

from bench.analysis import tables
from bench.analysis.suite import suites_of
from bench.commands.base import folder_of
from bench.record.describe import machine_line
from bench.record.read import find_records
from bench.record.view import Record

MOST_RUNS = 40


def run(args) -> int:
    """A table of all records below a folder, and the page when it is asked for."""
    folder = Path(folder_of(args))
    records, refused = find_records(folder)
    console = tables.terminal()
    for machine in sorted({machine_line(record) for record in records if record.ok}):
        console.print(machine)
    print_records(console, records)
    for sentence in refused:
        print(f"refused: {sentence}", file=sys.stderr)
    if args.html is not None:
        from bench.report import page

        suites = suites_of(records)
        shown = {suite.id for suite in suites}
        others = [record for record in records if record.config.suite not in shown]
        path = page.write_page(suites, others, refused, Path(args.html or folder / "report.html"))
        print(f"report: {path}", flush=True)
    return 1 if refused and not records else 0


def print_records(console, records: list[Record]) -> None:
    """A row for each single run; of a suite one line, for its rounds belong together."""
    single = [record for record in records if not record.config.suite]
    if single:
        tables.print_grid(console, tables.runs_grid(single[-MOST_RUNS:]))
    if len(single) > MOST_RUNS:
        console.print(f"{len(single) - MOST_RUNS} older runs are not shown: `bench table` has all")
    counts = Counter(record.config.suite for record in records if record.config.suite)
    for suite, count in counts.items():
        console.print(f"suite {suite}: {count} records")
