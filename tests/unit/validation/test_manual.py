"""Texts that are made from code and records are as they would be made now; their links lead somewhere."""

import re

import pytest

from bench.files import PROJECT
from tests.validation.pages import manual

LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
FILE = re.compile(r"`((?!\S*NN_)(?:\w+/)+(?:\w+\.(?:py|md))?)`")  # NN_name: the reader's own

VALIDATION = PROJECT / "tests" / "validation"


def test_no_text_is_stale_and_every_link_leads_to_a_file():
    texts = dict(manual.documents())  # every record of the reference is read for them
    stale = [str(path.relative_to(PROJECT)) for path, text in texts.items() if path.read_text() != text]
    assert stale == [], "run `python -m tests.validation.renew`, and read the difference"
    together = "".join(texts.values())
    assert [name for name in manual.BLOCKS if f"<!-- begin: {name} -->" not in together] == []
    with pytest.raises(KeyError):
        manual.with_blocks("<!-- begin: nothing -->\n<!-- end: nothing -->", {})
    lost = [(path.name, target) for path in [*texts, PROJECT / "CONTRIBUTING.md", VALIDATION / "README.md"]
            for target in LINK.findall(path.read_text())
            if "://" not in target and not (path.parent / target).exists()]  # fmt: skip
    assert lost == []


def test_every_file_that_is_named_is_there():
    """In what says how to add something: by its path from the project, or from bench."""
    named, lost = 0, []
    for path in [PROJECT / "CONTRIBUTING.md", *(PROJECT / "bench").rglob("README.md")]:
        names = FILE.findall(path.read_text())
        named += len(names)
        lost += [(path.name, name) for name in names if not any((PROJECT / p / name).exists() for p in ("", "bench"))]
    assert named > 20 and lost == []


def test_what_is_run_by_hand_is_listed():
    programs = [path for path in VALIDATION.rglob("*.py") if '\nif __name__ == "__main__"' in path.read_text()]
    names = {path.stem for path in programs if path.parent == VALIDATION}
    names |= {path.parent.name for path in programs if path.name == "__main__.py"}
    listed = re.findall(r"^\| `(\w+)", (VALIDATION / "README.md").read_text(), re.MULTILINE)
    assert len(names) > 5 and names == set(listed)


def test_the_readme_is_read_in_one_sitting():
    lines = (PROJECT / "README.md").read_text().splitlines()
    assert len(lines) <= 100 and any(line.startswith("![") for line in lines[:25])
