"""Committed records for a chapter: measured once, on a named machine, and never on the reader's."""

import functools

from bench.analysis.suite import CHOSEN, Suite, suites_of
from bench.config.modes import MODES
from bench.errors import UserError
from bench.files import PROJECT
from bench.record.describe import machine_line
from bench.record.disturbance import undisturbed
from bench.record.read import find_records
from bench.record.view import Record
from bench.studies.registry import STUDIES, study_of

REFERENCE = PROJECT / "results" / "reference"


def reference(study: str, device: str = "cpu", which: int = -1, about: str | None = None) -> Suite | None:
    """A committed suite of a study: "compare", "weak", "accuracy", …

    device: "cpu" or "cuda". which: of several, by age; the newest without it. about: only suites about this, as in
    "dp-workers" of a replay, or "local-norm" of a lab. None where none is committed: say so with ``no_gpu_record``.
    Raises UserError for a study that there is not.
    """
    found = [suite for suite in references(study, device) if about is None or study_of(suite).about(suite) == about]
    return found[which] if found else None


def references(study: str, device: str = "cpu", networks: bool = False) -> list[Suite]:
    """All committed suites of a study on a device that were not disturbed, oldest first, but for those of programs that
    a person chose. networks: instead those that were measured over a network that has a name, as the cluster's of one
    machine. Raises UserError for a study that there is not."""
    if study not in STUDIES or device not in ("cpu", "cuda"):
        raise UserError(f"no suite is called {study!r} on {device!r}: choose one of {', '.join(STUDIES)}; cpu or cuda")
    found = [suite for suite in suites_named(study) if suite.study == study and suite.device == device]
    found = [suite for suite in found if undisturbed(suite.records)[0]]
    if networks:
        return [suite for suite in found if suite.first.network]
    return [suite for suite in found if not suite.first.network and not chosen(suite)]


def chosen(suite: Suite) -> bool:
    """Whether a person chose the programs: with settings of their own, or with a mode that is there where it is named
    alone."""
    on_request = any(MODES[record.config.mode].on_request for record in suite.records)
    return on_request or suite.first.config.label.variant == CHOSEN


def compared(suite: Suite):
    """A suite compared, as its study does it: certificate, pairs or rows, verdicts. Raises UserError when it cannot
    be."""
    return study_of(suite).result(suite)


def pictures(suite: Suite) -> dict:
    """A suite's pictures by name; each names its machine and its number of rounds."""
    return study_of(suite).figures(compared(suite))


@functools.cache
def suites_named(study: str) -> list[Suite]:
    """The committed suites whose folders are named after a study, as every suite's is. Read once per notebook."""
    if not REFERENCE.is_dir():
        raise UserError(f"there is no {REFERENCE}: the chapters need a clone of the repository, not the package alone")
    records = [record for folder in REFERENCE.glob(f"*/{study}-*/") for record in find_records(folder)[0]]
    return suites_of(sorted(records, key=lambda record: record.started_at))


def machine(record: Record) -> str:
    """Where a record was taken, in one line: devices, processor, versions."""
    return machine_line(record)


def no_gpu_record(study: str, make: str) -> None:
    """Say that no GPU has measured this yet, and how to do it. make: the line to run. Prints nothing where one has."""
    if reference(study, "cuda") is None:
        print(f"No record of {study!r} from a GPU is published yet. On a machine with GPUs: {make}")
