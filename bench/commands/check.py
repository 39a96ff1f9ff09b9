"""``bench check FOLDER|RECORD``: the known mistakes, looked for in records of runs.

What comes in: a record, or a folder of records. What goes out: each finding with evidence, consequence and remedy, and
in one line what could not be looked for. Exit code 0: no finding; 3: some; 2: a record could not be read.
"""

import sys
from collections import Counter
from pathlib import Path

from bench.record import observed as detect
from bench.record.read import FOLDER, find_records
from bench.record.write import BadRecord, load

FOUND, UNREADABLE = 3, 2


def run(place: str) -> int:
    """Check a record or all records below a folder; returns the exit code.

    Raises UserError for a folder that is not there or holds no record.
    """
    records, refused = records_at(Path(place))
    unseen, wrong = Counter(), {}
    for record in records:
        observed = detect.observed_of(record)
        unseen[", ".join(detect.unobserved(observed))] += 1
        if findings := detect.find(observed):
            wrong.setdefault((program(record), *(finding.name for finding in findings)), []).append((record, findings))
    for (title, *_), runs in wrong.items():
        record, findings = runs[0]
        places = f"{record[FOLDER]}/record.json" + (f" and {len(runs) - 1} more like it" if len(runs) > 1 else "")
        show(findings, f"{title}: {places}")
    count = sum(map(len, wrong.values()))
    print(f"{len(records)} record{'s' * (len(records) != 1)}: {f'findings in {count}' if count else 'no finding'}")
    for names, count in unseen.most_common():
        if names:
            print(f"not observed in {count}: {names}")
    for sentence in refused:
        print(f"refused: {sentence}", file=sys.stderr)
    return FOUND if wrong else UNREADABLE if refused else 0


def records_at(path: Path) -> tuple[list[dict], list[str]]:
    """The records, and a sentence for each file that is none."""
    if not path.is_file():
        return find_records(path)
    try:
        return [load(path) | {FOLDER: str(path.parent)}], []
    except BadRecord as error:
        return [], [str(error)]


def program(record: dict) -> str:
    """Which program it was: runs of one suite that differ by round and seed alone are shown once."""
    config = record["config"]
    what = config["role"] or config["mode"]
    return f"{what} on {config['num_devices']}, {config['suite'] or record['run_id']}"


def show(findings: list[detect.Finding], title: str) -> None:
    """Print the findings of one run."""
    print(title)
    for finding in findings:
        for line in detect.in_words(finding):
            print(f"  {line}")
    print()


def show_run(record: dict) -> None:
    """What `bench run` says of a run with WATCH=1, after its table."""
    observed = detect.observed_of(record)
    findings = detect.find(observed)
    show(findings, f"known mistakes found: {len(findings)}")
    if unseen := detect.unobserved(observed):
        print(f"not observed: {', '.join(unseen)}")
