"""Committed records for a chapter: measured once on a named machine, never on the reader's."""

import dataclasses
import functools

from bench.analysis.suite import CHOSEN, Suite, suites_of
from bench.config.modes import MODES
from bench.errors import UserError
from bench.files import PROJECT
from bench.record.disturbance import undisturbed
from bench.record.read import FORMER, find_records
from bench.studies.registry import STUDIES, study_of

REFERENCE = PROJECT / "results" / "reference"


def reference(study: str, device: str = "cpu", which: int = -1, about: str | None = None) -> Suite | None:
    """A committed suite of a study ("compare", "weak", …); None if there is none (see ``no_gpu_record``).

    device: "cpu" or "cuda". which: index by age, newest by default. about: only suites with this subject, e.g.
    "dp-workers" of a replay. Raises UserError for an unknown study.
    """
    found = [suite for suite in references(study, device) if about is None or study_of(suite).about(suite) == about]
    return found[which] if found else None


def references(study: str, device: str = "cpu", networks: bool = False) -> list[Suite]:
    """The undisturbed committed suites of a study's default arms, oldest first. networks: over a named network."""
    if study not in STUDIES or device not in ("cpu", "cuda"):
        raise UserError(f"there is no suite {study!r} on {device!r}: choose one of {', '.join(STUDIES)}; cpu or cuda")
    found = [suite for suite in suites_named(study) if suite.study == study and suite.device == device]
    found = [suite for suite in found if undisturbed(suite.records)[0]]
    if networks:
        return [suite for suite in found if suite.first.network]
    return [suite for suite in found if not suite.first.network and not has_chosen_arms(suite)]


def has_chosen_arms(suite: Suite) -> bool:
    """Whether a person chose the arms: their settings, or a mode that only runs on request."""
    on_request = any(MODES[record.config.mode].on_request for record in suite.records)
    return on_request or suite.first.config.label.variant == CHOSEN


def compared(suite: Suite):
    """A suite's results as its study computes them. Raises UserError when it cannot be compared."""
    return study_of(suite).result(suite)


def pictures(suite: Suite) -> dict:
    """A suite's pictures by name; each names its machine and its number of rounds."""
    return study_of(suite).figures(compared(suite))


def timeline(suite: Suite, program: str):
    """The picture "timeline" of a suite, of one program only."""
    return pictures(dataclasses.replace(suite, extra=[r for r in suite.extra if r.program == program]))["timeline"]


@functools.cache
def suites_named(study: str) -> list[Suite]:
    """The committed suites in folders named after a study, read once per notebook."""
    if not REFERENCE.is_dir():
        raise UserError(
            f"there is no {REFERENCE}: the chapters need a clone of the repository, not only the installed package"
        )
    names = [study, *(old for old, new in FORMER.items() if new == study)]
    folders = [folder for name in names for folder in REFERENCE.glob(f"*/{name}-*/")]
    records = [record for folder in folders for record in find_records(folder)[0]]
    return suites_of(sorted(records, key=lambda record: record.started_at))


def no_gpu_record(study: str, make: str) -> None:
    """If no GPU record is published, print the command (``make``) that measures it."""
    if reference(study, "cuda") is None:
        print(f"No record of {study!r} from a GPU is published yet. On a machine with GPUs: {make}")
