"""The site, of small chapters: made, read, and opened in a browser at two widths."""

import json
import re

import pytest

from bench.course import chapters, site
from bench.errors import RunFailed
from tests.browser.axe import find_violations, needs_axe
from tests.browser.chromium import WIDTHS, needs_chromium

pytest.importorskip("myst_nb", reason="the site extra is not installed")

README = """# The course

Begin with [chapter 1](01_first.md), then the [sets](exercises/README.md); the code is [here](../bench/worker.py).
"""
FIRST = """# 1. First

**Question.** Does it fit? See [the second](02_second.ipynb#summary) and [its set](exercises/01_first.md).

```python
print("a line that is far too long for a telephone: " + "x" * 300)
print("second line")
```

| a | wide | table | of | many | columns | that | does | not | fit |
|---|---|---|---|---|---|---|---|---|---|
| `some_long_name_of_a_thing` | `some_long_name_of_a_thing` | `some_long_name_of_a_thing` | 4 | 5 | 6 | 7 | 8 | 9 | 10 |

```python
from bench import course

course.source("bench.modes.dp", "CpuDataParallel.scatter")
```

```python
from IPython.display import SVG

SVG('<svg xmlns="http://www.w3.org/2000/svg" width="900" height="90"><rect width="900" height="90"/></svg>')
```
"""
SECOND = """# 2. Second

## Summary

- `a_very_long_word_in_code_that_has_no_place_to_break_and_is_wider_than_a_phone_at_any_size_of_type` and $5 or $6.

A formula, $a_1$, and one for itself:

$$\\left(1 - \\frac{a \\cdot b}{2\\,|a|^2}\\right) a$$
"""
THIRD = """# 3. Third

## A prediction

```python
guess_lines = None  # your number: lines of the output
guess_cost = None  # cost of a line
```

## Outputs

```python
from bench import course

course.compare_guess("it has 30 lines", 30, guess_lines=guess_lines)
```

```python
print("\\n".join(f"line {i} <&>" for i in range(30)))
```

```python alt="A line that rises"
from matplotlib.figure import Figure

figure = Figure()
figure.subplots().set(title="Rise", xlabel="step")
figure
```

```python
figure
```

## Figures

![Bars of memory](site/figures/memory.svg)

![Calls of two ranks](site/figures/hang.svg)
"""
GUIDE = """# The guide

Back to [the start](README.md), by the [`Makefile`](../Makefile).

![A dot](../results/dot.svg)
"""
SET = """# Problem set 1: First

## Task 1 (2 points)

**Objective.** You can double a number. **Minutes:** 5.

<!-- BEGIN RUBRIC -->
- Test 1 (2 points): the_hidden_one, too. By hand: 2 for the_secret_of_the_set.
<!-- END RUBRIC -->

```python tags=["answer"]
def double(x):
    ### BEGIN SOLUTION
    return x + the_secret_of_the_set
    ### END SOLUTION
```

```python tags=["test"] points=2
assert double(1) == 2
### BEGIN HIDDEN TESTS
assert the_hidden_one
### END HIDDEN TESTS
```
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tutorials")
    (folder / "exercises").mkdir()
    (folder.parent / "results").mkdir()
    (folder.parent / "results" / "dot.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    for name, text in {
        "README.md": README, "01_first.md": FIRST, "02_second.md": SECOND, "03_third.md": THIRD,
        "exercises/01_first.md": SET,
        "exercises/README.md": "# Problem sets\n",
        "guide.md": GUIDE,
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def made(texts):
    out = texts.parent / "site"
    site.build(quick=True, tutorials=texts, notebooks=texts.parent / "notebooks", to=out)
    return out


def test_every_page_is_there_and_linked(made):
    """A picture of the repository comes along, and a file that is not a page gets no link."""
    index, first, guide = ((made / f"{page}.html").read_text() for page in ("index", "01_first", "guide"))
    for page in ("01_first.html", "02_second.html", "exercises/index.html", "guide.html"):
        assert (made / page).exists() and f'href="{page}"' in index, page
    assert "worker.py" not in index and "the code is here" in index
    assert 'href="02_second.html#summary"' in first and 'href="exercises/01_first.html"' in first
    (shown,) = re.findall(r'<img alt="A dot" src="([^"]+)"', guide)
    assert (made / shown).read_text().startswith("<svg") and 'Makefile"' not in guide and "Makefile</span>" in guide


def test_a_chapter_shows_its_outputs_and_where_they_are_from(made, texts, monkeypatch):
    """The notebook to take home is the executed one. What has been executed is not executed again."""
    first = (made / "01_first.html").read_text()
    assert first.count("second line") == 2, "in the cell and in the output"
    executed = json.loads((texts.parent / "notebooks" / "01_first.ipynb").read_text())
    assert executed["metadata"]["course"]["where"] in first
    assert json.loads((made / "_sources" / "01_first.ipynb").read_text())["cells"][1]["outputs"]
    monkeypatch.setattr(chapters, "execute", lambda *_: pytest.fail("executed again"))
    monkeypatch.setattr(site, "render", lambda *_: None)
    site.build(True, texts, texts.parent / "notebooks", texts.parent / "again")


def test_formulas_are_pictures_and_no_solution_is_published(made):
    second = (made / "02_second.html").read_text()
    assert second.count('<img class="formula') == 2 and 'alt="a_1"' in second and "$5 or $6" in second
    for path in [*made.rglob("*"), *made.with_name("site-source").rglob("*")]:
        text = path.read_text(errors="replace") if path.is_file() else ""
        assert "the_secret_of_the_set" not in text and "the_hidden_one" not in text, path
        # a class that the parser gives to every section
        assert path.suffix != ".html" or "mathjax" not in text.lower().replace("mathjax_ignore", "")
    assert "NotImplementedError" in (made / "exercises" / "01_first.html").read_text()


def test_long_outputs_are_folded_and_images_have_alternative_texts(made):
    """The text's own, or the words of the figure when it is drawn. A cell that only imports or asks is folded."""
    third = (made / "03_third.html").read_text()
    assert re.findall(r'<img alt="([^"]+)"', third)[:2] == ["A line that rises", "Rise. x: step."]
    assert "_images/" not in "".join(re.findall(r'alt="([^"]*)"', third))
    first, rest = re.search(
        r"<pre>(line 0.*?)</pre><details><summary>22 more lines</summary><pre>(.*?)</pre>", third, re.S
    ).groups()
    assert first.count("\n") == 7 and rest.endswith("line 29 &lt;&amp;&gt;")
    assert third.count("tag_hide-input") == 1 and "None" not in re.sub(r"<pre>.*?</pre>", "", third, flags=re.S)


