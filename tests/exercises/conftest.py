"""What the tests of the problem sets share: the small sample set, in the forms that a student may meet it."""

import json
import os
import pickle
from pathlib import Path

import pytest
from filelock import FileLock

from bench.course.exercises import grade, nbgrading, text
from tests.forked_programs import copied_chapters

SAMPLE = Path(__file__).parent / "sample"


@pytest.fixture(scope="session")
def sample():
    return text.read(SAMPLE / "00_sample.md")


@pytest.fixture(scope="session")
def prepared(sample, tmp_path_factory) -> nbgrading.Course:
    """What the sample set is graded by, with the hidden tests, made by nbgrader once for all processes of pytest."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    made = root / "prepared.pickle"
    with FileLock(root / "prepared.lock"):
        if not made.exists():
            with copied_chapters():
                made.write_bytes(pickle.dumps(nbgrading.make_release([sample])))
    return pickle.loads(made.read_bytes())


@pytest.fixture(scope="session")
def blank(sample, prepared) -> str:
    return prepared.releases[sample.name]


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
