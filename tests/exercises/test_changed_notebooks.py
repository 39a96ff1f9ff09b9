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

from bench.course.exercises import contained, grade, nbgrading, text
from bench.course.exercises.nbgrading import Graded
from tests.exercises.conftest import SAMPLE
from tests.fuzz import changed, changes_of


@pytest.fixture(scope="module")
def check(blank, solved, sample):
    """``check(given)``: a notebook's text that was handed in among a class of three. All are in grades.csv; two have
    their points, and the third has them or a reason. Nothing is run: each gets full points."""
    cells = [cell for cell in json.loads(blank)["cells"] if cell["metadata"]["nbgrader"]["grade"]]
    tests = {cell["id"]: cell["source"] for cell in cells}
    points = {cell["id"]: cell["metadata"]["nbgrader"]["points"] for cell in cells}

    def graded(given: str) -> None:
        ran = []

        def run(course, name, notebook, folder, cell_limit_s) -> Graded:
            ran.append(json.loads(notebook))
            return Graded(points, "<!DOCTYPE html><html><head></head></html>")

        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(nbgrading, "make_release", lambda sets: nbgrading.Course({sample.name: blank}, b""))
            patch.setattr(contained, "code_state", dict)
            patch.setattr(text, "read", lambda *_: sample)
            patch.setattr(nbgrading, "grade", run)
            for student, content in {"ann": solved, "bob": given, "zoe": solved}.items():
                path = Path(folder) / "in" / student / f"{sample.name}.ipynb"
                path.parent.mkdir(parents=True)
                path.write_bytes(content.encode("utf-8", "surrogatepass"))
            assert grade.run(f"{folder}/in", None, str(SAMPLE), f"{folder}/out", 5.0) in (0, 2)
            assert (Path(folder) / "out" / "bob" / f"{sample.name}.html").exists()
            with (Path(folder) / "out" / "grades.csv").open(newline="") as file:
                ann, bob, zoe = sorted(csv.DictReader(file), key=lambda row: row["student"])
        assert ann["points"] == zoe["points"] == ann["max"]
        assert bob["points"] == ann["max"] or (bob["points"] == "0" and bob["reason"])
        assert len(ran) == 2 + (not bob["reason"]) and ran[0] == ran[-1]
        for notebook in ran[:-1]:
            nbformat.validate(notebook, relax_add_props=False)
            there = {cell["id"]: cell["source"] for cell in notebook["cells"]}
            assert len(there) == len(notebook["cells"]) and there.items() >= tests.items()

    return graded


@given(data=st.data())
def test_a_changed_notebook(data, check, solved):
    whole = json.loads(solved)
    check(json.dumps(changed(whole, data.draw(changes_of(whole)))))


@given(start=st.integers(0, 3000), length=st.integers(0, 30), put=st.text(max_size=20))
@example(start=0, length=0, put="\ud800")
@example(start=0, length=0, put="[" * 100_000)
def test_a_changed_text(start, length, put, check, solved):
    check(solved[:start] + put + solved[start + length :])