def test_the_notebook_to_take_home_has_no_boxes_of_the_page(made):
    taken = (made / "_sources" / "03_third.ipynb").read_text()
    assert "guess-box" not in taken and "data-figure" not in taken and "it has 30 lines" in taken


def test_links_and_pictures_of_the_real_texts_lead_to_pages(tmp_path, monkeypatch):
    """What Sphinx, for which the whole course takes too long here, would find fault with."""
    monkeypatch.setattr(chapters, "find_or_execute", lambda path, *_: path.with_suffix(".ipynb"))
    monkeypatch.setattr(site, "render", lambda *_: None)
    site.build(to=tmp_path / "site")
    pages = [path for path in (tmp_path / "site-source").rglob("*") if path.suffix == ".md"]
    assert len(pages) > 40
    for page in pages:
        text = "".join(piece for is_code, piece in site.split_code(page.read_text()) if not is_code)
        targets = [found["target"] for form in (site.LINK, site.PICTURE) for found in form.finditer(text)]
        files = [target.partition("#")[0] for target in targets if target and not re.match(r"[a-z]+:|#", target)]
        assert not [file for file in files if not (page.parent / file).exists()], page.name


def test_a_broken_text_is_an_error(tmp_path):
    (tmp_path / "texts" / "exercises").mkdir(parents=True)
    for place in ("README.md", "exercises/README.md"):
        (tmp_path / "texts" / place).write_text("# A\n")
    (tmp_path / "texts" / "guide.md").write_text("# A\n\n```{nosuchdirective}\n```\n")
    with pytest.raises(RunFailed, match=r"guide\.md:3: (?s:.*)nosuchdirective"):
        site.build(True, tmp_path / "texts", tmp_path / "notebooks", tmp_path / "site")


