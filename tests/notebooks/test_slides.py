"""Slides made of a small chapter: what is on them, and how they look and turn in a browser."""

import pytest

from bench.course import chapters, slides
from tests.browser.chromium import WIDTHS, needs_chromium
from tests.notebooks import cell, markdown
from tests.notebooks.executed import as_if_executed

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")
TEXT = markdown(
    "# 3. A chapter", "**Question.** Is $a_1$ enough? See [chapter 2](02_second.md).",
    "## A prediction", "Guess.", cell("from bench import course"), cell("guess = None  # your number"),
    "## A section", "First words.", "Last words:", cell("def double(x):\n    return 2 * x"), cell("double(2)"),
    "Then a picture:", cell("picture"),
    "## Summary", "- one",
    "## Exercises", cell("left_out = 1"),
)  # fmt: skip
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="90"><rect width="900" height="90"/></svg>'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The slides' file, of a notebook as if it had been executed."""
    folder = tmp_path_factory.mktemp("slides")
    path = folder / "03_chapter.md"
    path.write_text(TEXT)
    shows = {"text/plain": "4"}, {"text/plain": "not this", "image/svg+xml": PICTURE}
    double, picture = (nbformat.v4.new_output("execute_result", each) for each in shows)
    as_if_executed(path, folder, None, None, None, double, picture, None)
    return slides.of_chapter(path, folder / "slides", folder / "none")


def test_a_slide_per_cell_that_shows_something(made):
    path = made.parent.parent / "03_chapter.md"
    found = list(slides.slides_of(chapters.notebook_to_commit(path)))
    assert [slide.title for slide in found] == ["3. A chapter", "A prediction", "A section", "A section", "Summary"]
    first, _, double, picture, summary = found
    assert "chapter 2" in first.text and "href" not in first.text and '<img class="formula inline"' in first.text
    assert "double" in double.code and double.code.count("<pre>") == 1 and double.outputs == ["<pre>4</pre>"]
    assert "Last words" in double.text and "First words" not in double.text and "First words" in double.notes
    assert picture.outputs == [PICTURE]
    assert "<li>one" in summary.text and not summary.code
    assert "left_out" not in made.read_text() and "outputs: a machine" in made.read_text()


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_slides_turn_fit_and_ask_no_other_host(made, browser, width):
    browser.open(made, width)

    def press(*keys: str) -> None:
        for key in keys:
            browser.evaluate(f"dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))")

    on = "[...document.querySelectorAll('section')].findIndex(s => s.getBoundingClientRect().height > 0)"
    seen = [browser.evaluate(on)]
    for key in ("ArrowRight", "PageDown", "ArrowLeft", "End", "ArrowRight"):
        press(key)
        seen.append(browser.evaluate(on))
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert seen == [0, 1, 2, 1, 4, 4]
    notes = "document.querySelectorAll('.notes')[0].getBoundingClientRect().height"
    press("Home", "PageDown", "PageDown")
    assert browser.evaluate(notes) == 0
    press("n")
    assert browser.evaluate(notes) > 0
    assert browser.asked() and [url for url in browser.asked() if not url.startswith("file:")] == []
    assert browser.of("Network.loadingFailed", "Runtime.exceptionThrown") == []
