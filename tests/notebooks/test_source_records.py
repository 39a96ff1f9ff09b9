"""The project's own code and committed records, as the chapters show them."""

import ast
import re

import pytest

from bench.analysis.suite import suites_of
from bench.config.modes import MODES
from bench.course import machine, records
from bench.course.source import source
from bench.record.read import find_records
from bench.studies.registry import STUDIES
from tests.runs import ROOT, refuses

pytestmark = pytest.mark.quick

SHOWN = re.compile(r'course\.source\("([^"]+)"(?:, "([^"]+)")?\)')


def test_what_the_texts_show_is_there():
    texts = (path.read_text() for path in (ROOT / "tutorials").rglob("*.md"))
    shown = {names for text in texts for names in SHOWN.findall(text)}
    assert len(shown) > 20 and all(source(*filter(None, names)).text for names in shown)


def test_code_is_shown_from_its_file():
    """A module's is its docstring; a method is moved to the margin, and a decorator belongs to its function."""
    for mode in MODES:
        shown, file = source(f"bench.modes.{mode}"), (ROOT / "bench" / "modes" / f"{mode}.py").read_text()
        assert shown.place == f"# bench/modes/{mode}.py, line 1"
        assert ast.get_docstring(ast.parse(shown.text)) == ast.get_docstring(ast.parse(file))
    shown = source("bench.modes.dp", "CpuDataParallel.scatter")
    number = int(shown.place.rpartition(" ")[2])
    first = (ROOT / "bench/modes/dp.py").read_text().splitlines()[number - 1]
    assert shown.text.splitlines()[0] == first.strip() and shown.text.startswith(("def scatter", "@"))
    ast.parse(shown.text)
    assert repr(shown) == f"{shown.place}\n{shown.text}"
    assert "<div" in shown._repr_html_() and "http" not in shown._repr_html_()
    assert source("bench.course.records", "suites_named").text.startswith("@functools.cache\ndef suites_named")
    assert source("bench.course.records", "REFERENCE").text.startswith("REFERENCE = ")
    assert source("bench.config.modes").place == "# bench/config/modes.py, line 1"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("bench.nothing",), "bench.nothing"),
        (("bench.modes.dp", "Nothing"), "Nothing"),
        (("bench.modes.dp", "Mode.nothing"), "Mode.nothing"),
        (("bench.course.records", "REFERENCE.nothing"), "REFERENCE.nothing"),
        (("tests.notebooks.__init__",), "tests.notebooks.__init__"),  # no docstring
    ],
)
def test_what_there_is_not(arguments, value):
    with refuses(value):
        source(*arguments)


@pytest.mark.parametrize("study", ["compare", "replay", "weak", "breakdown", "sweep", "accuracy", "unsynced", "lab"])
def test_a_committed_suite_names_its_machine(study):
    found = records.references(study)
    assert found and all(suite.study == study and suite.device == "cpu" for suite in found)
    assert records.reference(study) is found[-1] and records.reference(study, which=0) is found[0]
    assert "torch" in machine(found[-1].first) and found[-1].machine == machine(found[-1].first)


def test_committed_suites_are_found_compared_and_drawn(monkeypatch, capsys):
    suites = suites_of(find_records(records.REFERENCE)[0])
    assert {suite.id for suite in suites} == {s.id for name in STUDIES for s in records.suites_named(name)}
    replay, lab = records.reference("replay", about="dp-workers"), records.reference("lab", about="local-norm")
    assert [replay.of_variant(name).config.workers for name in ("fair", "unfair")] == [2, 1]
    assert "wrong: local-norm" in lab.programs and records.reference("lab", about="no-such-mistake") is None
    suite = records.reference("compare")
    assert records.compared(suite).pair("single", "ddp").comparison.n == suite.n
    assert {"ratios", "throughput"} <= set(records.pictures(suite))
    with refuses("comparison"):
        records.reference("comparison")
    monkeypatch.setattr(records, "suites_named", lambda study: [])
    records.no_gpu_record("compare", "make compare GPUS=2")
    assert "make compare GPUS=2" in capsys.readouterr().out


def test_without_a_clone_there_are_no_records(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "REFERENCE", tmp_path / "none")
    with refuses():
        records.suites_named.__wrapped__("compare")