PAGES = ["index", "01_first", "02_second", "03_third", "exercises/01_first"]
QUESTION = """(() => {
  const scrolls = e => e.closest("pre, table, .output, .cell_output, dialog, [class*=sidebar]") !== null;
  const width = window.innerWidth;
  return {
    scroll_width: document.documentElement.scrollWidth, width,
    wide: [...document.querySelectorAll(".bd-article *")].filter(
      e => !scrolls(e) && e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML.slice(0, 80)),
    blank: [...document.querySelectorAll(".bd-article img")].filter(e => e.naturalWidth === 0).length,
    type: parseFloat(getComputedStyle(document.querySelector(".bd-article")).fontSize),
  };
})()"""
SEARCH = """new Promise(done => {
  const look = () => {
    const found = [...document.querySelectorAll("#search-results li a")].map(a => a.getAttribute("href"));
    found.length ? done(found) : setTimeout(look, 100);
  };
  look();
})"""


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_asks_no_other_host(made, browser, page, width):
    browser.open((made / f"{page}.html").as_uri(), *WIDTHS[width], mobile=width == "phone")
    look = browser.evaluate(QUESTION)
    assert look["wide"] == [] and look["scroll_width"] <= look["width"] == WIDTHS[width][0]
    assert look["type"] >= 16 and look["blank"] == 0
    assert browser.asked() and [url for url in browser.asked() if not url.startswith(f"{made.as_uri()}/")] == []
    assert browser.of("Network.loadingFailed", "Runtime.exceptionThrown") == []


@needs_chromium
def test_the_search_works_without_a_server(made, browser):
    browser.open(f"{(made / 'search.html').as_uri()}?q=telephone", *WIDTHS["desktop"], mobile=False)
    assert any("01_first.html" in href for href in browser.evaluate(SEARCH))


def fill(selector: str, value: str) -> str:
    """JavaScript: type into a field, as its user would."""
    return f"""(() => {{ const field = document.querySelector('{selector}'); field.value = '{value}';
      field.dispatchEvent(new Event("input", {{ bubbles: true }})); return true; }})()"""


@needs_chromium
def test_a_guess_is_remembered_compared_and_scored(made, browser):
    """After a reload, and on the start page, together with the chapters that were read."""
    url, desktop = (made / "03_third.html").as_uri(), WIDTHS["desktop"]
    browser.open(url, *desktop, mobile=False)
    browser.evaluate("localStorage.clear()")
    browser.open(url, *desktop, mobile=False)
    assert browser.evaluate("[...document.querySelectorAll('.guess-box label')].map(e => e.textContent.trim())") == [
        "Your guess: lines of the output", "Your guess: cost of a line",
    ]  # fmt: skip
    answer = "document.querySelector('.guess-answer').textContent"
    assert browser.evaluate(answer) == "it has 30 lines"
    browser.evaluate(fill('[data-guess="03_third guess_lines"] input', "60"))
    browser.evaluate("document.querySelector('[data-read]').click()")
    browser.open(url, *desktop, mobile=False)
    assert browser.evaluate("document.querySelector('.guess-box input').value") == "60"
    assert browser.evaluate(answer) == "it has 30 linesYour guess: 60, 2 times too large."

    browser.open((made / "index.html").as_uri(), *desktop, mobile=False)
    said = browser.evaluate("document.querySelector('.course-progress').textContent")
    assert "1 of 3 chapters read" in said and "1 of 2 guesses made: 0 within 10 %, 1 within a factor of 2" in said
    assert browser.evaluate("[...document.querySelectorAll('.score-card tbody td')].map(e => e.textContent)") == [
        "3. Third", "lines of the output", "60", "30", "2 times too large",
    ]  # fmt: skip
    browser.evaluate("document.querySelector('.course-progress button').click()")
    assert "0 of 3 chapters read" in browser.evaluate("document.querySelector('.course-progress').textContent")
    assert browser.evaluate("Object.keys(localStorage).filter(key => key.startsWith('course '))") == []


