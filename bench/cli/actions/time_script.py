"""`bench time -- torchrun … train.py`: time any training script, unmodified."""

import shlex
from pathlib import Path

from bench.analysis import tables
from bench.cli.base import DEFAULT_FOLDER
from bench.config.fields import is_unicode
from bench.errors import UserError
from bench.foreign import result
from bench.foreign.command import Options
from bench.foreign.command import run as run_command
from bench.foreign.record import load
from bench.record.describe import machine_line


def run(args) -> int:
    """Run the command, and print the result. The record is the last line."""
    if not (words := words_of(args)):
        raise UserError('no command: write `bench time -- torchrun --nproc-per-node=2 train.py`, or CMD="…" with make')
    options = Options(args.warmup, args.steps, args.watch is not False, args.batch)
    if args.label is not None and not (0 < len(args.label) <= 200 and is_unicode(args.label)):
        raise UserError("LABEL: use 1 to 200 characters (UTF-8)")
    record = load(run_command(words, options, Path(args.out or DEFAULT_FOLDER), args.label, args.limit))
    console = tables.terminal()
    console.print(machine_line(record))
    tables.print_grid(console, result.grid([record]))
    tables.print_lines(console, result.lines(record))
    print(f"record: {record.folder}/foreign.json", flush=True)
    return 0


def words_of(args) -> list[str]:
    """The command, after -- or as CMD. Raises UserError if it is given twice, or a quote is not closed."""
    if args.cmd and args.rest:
        raise UserError("the command is given twice: after -- or as CMD=")
    try:
        return args.rest or shlex.split(args.cmd or "")
    except ValueError as error:
        raise UserError(f"CMD={args.cmd}: {error}") from None
