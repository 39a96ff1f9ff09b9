"""One chapter executed at the small sizes, with real processes. Each is executed once, in test_run_*.py. Ranks are
forked from processes that have torch already (forked_runs.py)."""

import json

import pytest

from bench.course import chapters
from tests.notebooks import forked_runs

CHAPTER_LIMIT_S = 900  # under two minutes on an idle machine; this one may be busy


def each_of(first: int, last: int):
    """The chapters from this number to that one, as the parameter ``path`` of a test with a limit."""
    paths = [path for path in chapters.chapters() if first <= int(path.name[:2]) <= last]
    return lambda test: pytest.mark.timeout(CHAPTER_LIMIT_S)(
        pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)(test)
    )


def assert_it_runs(path, folder, forked_programs, monkeypatch) -> None:
    """From top to bottom, without an error, and with a figure; afterwards it is known to be executed."""
    for name, value in (forked_runs.variables(forked_programs) if forked_programs else {}).items():
        monkeypatch.setenv(name, value)
    executed = chapters.execute(path, folder, quick=True)
    outputs = [output for cell in json.loads(executed.read_text())["cells"] for output in cell.get("outputs", [])]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    pictures = [o for o in outputs if {"image/png", "image/svg+xml"} & set(o.get("data", {}))]
    drawn = [o for o in outputs if "<svg" in "".join(o.get("data", {}).get("text/html", ""))]
    assert pictures or drawn, "no figure"
    assert chapters.is_current(path, quick=True, to=folder) and not chapters.is_current(path, to=folder)
