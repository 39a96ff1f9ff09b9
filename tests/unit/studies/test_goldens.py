"""Each kind of picture is, byte for byte, the one in tests/goldens; ``python -m tests.goldens`` draws them anew."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from bench.mistakes import MISTAKES
from bench.studies.registry import STUDIES
from tests import goldens

COMMITTED = {path.name: path.read_text(encoding="utf-8") for path in sorted(goldens.FOLDER.glob("*.svg"))}


def in_words(versions: dict[str, str]) -> str:
    """``matplotlib 3.10.0, freetype 2.6.1``."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def test_every_picture_is_its_golden():
    here, there = goldens.versions(), goldens.drawn_with()
    if here != there:
        pytest.skip(f"the goldens were drawn with {in_words(there)}; here is {in_words(here)}")
    drawn = goldens.pictures()
    assert list(COMMITTED) == sorted(drawn), "run `python -m tests.goldens`"
    other = [name for name, svg in drawn.items() if svg != COMMITTED[name]]
    assert not other, "drawn otherwise: run `python -m tests.goldens`, and look at what changed"


def test_every_study_and_every_way_in_which_a_lab_is_drawn_has_a_golden():
    suites = [suite for suite, _ in goldens.suites().values()]
    assert {suite.study for suite in suites} == set(STUDIES)
    ways = {STUDIES["lab"].result(suite).mistake.lab.shows for suite in suites if suite.study == "lab"}
    assert ways == {mistake.lab.shows for mistake in MISTAKES.values()}


def test_a_golden_says_nothing_of_the_day_or_the_program_that_drew_it():
    for name, svg in COMMITTED.items():
        ElementTree.fromstring(svg)
        assert "<dc:date>" not in svg and "Matplotlib" not in svg, name


def test_all_are_renewed_with_their_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(goldens, "FOLDER", tmp_path)
    monkeypatch.setattr(goldens, "VERSIONS", tmp_path / "versions.json")
    monkeypatch.setattr(goldens, "pictures", lambda: {"new.svg": "<svg/>"})
    (tmp_path / "gone.svg").write_text("<svg/>")
    goldens.renew()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.svg", "versions.json"]
    assert json.loads((tmp_path / "versions.json").read_text()) == goldens.versions()
