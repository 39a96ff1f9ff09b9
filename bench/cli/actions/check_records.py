"""`bench mistake check RECORDS`: search records for the known mistakes.

Prints each mistake with evidence, consequence and remedy, and in one line what could not be checked. Exit code 0: none,
or possible mistakes only; 3: mistakes found; 2: a record could not be read.
"""

from collections import Counter
from pathlib import Path

from bench import mistakes
from bench.cli.base import DEFAULT_FOLDER, warn
from bench.errors import ExitCode
from bench.foreign.record import NAME as FOREIGN
from bench.foreign.record import ForeignRecord
from bench.foreign.record import find as find_foreign
from bench.mistakes import Finding
from bench.record.disturbance import observed_of
from bench.record.view import Record
from bench.report.pooling import records_at


def run(args) -> int:
    """Check a record or all records below a folder; returns the exit code. Raises UserError for a folder without
    records."""
    place = Path(args.records or DEFAULT_FOLDER)
    foreign, unread = find_foreign(place)
    records, refused = ([], []) if place.name == FOREIGN else records_at(place, needed=not foreign + unread)
    records, refused = records + foreign, refused + unread
    unseen, wrong = Counter(), {}
    for record in records:
        names = record["unheard"] if isinstance(record, ForeignRecord) else mistakes.unobserved(record.observed)
        unseen[", ".join(names)] += 1
        if findings := mistakes.find(observed_of(record)):
            wrong.setdefault((program(record), *(finding.name for finding in findings)), []).append((record, findings))
    for (title, *_), runs in wrong.items():
        record, findings = runs[0]
        file = FOREIGN if isinstance(record, ForeignRecord) else "record.json"
        more = f" and {len(runs) - 1} more with the same mistakes" if len(runs) > 1 else ""
        places = f"{record.folder}/{file}{more}"
        show(findings, f"{title}: {places}")
    shown = [findings for runs in wrong.values() for _, findings in runs]
    count = sum(not all(finding.question for finding in findings) for findings in shown)
    said = [f"mistakes in {count}"] if count else []
    said += [f"possible mistakes in {len(shown) - count}"] if len(shown) > count else []
    print(f"{len(records)} record{'s' * (len(records) != 1)}: {', '.join(said) or 'no known mistakes found'}")
    for names, unlooked in unseen.most_common():
        if names:
            print(f"not observed in {unlooked}: {names}")
    for sentence in refused:
        warn(f"refused: {sentence}")
    return ExitCode.FOUND if count else ExitCode.REFUSED if refused else ExitCode.DONE


def program(record: Record) -> str:
    """Name of the configuration: runs of a suite that differ only by round and seed are shown once."""
    if isinstance(record, ForeignRecord):
        return f"{record.program} on {record.num_devices}, {record.run_id}"
    return f"{record.program} on {record.config.num_devices}, {record.label.suite or record.run_id}"


def show(findings: list[Finding], title: str) -> None:
    print(title)
    for finding in findings:
        for line in finding.lines():
            print(f"  {line}")
    print()


def print_findings(record: Record) -> None:
    """Print the mistakes of a run with WATCH=1, after its table."""
    findings = mistakes.find(observed_of(record))
    wrong, possible = ([each for each in findings if bool(each.question) == asked] for asked in (False, True))
    show(wrong, f"known mistakes found: {len(wrong)}")
    if possible:
        show(possible, f"possible mistakes: {len(possible)}")
    if unseen := mistakes.unobserved(record.observed):
        print(f"not observed: {', '.join(unseen)}")
