"""Notebooks that somebody has changed, by accident or on purpose, among those of a class: every student is in the
tables, what was changed costs nobody else a point, and what is run is a notebook with the original tests in it."""

import csv
import json
import tempfile
from pathlib import Path

import nbformat
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.course.exercises import contained, grade, nbgrading
from bench.course.exercises.nbgrading import Graded
from tests.exercises.conftest import SAMPLE
from tests.fuzz import changed, changes_of


@pytest.fixture(scope="module")
def graded_as(blank, solved, sample):
    """``graded_as(text)``: how a notebook's text that was handed in is graded in a class of three, as the rows of
    grades.csv, and the texts that were run. Nothing is run: each gets full points."""
    cells = [cell for cell in json.loads(blank)["cells"] if cell["metadata"]["nbgrader"]["grade"]]
    tests = {cell["id"]: cell["source"] for cell in cells}
    points = {cell["id"]: cell["metadata"]["nbgrader"]["points"] for cell in cells}

    course = nbgrading.Course({sample.name: blank}, b"")

    def graded(text: str) -> tuple[dict, list[str]]:
        ran = []

        def run(course, name, notebook, folder, cell_limit_s) -> Graded:
            ran.append(notebook)
            return Graded(points, "<!DOCTYPE html><html><head></head></html>")

        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(nbgrading, "make_release", lambda problem_sets: course)
            patch.setattr(contained, "code_state", dict)
            patch.setattr(nbgrading, "grade", run)
            for student, content in {"ann": solved, "bob": text, "zoe": solved}.items():
                path = Path(folder) / "in" / student / f"{sample.name}.ipynb"
                path.parent.mkdir(parents=True)
                path.write_bytes(content.encode("utf-8", "surrogatepass"))
            code = grade.run(f"{folder}/in", None, str(SAMPLE), f"{folder}/out", 5.0)
            assert code in (0, 2) and (Path(folder) / "out" / "bob" / f"{sample.name}.html").exists()
            with (Path(folder) / "out" / "grades.csv").open(newline="") as file:
                rows = {row["student"]: row for row in csv.DictReader(file)}
        for notebook in map(json.loads, ran):
            nbformat.validate(notebook, relax_add_props=False)
            there = {cell["id"]: cell["source"] for cell in notebook["cells"]}
            assert len(there) == len(notebook["cells"]) and there.items() >= tests.items()
        return rows, ran

    graded.solved = solved
    return graded


def check(rows: dict, ran: list[str]) -> None:
    """All three are there; two have their points, and the third has them or a reason."""
    assert sorted(rows) == ["ann", "bob", "zoe"]
    assert rows["ann"]["points"] == rows["zoe"]["points"] == rows["ann"]["max"]
    assert rows["bob"]["points"] == rows["ann"]["max"] or (rows["bob"]["points"] == "0" and rows["bob"]["reason"])
    assert len(ran) == 2 + (not rows["bob"]["reason"])


@given(data=st.data())
def test_a_changed_notebook(data, graded_as):
    whole = json.loads(graded_as.solved)
    check(*graded_as(json.dumps(changed(whole, data.draw(changes_of(whole))))))


@given(start=st.integers(0, 3000), length=st.integers(0, 30), put=st.text(max_size=20))
@example(start=0, length=0, put="\ud800")
@example(start=0, length=0, put="[" * 100_000)
def test_a_changed_text(start, length, put, graded_as):
    whole = graded_as.solved
    check(*graded_as(whole[:start] + put + whole[start + length :]))