def press(browser, key: str, code: int) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_a_figure_answers_to_the_keyboard_and_its_text_stays_inside(made, browser, width):
    browser.open((made / "03_third.html").as_uri(), *WIDTHS[width], mobile=width == "phone")
    words = "document.querySelector('[data-figure={}] .figure-words').textContent"
    before = browser.evaluate(words.format("memory"))
    browser.evaluate("document.querySelector('#figure-memory-ranks').focus()")
    press(browser, "ArrowRight", 39)
    after = browser.evaluate(words.format("memory"))
    assert before != after and "Peak:" in after

    assert browser.evaluate(words.format("hang")).startswith("Hangs")
    browser.evaluate("document.querySelector('[data-rank=\"1\"] button[title=Later]').focus()")
    browser.ask(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
    )
    assert browser.evaluate(words.format("hang")).startswith("Returns, with the right values")
    outside = """[...document.querySelectorAll(".figure-drawing svg text")].filter(t => {
      const a = t.getBoundingClientRect(), b = t.closest("svg").getBoundingClientRect();
      return a.right > b.right + 1 || a.left < b.left - 1 || a.bottom > b.bottom + 1 || b.right > window.innerWidth;
    }).map(t => t.textContent)"""
    assert browser.evaluate(outside) == []
    assert browser.of("Runtime.exceptionThrown", "Log.entryAdded") == []


@needs_chromium
@pytest.mark.parametrize("pointer", ["mouse", "finger"])
def test_a_call_is_dragged_to_another_place(made, browser, pointer):
    browser.open((made / "03_third.html").as_uri(), *WIDTHS["desktop"], mobile=pointer == "finger")
    browser.ask("Emulation.setTouchEmulationEnabled", enabled=pointer == "finger")
    x, y = browser.evaluate("""(() => { const e = document.querySelectorAll('[data-rank="1"] .figure-handle')[1];
      e.scrollIntoView({block: "center", behavior: "instant"});
      const r = e.getBoundingClientRect(); return [r.left + 20, r.top + r.height / 2]; })()""")
    for up in (0, 20, 45):
        if pointer == "mouse":
            kind = "mouseMoved" if up else "mousePressed"
            browser.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y - up, button="left", buttons=1, clickCount=1)
        else:
            kind = "touchMove" if up else "touchStart"
            browser.ask("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y - up}])
    if pointer == "mouse":
        browser.ask("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y - 45, button="left", clickCount=1)
    else:
        browser.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.ask("Emulation.setTouchEmulationEnabled", enabled=False)
    said = browser.evaluate("document.querySelector('[data-figure=hang] .figure-words').textContent")
    assert said.startswith("Returns, with the right values.")


@needs_axe
@needs_chromium
@pytest.mark.parametrize(("theme", "width"), [("light", "desktop"), ("dark", "phone")])
@pytest.mark.parametrize("page", ["index", "01_first", "03_third", "search"])
def test_a_page_passes_the_checks_of_axe(made, browser, page, theme, width):
    browser.open((made / f"{page}.html").as_uri(), *WIDTHS["desktop"], mobile=False)
    browser.evaluate(f"""['mode', 'theme'].forEach(name => {{
      localStorage.setItem(name, '{theme}'); document.documentElement.dataset[name] = '{theme}'; }})""")
    browser.open((made / f"{page}.html").as_uri(), *WIDTHS[width], mobile=width == "phone")
    assert find_violations(browser) == []
