"""Three pictures are, byte for byte, those in tests/goldens; ``python -m tests.goldens`` draws them again."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from tests import goldens

COMMITTED = {path.name: path.read_text(encoding="utf-8") for path in sorted(goldens.FOLDER.glob("*.svg"))}


def test_every_picture_is_its_golden_which_names_no_day_and_no_program():
    for name, svg in COMMITTED.items():
        ElementTree.fromstring(svg)
        assert "<dc:date>" not in svg and "Matplotlib" not in svg, name
    here, there = goldens.versions(), json.loads(goldens.VERSIONS.read_text())
    if here != there:
        pytest.skip(f"the goldens were drawn with {there}; here is {here}")
    drawn = goldens.pictures()
    assert set(COMMITTED) == set(drawn)
    assert [name for name, svg in drawn.items() if svg != COMMITTED[name]] == []
