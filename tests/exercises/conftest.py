"""What the tests of the problem sets share: the small sample set, in the forms that a student may meet it."""

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from bench.course.exercises import grade, nbgrading, text

SAMPLE = Path(__file__).parent / "sample"


@pytest.fixture(scope="session")
def sample():
    return text.read(SAMPLE / "00_sample.md")


@pytest.fixture(scope="session")
def blank(sample, tmp_path_factory) -> str:
    """The students' copy of it, made by nbgrader once for all processes of pytest."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    made = root / "blank.ipynb"
    with FileLock(root / "blank.lock"):
        if not made.exists():
            made.write_text(nbgrading.make_release([sample]).releases[sample.name])
    return made.read_text()


@pytest.fixture(scope="session")
def solved(sample, blank) -> str:
    return grade.fill_in_solutions(sample, blank)


def edited(notebook: str, **sources: str | None) -> str:
    """A notebook with other texts in some cells: task1_answer="…"; None deletes the cell."""
    notebook = json.loads(notebook)
    for name, source in sources.items():
        (cell,) = [cell for cell in notebook["cells"] if cell["id"] == f"s00-{name.replace('_', '-')}"]
        if source is None:
            notebook["cells"].remove(cell)
        cell["source"] = source
    return json.dumps(notebook)
