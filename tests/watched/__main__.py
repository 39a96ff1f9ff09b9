"""``python -m tests.watched [NAMES] [--json FILE] [--keep FOLDER]``: run the scripts, print the table.

NAMES: parts of names, as in ``right/`` or ``gan``. Exit code 1 when one is not as expected.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from bench.measure.environment import collect_machine
from tests.watched.runner import Row, load, run_all
from tests.watched.script import scripts

# That runs of this project are looked through for; the other detectors came with the Watch.
OLD = ("unsynced-init", "whole-data", "no-reshuffle", "rank-metrics", "many-writers", "lr-not-scaled",
       "same-augmentation", "gradient-sum", "strict-false", "local-norm", "host-sync", "lost-remainder",
       "loader-starvation", "rank0-collective")  # fmt: skip
LINE = "{0:36} {1:34} {2:30} {3:26} {5:>5} {4}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.watched", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="what the scripts wrote stays in this folder")
    arguments = parser.parse_args()
    began = time.monotonic()
    chosen = scripts(arguments.names)
    left_out = [] if load() else [script for script in chosen if script.horovod]
    chosen = [script for script in chosen if script not in left_out]
    rows = []
    print(LINE.format("script", "expected", "found", "asked", "verdict", "s"), flush=True)
    for row in run_all(chosen, arguments.keep):
        rows.append(row)
        print(LINE.format(*row.cells()), flush=True)
        if not row.good:
            print("    | " + "\n    | ".join(row.text.splitlines()), flush=True)
    print()
    print("\n".join(counts(rows)))
    print(f"{len(rows)} scripts in {time.monotonic() - began:.0f} s")
    if left_out:
        print(f"left out, for Horovod is not installed (bench install-horovod): {', '.join(s.name for s in left_out)}")
    if arguments.json:
        rows.sort(key=lambda row: row.script.name)
        table = {"environment": collect_machine(), "seconds": round(time.monotonic() - began),
                 "counts": counts(rows), "rows": [row.to_dict() for row in rows]}  # fmt: skip
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    return int(any(not row.good for row in rows))


def counts(rows: list[Row]) -> list[str]:
    kinds = {
        "right scripts, nothing reported": lambda s: s.kind == "right" and not s.asks,
        "right scripts, possible mistake reported": lambda s: s.kind == "right" and bool(s.asks),
        "wrong scripts, one of the first 14 mistakes found": lambda s: (
            s.kind == "wrong" and bool(s.found) and s.found <= set(OLD)
        ),
        "wrong scripts, a later mistake found": lambda s: s.kind == "wrong" and bool(s.found - set(OLD)),
        "wrong scripts, possible mistake reported": lambda s: s.kind == "wrong" and bool(s.asks) and not s.found,
        "wrong scripts, listed below as not detectable": lambda s: bool(s.cannot),
        "wrong uses of the Watch": lambda s: s.kind == "wrong" and not (s.found or s.asks or s.cannot),
    }
    lines = []
    for words, of in kinds.items():
        those = [row for row in rows if of(row.script)]
        lines.append(f"{words}: {sum(row.good for row in those)} of {len(those)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
