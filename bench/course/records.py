"""Committed records for a chapter: measured once, on a named machine, and never on the reader's."""

import functools

from bench.analysis.suite import Suite, suites_of
from bench.analysis.tables import machine_line
from bench.errors import UserError
from bench.record.read import find_records
from bench.record.write import PROJECT

REFERENCE = PROJECT / "results" / "reference"
KINDS = ("compare", "weak", "strong", "breakdown", "knobs", "accuracy", "unsynced", "lab", "replay")


def reference(kind: str, device: str = "cpu", which: int = -1) -> Suite | None:
    """A committed suite of a kind: "compare", "weak", "accuracy" and the others of KINDS.

    device: "cpu" or "cuda". which: of several, by age; the newest without it. None where none is committed: say so with
    ``no_gpu_record``. Give a suite to ``bench.analysis.drawing.figures_of`` for its pictures, which name their machine.
    """
    found = references(kind, device)
    return found[which] if found else None


def references(kind: str, device: str = "cpu") -> list[Suite]:
    """All committed suites of a kind on a device, oldest first. Raises UserError for a kind that there is not."""
    if kind not in KINDS or device not in ("cpu", "cuda"):
        raise UserError(f"no suite is called {kind!r} on {device!r}: choose one of {', '.join(KINDS)}; cpu or cuda")
    return [suite for suite in all_suites() if suite.kind == kind and suite.device == device]


@functools.cache
def all_suites() -> list[Suite]:
    """Every committed suite. Read once a notebook."""
    if not REFERENCE.is_dir():
        raise UserError(f"there is no {REFERENCE}: the chapters need a clone of the repository, not the package alone")
    return suites_of(find_records(REFERENCE)[0])


def machine(record: dict) -> str:
    """Where a record was taken, in one line: devices, processor, versions."""
    return machine_line(record)


def no_gpu_record(kind: str, make: str) -> None:
    """Say that no GPU has measured this yet, and how to do it. make: the line to run. Prints nothing where one has."""
    if reference(kind, "cuda") is None:
        print(f"No record of {kind!r} from a GPU is published yet. On a machine with GPUs: {make}")
