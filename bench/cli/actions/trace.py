"""`bench report RECORD --format trace`: the timelines of one profiled run as a file for Perfetto."""

from pathlib import Path

from bench.errors import UserError, printable
from bench.predict.step.profile import record_at
from bench.record import packed
from bench.report.trace import clock_sentence, write_trace


def run(args) -> int:
    """Write the trace. Raises UserError for anything but one profiled run."""
    if not args.records:
        raise UserError("FORMAT=trace exports one run: give RECORDS=that/record.json of a run with PROFILE=1")
    record = record_at(args.records)
    place = packed.folder_of(Path(record.folder))
    path = Path(args.out) if args.out else place / "trace.json"
    write_trace(record, path, replace=not args.out)
    print(f"clock: {clock_sentence(record)}")
    print("open it at https://ui.perfetto.dev")
    print(f"trace: {printable(str(path))}")
    return 0
