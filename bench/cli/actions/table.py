"""`bench report --format csv|parquet|md`: the records below a folder as data: CSV, Parquet or Markdown."""

from pathlib import Path

from bench.cli.base import DEFAULT_FOLDER, warn
from bench.errors import ExitCode
from bench.record.read import find_records
from bench.report.export import write_table


def run(args) -> int:
    """Write the table. Files that are not valid records are named on standard error."""
    records, refused = find_records(Path(args.records or DEFAULT_FOLDER))
    for sentence in refused:
        warn(f"refused: {sentence}")
    if not records:
        return ExitCode.REFUSED
    write_table(records, args.out or None, args.format or None, bool(args.memory))
    if args.out:
        print(f"table: {args.out}")
    return ExitCode.DONE
