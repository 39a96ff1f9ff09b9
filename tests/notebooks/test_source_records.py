"""The project's own code and committed records, as the chapters show them."""

import ast
import re

import pytest

from bench.analysis.suite import suites_of
from bench.config.modes import MODES
from bench.course import machine, records
from bench.course.source import source
from bench.errors import UserError
from bench.record.read import find_records
from bench.studies.registry import STUDIES
from tests.runs import ROOT

pytestmark = pytest.mark.quick

SHOWN = re.compile(r'course\.source\("([^"]+)"(?:, "([^"]+)")?\)')


def test_what_the_texts_show_is_there():
    texts = (path.read_text() for path in (ROOT / "tutorials").rglob("*.md"))
    shown = {names for text in texts for names in SHOWN.findall(text)}
    assert len(shown) > 20 and all(source(*filter(None, names)).text for names in shown)


@pytest.mark.parametrize("mode", MODES)
def test_a_modes_lesson_is_the_docstring_of_its_file(mode):
    shown = source(f"bench.modes.{mode}")
    assert shown.place == f"# bench/modes/{mode}.py, line 1"
    assert ast.get_docstring(ast.parse(shown.text)) == ast.get_docstring(
        ast.parse((ROOT / "bench" / "modes" / f"{mode}.py").read_text())
    )


def test_a_method_is_shown_from_its_file_and_moved_to_the_margin():
    shown = source("bench.modes.dp", "CpuDataParallel.scatter")
    number = int(shown.place.rpartition(" ")[2])
    first = (ROOT / "bench/modes/dp.py").read_text().splitlines()[number - 1]
    assert shown.text.splitlines()[0] == first.strip() and shown.text.startswith(("def scatter", "@"))
    ast.parse(shown.text)
    assert repr(shown) == f"{shown.place}\n{shown.text}"
    assert "<div" in shown._repr_html_() and "http" not in shown._repr_html_()


def test_a_decorator_belongs_to_its_function():
    assert source("bench.course.records", "suites_named").text.startswith("@functools.cache\ndef suites_named")


def test_a_constant_and_a_package():
    assert source("bench.course.records", "REFERENCE").text.startswith("REFERENCE = ")
    assert source("bench.config.modes").place == "# bench/config/modes.py, line 1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench.nothing",), "there is no module bench.nothing"),
        (("bench.modes.dp", "Nothing"), "there is no Nothing in bench.modes.dp"),
        (("bench.modes.dp", "Mode.nothing"), "there is no Mode.nothing"),
        (("bench.course.records", "REFERENCE.nothing"), "there is no REFERENCE.nothing"),
        (("tests.notebooks.__init__",), "has no docstring"),
    ],
)
def test_what_there_is_not(arguments, words):
    with pytest.raises(UserError, match=words):
        source(*arguments)


@pytest.mark.parametrize("study", ["compare", "replay", "weak", "breakdown", "knobs", "accuracy", "unsynced", "lab"])
def test_a_committed_suite_names_its_machine(study):
    found = records.references(study)
    assert found and all(suite.study == study and suite.device == "cpu" for suite in found)
    assert records.reference(study) is found[-1] and records.reference(study, which=0) is found[0]
    assert "torch" in machine(found[-1].first) and found[-1].machine == machine(found[-1].first)


def test_every_committed_suite_is_found_by_its_study():
    suites = suites_of(find_records(records.REFERENCE)[0])
    assert {suite.id for suite in suites} == {s.id for name in STUDIES for s in records.suites_named(name)}


def test_of_several_suites_one_is_found_by_what_it_is_about():
    replay, lab = records.reference("replay", about="dp-workers"), records.reference("lab", about="local-norm")
    assert [replay.of_variant(name).config.workers for name in ("fair", "unfair")] == [2, 1]
    assert "wrong: local-norm" in lab.programs and records.reference("lab", about="no-such-mistake") is None


def test_a_suite_is_compared_and_drawn_as_its_study_does_it():
    suite = records.reference("compare")
    assert records.compared(suite).pair("single", "ddp").comparison.n == suite.n
    assert {"ratios", "throughput"} <= set(records.pictures(suite))


def test_a_study_that_there_is_not():
    with pytest.raises(UserError, match="no suite is called 'comparison'"):
        records.reference("comparison")


def test_where_no_gpu_has_measured_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr(records, "suites_named", lambda study: [])
    records.no_gpu_record("compare", "make compare GPUS=2")
    assert capsys.readouterr().out == (
        "No record of 'compare' from a GPU is published yet. On a machine with GPUs: make compare GPUS=2\n"
    )


def test_without_a_clone_there_are_no_records(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "REFERENCE", tmp_path / "none")
    with pytest.raises(UserError, match="need a clone of the repository"):
        records.suites_named.__wrapped__("compare")
