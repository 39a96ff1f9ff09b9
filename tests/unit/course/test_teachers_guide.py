"""The teacher's guide and the table of contents: their numbers are the records', and their links lead somewhere."""

import re

import pytest

from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suites_of
from bench.record.read import find_records
from tests.runs import ROOT
from tests.validation.pages.reference_page import is_claim

TUTORIALS = ROOT / "tutorials"


@pytest.fixture(scope="module")
def committed():
    return find_records(ROOT / "results" / "reference")[0]


@pytest.fixture(scope="module")
def guide():
    return " ".join((TUTORIALS / "teachers-guide.md").read_text().split())


def test_the_guides_ratios_are_those_of_the_committed_comparison(committed, guide):
    (suite,) = [suite for suite in suites_of(committed) if is_claim(suite, "compare")]
    result = compare_suite(suite)
    said = re.findall(r"\d\.\d{3} \[\d\.\d{3}–\d\.\d{3}\]", guide)
    found = [result.pair(result.base, mode).comparison for mode in ("dp", "ddp", "horovod")]
    assert said == [f"{c.ratio:.3f} [{c.low:.3f}–{c.high:.3f}]" for c in found]
    assert f"n = {suite.n}" in guide


def test_the_guides_memory_of_a_worker_is_the_examples(committed, guide):
    (example,) = [r for r in committed if not r.label.suite and r.config.mode == "ddp" and r.num_devices == 4]
    took = [device["pss"] for device in example.peak_memory]
    assert f"{min(took):.2f} to {max(took):.2f} GiB" in guide


def test_links_lead_to_files_and_the_table_of_contents_names_every_chapter():
    readme = (TUTORIALS / "README.md").read_text()
    for text in (readme, (TUTORIALS / "teachers-guide.md").read_text()):
        assert [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (TUTORIALS / link).exists()] == []
    chapters = [path.stem for path in sorted(TUTORIALS.glob("[0-9][0-9]_*.md"))]
    assert re.findall(r"\((\d\d_\w+)\.md\)", readme) == chapters
