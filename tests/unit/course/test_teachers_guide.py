"""The teacher's guide and the table of contents: their figures are the records', and their links lead somewhere."""

import re

import pytest

from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suites_of
from bench.course import diagrams
from bench.record.read import find_records
from tests.runs import ROOT

TUTORIALS = ROOT / "tutorials"
GUIDE = " ".join((TUTORIALS / "teachers-guide.md").read_text().split())


def test_the_guide_says_what_the_committed_comparison_says():
    records, _ = find_records(ROOT / "results" / "reference")
    (suite,) = [suite for suite in suites_of(records) if suite.kind == "compare"]
    result = compare_suite(suite)
    assert f"n = {suite.n} rounds" in GUIDE
    for role, name in (("dp", "DataParallel reaches"), ("ddp", "DDP"), ("horovod", "Horovod")):
        found = result.pair(result.base, role).comparison
        assert f"{name} {found.ratio:.3f} [{found.low:.3f}–{found.high:.3f}]" in GUIDE


def test_the_guide_says_what_a_worker_of_the_example_took():
    records, _ = find_records(ROOT / "results" / "reference")
    (example,) = [r for r in records if r["config"]["num_devices"] == 4 and not r["config"].get("suite")
                  and r["config"]["mode"] == "ddp"]  # fmt: skip
    took = [device["pss"] for device in example["summary"]["peak_memory_gib"]]
    assert f"{min(took):.2f} to {max(took):.2f} GiB each" in GUIDE


@pytest.mark.parametrize("name", ["README.md", "teachers-guide.md"])
def test_links_lead_to_files(name):
    for target in re.findall(r"\]\(([^)#:]+)\)", (TUTORIALS / name).read_text()):
        assert (TUTORIALS / target).exists(), target


def test_the_table_of_contents_names_every_chapter():
    listed = re.findall(r"\((\d\d_\w+)\.md\)", (TUTORIALS / "README.md").read_text())
    assert listed == [path.stem for path in sorted(TUTORIALS.glob("[0-9][0-9]_*.md"))]


@pytest.mark.parametrize("draw", [diagrams.machines, diagrams.decision])
def test_a_drawing_can_be_drawn(draw):
    draw().canvas.draw()
