"""The site, of small chapters: made, read, and opened in a browser at two widths."""

import json
import re
import sys
from importlib.util import find_spec

import pytest

from bench.course import chapters, site, translation
from bench.errors import RunFailed, UserError
from tests.browser.axe import find_violations, needs_axe
from tests.browser.chromium import WIDTHS, needs_chromium

pytest.importorskip("myst_nb", reason="the site extra is not installed")
pytestmark = pytest.mark.skipif(find_spec("jieba") is None, reason="the site extra is not installed")

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
# English block -> Chinese; a block of these pages that is not here is not translated.
CHINESE = {
    "# The course": "# 课程",
    README.split("\n")[2]:
    "从[第 1 章](01_first.md)开始，再做[习题集](exercises/README.md)和[第 2 章](02_second.md#summary)。",
    "# 1. First": "# 1. 第一章",
    "# 3. Third": "# 3. 第三章",
    "## A prediction": "## 先猜一猜",
    "lines of the output": "输出的行数",
    "## Outputs": "## 输出",
    "## Figures": "## 图\n\n见[输出](#outputs)和[第一章](01_first.md#1-first)。集合通信很快。",
    "![Bars of memory](site/figures/memory.svg)": "![内存的条形图](site/figures/memory.svg)",
    "A line that rises": "上升的线",
}  # fmt: skip
ONLY_CHINESE = """# 只有中文

回到[第 3 章](../03_third.md)和[指南](../guide.md)。

```python
print("own")
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
    (folder / "zh").mkdir()
    (folder / "zh" / "own.md").write_text(ONLY_CHINESE)
    (folder / "zh" / "sub").mkdir()
    (folder / "zh" / "sub" / "more.md").write_text("# 更多\n\n回到[课程](../../README.md)。\n")
    for name in ("README.md", "01_first.md", "03_third.md"):
        page = translation.Page.of(folder / name)
        blocks = [f"<!-- en {key} -->\n{CHINESE[block]}\n" for key, block in page.blocks.items() if block in CHINESE]
        page.chinese.write_text("\n".join(blocks))
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


def test_the_chinese_pages(made):
    """Translated pages, with what code writes; links to others lead to the English page, and say so."""
    names = ("index", "01_first", "03_third", "own")
    index, first, third, own = ((made / "zh" / f"{name}.html").read_text() for name in names)
    assert not (made / "zh" / "02_second.html").exists() and not (made / "zh" / "guide.html").exists()
    assert '<html lang="zh-CN"' in index and 'href="own.html"' in index and 'href="sub/more.html"' in index
    assert '<a href="../02_second.html#summary" hreflang="en">第 2 章</a>（英文）' in index
    assert '<a href="../exercises/index.html" hreflang="en">习题集</a>（英文）' in index
    assert 'href="03_third.html"' in own and '<a href="../guide.html" hreflang="en">指南</a>（英文）' in own
    assert "print</span>" in own and re.search(r"<pre>.*own\n</pre>", own), "executed as a chapter"
    assert "本页输出的来源：" in third and "本章已读完" in third and "其余 22 行" in third and "显示代码" in third
    assert "你的猜测：输出的行数" in third and "你的猜测：cost of a line" in third
    assert 'alt="内存的条形图"' in third and 'alt="上升的线"' in third
    assert re.search(r'<p class="untranslated">此段译文待更新</p>\s*<p><strong>Question', first)
    assert 'href="01_first.html#' in third and 'id="outputs"' in third, "translated headings have English anchors"
    taken = (made / "zh" / "_sources" / "03_third.ipynb").read_text()
    assert "guess-box" not in taken and "第三章" in taken and "it has 30 lines" in taken


def test_each_page_leads_to_the_other_language(made):
    """Or to its start, which a search engine must not take for the same page."""
    for page, language, target, is_twin in [
        ("index", "zh-CN", "zh/index.html", True), ("03_third", "zh-CN", "zh/03_third.html", True),
        ("02_second", "zh-CN", "zh/index.html", False), ("exercises/01_first", "zh-CN", "../zh/index.html", False),
        ("zh/index", "en", "../index.html", True), ("zh/03_third", "en", "../03_third.html", True),
        ("zh/own", "en", "../index.html", False), ("zh/search", "en", "../search.html", True),
    ]:  # fmt: skip
        text = (made / f"{page}.html").read_text()
        (link,) = re.findall(r'<a class="other-edition"[^>]*>', text)
        assert f'href="{target}"' in link and f'hreflang="{language}" lang="{language}"' in link, page
        links = dict(re.findall(r'<link rel="alternate" hreflang="([^"]+)" href="([^"]+)">', text))
        assert links.get(language) == (target if is_twin else None) and len(links) == 2 * is_twin, page


def test_links_and_pictures_of_the_real_texts_lead_to_pages(tmp_path, monkeypatch):
    """What Sphinx, for which the whole course takes too long here, would find fault with."""
    monkeypatch.setattr(chapters, "find_or_execute", lambda path, *_: path.with_suffix(".ipynb"))
    monkeypatch.setattr(site, "render", lambda *_: None)
    site.build(to=tmp_path / "site")
    pages = [path for end in ("", "-zh") for path in (tmp_path / f"site-source{end}").rglob("*.md")]
    assert len(pages) > 50
    for page in pages:
        text = "".join(piece for is_code, piece in site.split_code(page.read_text()) if not is_code)
        targets = [found["target"] for form in (site.LINK, site.PICTURE) for found in form.finditer(text)]
        files = [target.partition("#")[0] for target in targets if target and not re.match(r"[a-z]+:|#", target)]
        assert not [file for file in files if not (page.parent / file).exists()], page.name


def test_without_a_module_the_old_site_stays(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    (tmp_path / "index.html").write_text("old")
    with pytest.raises(UserError, match=r"jieba .*\[site\]"):
        site.build(True, texts, tmp_path, to=tmp_path)
    assert (tmp_path / "index.html").read_text() == "old"


def test_a_broken_text_is_an_error(tmp_path):
    (tmp_path / "texts" / "exercises").mkdir(parents=True)
    for place in ("README.md", "exercises/README.md"):
        (tmp_path / "texts" / place).write_text("# A\n")
    (tmp_path / "texts" / "guide.md").write_text("# A\n\n```{nosuchdirective}\n```\n")
    with pytest.raises(RunFailed, match=r"guide\.md:3: (?s:.*)nosuchdirective"):
        site.build(True, tmp_path / "texts", tmp_path / "notebooks", tmp_path / "site")


PAGES = ["index", "01_first", "02_second", "03_third", "exercises/01_first", "zh/index", "zh/01_first", "zh/03_third"]
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
@pytest.mark.parametrize(
    ("page", "query", "found"),
    [("search", "telephone", "01_first.html"), ("zh/search", "telephone", "01_first.html"),
     ("zh/search", "集合通信", "03_third.html"), ("zh/search", "很快的集合通信", "03_third.html")],
)  # fmt: skip
def test_the_search_works_without_a_server(made, browser, page, query, found):
    browser.open(f"{(made / f'{page}.html').as_uri()}?q={query}", *WIDTHS["desktop"], mobile=False)
    assert any(found in href for href in browser.evaluate(SEARCH))


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


@needs_chromium
def test_the_chinese_edition_remembers_the_same_guess(made, browser):
    desktop = WIDTHS["desktop"]
    browser.open((made / "zh" / "03_third.html").as_uri(), *desktop, mobile=False)
    browser.evaluate("localStorage.clear()")
    browser.evaluate(fill('[data-guess="03_third guess_lines"] input', "60"))
    answer = "document.querySelector('.guess-answer').textContent"
    assert browser.evaluate(answer) == "it has 30 lines你的猜测：60，大到 2 倍。"
    browser.open((made / "03_third.html").as_uri(), *desktop, mobile=False)
    assert browser.evaluate(answer).endswith("2 times too large.")
    browser.open((made / "zh" / "index.html").as_uri(), *desktop, mobile=False)
    said = browser.evaluate("document.querySelector('.course-progress').textContent")
    assert "已读 0/2 章" in said and "已猜 1 个" in said
    row = browser.evaluate("[...document.querySelectorAll('.score-card tbody td')].map(e => e.textContent)")
    assert row == ["3. 第三章", "输出的行数", "60", "30", "大到 2 倍"]
    browser.evaluate("localStorage.clear()")


@needs_chromium
def test_the_language_is_switched_with_the_keyboard(made, browser):
    browser.open((made / "03_third.html").as_uri(), *WIDTHS["phone"], mobile=True)
    focused = "document.activeElement.classList.contains('other-edition')"
    for _ in range(30):
        press(browser, "Tab", 9)
        if browser.evaluate(focused):
            break
    assert browser.evaluate(focused)
    browser.events.clear()
    browser.ask(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
    )
    browser.wait(lambda m: m.get("method") == "Page.loadEventFired", "the other page")
    assert browser.evaluate("location.pathname").endswith("/zh/03_third.html")


def press(browser, key: str, code: int) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("page", "peak", "hangs", "later", "returns"),
    [("03_third", "Peak:", "Hangs", "Later", "Returns, with the right values"),
     ("zh/03_third", "峰值：", "挂起", "推后", "正常返回，结果正确")],
)  # fmt: skip
def test_a_figure_answers_to_the_keyboard_and_its_text_stays_inside(
    made, browser, width, page, peak, hangs, later, returns
):
    browser.open((made / f"{page}.html").as_uri(), *WIDTHS[width], mobile=width == "phone")
    words = "document.querySelector('[data-figure={}] .figure-words').textContent"
    before = browser.evaluate(words.format("memory"))
    browser.evaluate("document.querySelector('#figure-memory-ranks').focus()")
    press(browser, "ArrowRight", 39)
    after = browser.evaluate(words.format("memory"))
    assert before != after and peak in after

    assert browser.evaluate(words.format("hang")).startswith(hangs)
    browser.evaluate(f"document.querySelector('[data-rank=\"1\"] button[title={later}]').focus()")
    browser.ask(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
    )
    assert browser.evaluate(words.format("hang")).startswith(returns)
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
@pytest.mark.parametrize("page", ["index", "01_first", "03_third", "search", "zh/index", "zh/01_first", "zh/03_third"])
def test_a_page_passes_the_checks_of_axe(made, browser, page, theme, width):
    browser.open((made / f"{page}.html").as_uri(), *WIDTHS["desktop"], mobile=False)
    browser.evaluate(f"""['mode', 'theme'].forEach(name => {{
      localStorage.setItem(name, '{theme}'); document.documentElement.dataset[name] = '{theme}'; }})""")
    browser.open((made / f"{page}.html").as_uri(), *WIDTHS[width], mobile=width == "phone")
    assert find_violations(browser) == []
