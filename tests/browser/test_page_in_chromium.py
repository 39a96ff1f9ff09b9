"""The page in a real browser: headless Chromium, at a phone's width and at a desktop's."""

import pytest

from bench.analysis.suite import suites_of
from bench.report import page
from tests import records
from tests.browser.chromium import WIDTHS, needs_chromium

pytestmark = needs_chromium

# What the page looks like with all that folds open, asked in the page itself. Boxes are in CSS pixels.
QUESTION = """(() => {
  document.querySelectorAll("details").forEach(e => { e.open = true; });
  const all = what => [...document.querySelectorAll(what)], seen = e => e.getBoundingClientRect();
  return {
    svgs: all("svg").filter(e => seen(e).width > 100 && seen(e).height > 100).length,
    boxes: all(".box").length,
    fitting: all(".box").filter(e => seen(e).right <= window.innerWidth + 1).length,
    smallest: Math.min(...all("svg text").filter(t => t.textContent.trim()).map(t => seen(t).height)),
  };
})()"""
OTHERS = {
    "weak": records.scaling_programs("weak"),
    "breakdown": records.breakdown_programs(),
    "sweep": records.sweep_programs(),
    "replay": records.replay_programs(),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page with suites of several studies, an unfair one, failed and single runs, and a refused file."""
    unfair = records.compare_programs()
    unfair["ddp"]["compression"] = "fp16"
    found = records.suite_records("compare", unfair, rounds=8)
    for study, programs in OTHERS.items():
        found += records.suite_records(study, programs, rounds=2)
    others = [records.record("ddp"), records.record("dp", failed="killed")]
    refused = [f"/a/{'very-' * 40}long/record.json: not a readable record"]
    path = tmp_path_factory.mktemp("page") / "report.html"
    return page.write_page(suites_of(found), others, refused, path)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_can_be_read_and_asks_for_nothing_else(browser, written, width):
    browser.open(written, width)
    look = browser.evaluate(QUESTION)
    assert look["boxes"] == look["fitting"] > 10
    assert look["svgs"] == written.read_text().count("<svg") > len(OTHERS) and look["smallest"] >= 7
    browser.assert_fits(width, "body", ".box, pre")
    assert browser.asked() == [written.as_uri()] and browser.of("Runtime.consoleAPICalled") == []
