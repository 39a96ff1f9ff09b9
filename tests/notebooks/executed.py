"""One chapter executed at the small sizes, with real processes. Each is executed once, in test_run_*.py.

Every Python that a chapter starts, from its kernel to the ranks of torchrun, spawn and horovodrun, is a copy of one
process that has torch and what chapters import (tests/forked_python.py). The first chapter has fresh ones, as a reader
does; those of a notebook's ranks and commands are tested in test_ranks.py and test_commands.py.
"""

import json
import sys

import pytest

from bench.course import chapters

CHAPTER_LIMIT_S = 900  # under two minutes on an idle machine; this one may be busy


def each_of(first: int, last: int):
    """The chapters from this number to that one, as the parameter ``path`` of a test with a limit."""
    paths = [path for path in chapters.chapters() if first <= int(path.name[:2]) <= last]
    return lambda test: pytest.mark.timeout(CHAPTER_LIMIT_S)(
        pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)(test)
    )


def assert_it_runs(path, folder, python: str, monkeypatch) -> None:
    """From top to bottom, without an error, and with a figure; afterwards it is known to be executed."""
    if path != chapters.chapters()[0]:
        monkeypatch.setattr(sys, "executable", python)
    executed = chapters.execute(path, folder, quick=True)
    outputs = [output for cell in json.loads(executed.read_text())["cells"] for output in cell.get("outputs", [])]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    drawn = any("<svg" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert drawn or kinds & {"image/png", "image/svg+xml"}, "no figure"
    assert chapters.is_current(path, quick=True, to=folder) and not chapters.is_current(path, to=folder)
