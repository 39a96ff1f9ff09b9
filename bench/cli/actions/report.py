"""`bench report`: the records below a folder as a table and one self-contained page, or in another form."""

import importlib
from pathlib import Path

from bench.analysis import tables
from bench.analysis.suite import by_suite, suite_of, suites_and_others
from bench.cli.base import DEFAULT_FOLDER, warn
from bench.errors import ExitCode, UserError
from bench.foreign import result as foreign_result
from bench.foreign import scaling
from bench.foreign.record import find as find_foreign
from bench.record import packed
from bench.record.describe import machine_line
from bench.record.read import find_records
from bench.record.view import Record
from bench.tasks.network import result
from bench.tasks.network.record import by_suite as networks_by_suite
from bench.tasks.network.record import find as find_networks

MOST_RUNS = 40


DATA = {".csv": "csv", ".parquet": "parquet", ".md": "md"}  # by the name of OUT
# FORMAT -> its module
FORMS = {"html": "", "text": "", "plots": "plots", **dict.fromkeys(DATA.values(), "table"), "trace": "trace"}
NO_FILE = {"text": "writes no file", "plots": "writes each picture next to its records"}
BY = {"machine": "pool", "student": "leaderboard"}


def run(args) -> int:
    """Write the requested format. Raises UserError for an unknown one."""
    form = args.format or DATA.get(Path(args.out or "").suffix, "html")
    for name, value, known in (("FORMAT", form, FORMS), ("BY", args.by or "machine", BY)):
        if value not in known:
            raise UserError(f"{name}={value}: choose one of {', '.join(known)}")
    if args.out and args.records is None and Path(args.out).is_dir() and form == "html" and not args.by:
        raise UserError(f"OUT={args.out} is a folder: use RECORDS={args.out} for records; OUT is the output file")
    if args.out and form in NO_FILE and not args.by:
        raise UserError(f"FORMAT={form} {NO_FILE[form]}: leave OUT={args.out} out")
    if args.by and args.format:
        raise UserError("BY and FORMAT exclude each other: leave one of them out")
    if module := BY[args.by] if args.by else FORMS[form]:
        args.format = args.format or DATA.get(Path(args.out or "").suffix)
        return importlib.import_module(f"bench.cli.actions.{module}").run(args)
    return table_and_page(args, form == "html")


def table_and_page(args, with_page: bool) -> int:
    folder = Path(args.records or DEFAULT_FOLDER)
    networks, bad = find_networks(folder)
    foreign, unread = find_foreign(folder)
    records, refused = find_records(folder, needed=not networks + foreign + bad + unread)
    refused += bad + unread
    console = tables.terminal()
    tables.print_lines(console, sorted({machine_line(record) for record in records + foreign if record.ok}))
    print_records(console, records)
    if foreign:
        tables.print_captioned(console, foreign_result.grid(foreign))
        tables.print_lines(console, (line for record in foreign for line in foreign_result.summary_lines(record)))
        for found in scaling.find(foreign):
            scaling.show(console, found)
    for suite, found in networks_by_suite(networks).items():
        console.print(f"{suite}: {result.provenance_lines(found)[0]}")
        for line in result.answer(found):
            console.print(f"  {line}")
    for sentence in refused:
        warn(f"refused: {sentence}")
    if with_page:
        from bench.report import page

        place = Path(args.out or packed.folder_of(folder) / "report.html")
        path = page.write_page(*suites_and_others(records), refused, place, networks, foreign)
        print(f"report: {path}", flush=True)
    return ExitCode.REFUSED if refused and not records + networks + foreign else ExitCode.DONE


def print_records(console, records: list[Record]) -> None:
    """A row for each single run; one line for a suite, because its rounds belong together."""
    single = [record for record in records if not record.label.suite]
    if single:
        grid = tables.single_runs_grid(single[-MOST_RUNS:])
        console.print(f"{grid.caption}:")
        tables.print_grid(console, grid)
    if len(single) > MOST_RUNS:
        console.print(f"{len(single) - MOST_RUNS} older runs are not shown: `bench report` shows all")
    for name, found in by_suite(records).items():
        why = suite_of(name, found).disturbance
        more = f", disturbed: {why}" if why else ""
        console.print(f"suite {name}: {len(found)} records{more}", style="dim" if why else None)
