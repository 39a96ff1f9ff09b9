"""`bench time -- torchrun … train.py`: a training script that is not this project's, timed as it is."""

import math
import shlex
from pathlib import Path

from rich.markup import escape

from bench.analysis import tables
from bench.commands.base import folder_of, is_on, whole
from bench.config.fields import is_unicode
from bench.errors import UserError
from bench.foreign import result
from bench.foreign.command import Asked
from bench.foreign.command import run as run_command
from bench.foreign.record import load
from bench.record.describe import machine_line


def run(args) -> int:
    """Run the command, and show what its ranks did. The record is the last line."""
    if not (words := words_of(args)):
        raise UserError('which command? `bench time -- torchrun --nproc-per-node=2 train.py`, or CMD="…" with make')
    asked = Asked(
        warmup=whole("WARMUP", args.warmup, at_least=1),
        steps=None if args.steps is None else whole("STEPS", args.steps, at_least=1),
        watch=args.watch is None or is_on("WATCH", args.watch),
        batch=None if args.batch is None else whole("BATCH", args.batch, at_least=1),
    )
    if args.label is not None and not (0 < len(args.label) <= 200 and is_unicode(args.label)):
        raise UserError("LABEL: from 1 to 200 letters of Unicode (UTF-8)")
    record = load(run_command(words, asked, Path(folder_of(args)), args.label, limit_of(args.limit)))
    console = tables.terminal()
    console.print(escape(machine_line(record)), highlight=False)
    tables.print_grid(console, result.grid([record]))
    for line in result.lines(record):
        console.print(line, highlight=False, markup=False)
    print(f"record: {record.folder}/foreign.json", flush=True)
    return 0


def words_of(args) -> list[str]:
    """The command, after -- or as CMD. Raises UserError where it is given twice, or its quotes do not close."""
    if args.cmd and args.rest:
        raise UserError("the command is given twice: after -- or as CMD=")
    try:
        return args.rest or shlex.split(args.cmd or "")
    except ValueError as error:
        raise UserError(f"CMD={args.cmd}: {error}") from None


def limit_of(text: str | None) -> float | None:
    """LIMIT in seconds. Raises UserError for what is no number above 0."""
    try:
        limit = None if text is None else float(text)
    except ValueError:
        limit = math.nan
    if limit is not None and not 0 < limit < math.inf:
        raise UserError(f"LIMIT={text}: seconds, a number above 0")
    return limit
