"""Texts that are made from code and records are as they would be made now; their links lead somewhere."""

import re

import pytest

from bench.commands import renew
from bench.files import PROJECT
from bench.report import markdown

TEXTS = dict(renew.texts())
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_text_is_stale(path):
    assert path.read_text() == TEXTS[path], "run `make renew`, and read the difference"


@pytest.mark.parametrize("path", [*TEXTS, PROJECT / "CONTRIBUTING.md"], ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_link_leads_to_a_file(path):
    targets = [target for target in LINK.findall(path.read_text()) if "://" not in target]
    assert not [target for target in targets if not (path.parent / target).exists()]


def test_the_readme_is_read_in_one_sitting():
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 120


def test_a_block_that_nobody_makes_is_an_error():
    with pytest.raises(KeyError):
        markdown.with_blocks("<!-- begin: nothing -->\n<!-- end: nothing -->", {})
