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
from tests.notebooks import cell, markdown

pytest.importorskip("myst_nb", reason="the site extra is not installed")
pytestmark = pytest.mark.skipif(find_spec("jieba") is None, reason="the site extra is not installed")

README = markdown(
    "# The course",
    "Begin with [chapter 1](01_first.md), then the [sets](exercises/README.md); code is [here](../bench/worker.py).",
)
NAMES, NUMBERS = " | ".join(["`some_long_name_of_a_thing`"] * 3), " | ".join("456789")
FIRST = markdown(
    "# 1. First",
    "**Question.** Does it fit? See [the second](02_second.ipynb#summary) and [its set](exercises/01_first.md).",
    cell('print("a line that is far too long for a telephone: " + "x" * 300)\nprint("second line")'),
    f"| a | wide | table | {NUMBERS} |\n{9 * '|---'}|\n| {NAMES} | {NUMBERS} |",
    cell('from bench import course\n\ncourse.source("bench.modes.dp", "CpuDataParallel.scatter")'),
    cell("""from IPython.display import SVG

SVG('<svg xmlns="http://www.w3.org/2000/svg" width="900" height="90"><rect width="900" height="90"/></svg>')"""),
)
SECOND = markdown(
    "# 2. Second", "## Summary",
    "- `a_very_long_word_in_code_that_has_no_place_to_break_and_is_wider_than_a_phone_at_any_size` and $5 or $6.",
    "A formula, $a_1$, and one for itself:", r"$$\left(1 - \frac{a \cdot b}{2\,|a|^2}\right) a$$",
)  # fmt: skip
DRAWING = """from matplotlib.figure import Figure

figure = Figure()
figure.subplots().set(title="Rise", xlabel="step")
figure"""
THIRD = markdown(
    "# 3. Third", "## A prediction",
    cell("guess_lines = None  # your number: lines of the output\nguess_cost = None  # cost of a line"),
    "## Outputs",
    cell('from bench import course\n\ncourse.compare_guess("it has 30 lines", 30, guess_lines=guess_lines)'),
    cell(r'print("\n".join(f"line {i} <&>" for i in range(30)))'),
    cell(DRAWING, 'python alt="A line that rises"'), cell("figure"),
    "## Figures", "![Bars of memory](site/figures/memory.svg)", "![Calls of two ranks](site/figures/hang.svg)",
)  # fmt: skip
GUIDE = markdown(
    "# The guide", "Back to [the start](README.md), by the [`Makefile`](../Makefile).", "![A dot](../results/dot.svg)"
)
SET = markdown(
    "# Problem set 1: First", "## Task 1 (2 points)", "**Objective.** You can double a number. **Minutes:** 5.",
    "<!-- BEGIN RUBRIC -->\n- Test 1 (2 points): the_hidden_one, too. By hand: 2 for the_secret_of_the_set.\n"
    "<!-- END RUBRIC -->",
    cell("def double(x):\n    ### BEGIN SOLUTION\n    return x + the_secret_of_the_set\n    ### END SOLUTION",
         'python tags=["answer"]'),
    cell("assert double(1) == 2\n### BEGIN HIDDEN TESTS\nassert the_hidden_one\n### END HIDDEN TESTS",
         'python tags=["test"] points=2'),
)  # fmt: skip
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
ONLY_CHINESE = markdown("# 只有中文", "回到[第 3 章](../03_third.md)和[指南](../guide.md)。", cell('print("own")'))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tutorials")
    for name, page in {
        "README.md": README, "01_first.md": FIRST, "02_second.md": SECOND, "03_third.md": THIRD, "guide.md": GUIDE,
        "exercises/01_first.md": SET, "exercises/README.md": "# Problem sets\n",
        "../results/dot.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "zh/own.md": ONLY_CHINESE, "zh/sub/more.md": "# 更多\n\n回到[课程](../../README.md)。\n",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(page)
    for name in ("README.md", "01_first.md", "03_third.md"):
        page = translation.Page.of(folder / name)
        blocks = [f"<!-- en {key} -->\n{CHINESE[block]}\n" for key, block in page.blocks.items() if block in CHINESE]
        page.chinese.write_text("\n".join(blocks))
    return folder


@pytest.fixture(scope="module")
def made(texts, forked_python):
    out = texts.parent / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python)
        site.build(quick=True, tutorials=texts, notebooks=texts.parent / "notebooks", to=out)
    return out


def test_every_page_is_there_and_linked(made):
    """A picture of the repository comes along, and a file that is not a page gets no link."""
    index, first, guide = ((made / f"{page}.html").read_text() for page in ("index", "01_first", "guide"))
    for page in ("01_first.html", "02_second.html", "exercises/index.html", "guide.html"):
        assert (made / page).exists() and f'href="{page}"' in index, page
    assert "worker.py" not in index and "code is here" in index
    assert 'href="02_second.html#summary"' in first and 'href="exercises/01_first.html"' in first
    (shown,) = re.findall(r'<img alt="A dot" src="([^"]+)"', guide)
    assert (made / shown).read_text().startswith("<svg") and 'Makefile"' not in guide and "Makefile</span>" in guide


def test_a_chapter_shows_its_outputs_and_where_they_are_from(made, texts, monkeypatch):
    """The notebook to take home is the executed one, without boxes of the page. What has been executed is not executed
    again."""
    first = (made / "01_first.html").read_text()
    assert first.count("second line") == 2, "in the cell and in the output"
    executed = json.loads((texts.parent / "notebooks" / "01_first.ipynb").read_text())
    assert executed["metadata"]["course"]["where"] in first
    assert json.loads((made / "_sources" / "01_first.ipynb").read_text())["cells"][1]["outputs"]
    taken = (made / "_sources" / "03_third.ipynb").read_text()
    assert "guess-box" not in taken and "data-figure" not in taken and "it has 30 lines" in taken
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
    fold = r"<pre>(line 0.*?)</pre><details><summary>22 more lines</summary><pre>(.*?)</pre>"
    first, rest = re.search(fold, third, re.DOTALL).groups()
    assert first.count("\n") == 7 and rest.endswith("line 29 &lt;&amp;&gt;")
    assert third.count("tag_hide-input") == 1 and "None" not in re.sub(r"<pre>.*?</pre>", "", third, flags=re.S)


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


def test_a_broken_text_is_an_error(tmp_path, forked_python, monkeypatch):
    monkeypatch.setattr(sys, "executable", forked_python)
    (tmp_path / "texts" / "exercises").mkdir(parents=True)
    for place in ("README.md", "exercises/README.md"):
        (tmp_path / "texts" / place).write_text("# A\n")
    (tmp_path / "texts" / "guide.md").write_text("# A\n\n```{nosuchdirective}\n```\n")
    with pytest.raises(RunFailed, match=r"guide\.md:3: (?s:.*)nosuchdirective"):
        site.build(True, tmp_path / "texts", tmp_path / "notebooks", tmp_path / "site")


PAGES = ["index", "01_first", "03_third", "zh/03_third", "02_second", "exercises/01_first", "zh/index"]
SCROLLING = "pre, table, .output, .cell_output, dialog, [class*=sidebar]"
SEARCH = """new Promise(done => {
  const look = () => {
    const found = [...document.querySelectorAll("#search-results li a")].map(a => a.getAttribute("href"));
    found.length ? done(found) : setTimeout(look, 100);
  };
  look();
})"""


@needs_chromium
@pytest.mark.parametrize(
    ("page", "width"), [*((page, "phone") for page in PAGES), *((page, "desktop") for page in PAGES[:4])]
)
def test_a_page_fits_and_asks_no_other_host(made, browser, page, width):
    browser.open(made / f"{page}.html", width)
    browser.assert_fits(width, ".bd-article", SCROLLING)
    assert browser.evaluate("[...document.querySelectorAll('.bd-article img')].every(e => e.naturalWidth > 0)")
    assert browser.asked() and [url for url in browser.asked() if not url.startswith(f"{made.as_uri()}/")] == []


@needs_chromium
@pytest.mark.parametrize(
    ("page", "query", "found"),
    [("search", "telephone", "01_first.html"), ("zh/search", "telephone", "01_first.html"),
     ("zh/search", "集合通信", "03_third.html"), ("zh/search", "很快的集合通信", "03_third.html")],
)  # fmt: skip
def test_the_search_works_without_a_server(made, browser, page, query, found):
    browser.open(made / f"{page}.html", query=f"?q={query}")
    assert any(found in href for href in browser.evaluate(SEARCH))


def press(browser, key: str, code: int, **text: str) -> None:
    for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


@needs_chromium
def test_a_guess_is_remembered_compared_and_scored(made, browser):
    """In both languages, and on the start pages, together with the chapters that were read."""

    def scored() -> list[str]:
        return browser.evaluate("[...document.querySelectorAll('.score-card tbody td')].map(e => e.textContent)")

    browser.open(made / "zh" / "03_third.html")
    browser.evaluate("localStorage.clear()")
    browser.open(made / "zh" / "03_third.html")
    assert browser.text(".guess-answer") == "it has 30 lines"
    browser.evaluate("""(() => { const field = document.querySelector('[data-guess="03_third guess_lines"] input');
      field.value = "60"; field.dispatchEvent(new Event("input", { bubbles: true })); return true; })()""")
    assert browser.text(".guess-answer") == "it has 30 lines你的猜测：60，大到 2 倍。"
    browser.open(made / "zh" / "index.html")
    assert "已读 0/2 章" in browser.text(".course-progress") and "已猜 1 个" in browser.text(".course-progress")
    assert scored() == ["3. 第三章", "输出的行数", "60", "30", "大到 2 倍"]

    browser.open(made / "03_third.html")
    labels = browser.evaluate("[...document.querySelectorAll('.guess-box label')].map(e => e.textContent.trim())")
    assert labels == ["Your guess: lines of the output", "Your guess: cost of a line"]
    assert browser.evaluate("document.querySelector('.guess-box input').value") == "60"
    assert browser.text(".guess-answer") == "it has 30 linesYour guess: 60, 2 times too large."
    browser.evaluate("document.querySelector('[data-read]').click()")
    browser.open(made / "index.html")
    said = browser.text(".course-progress")
    assert "1 of 3 chapters read" in said and "1 of 2 guesses made: 0 within 10 %, 1 within a factor of 2" in said
    assert scored() == ["3. Third", "lines of the output", "60", "30", "2 times too large"]
    browser.evaluate("document.querySelector('.course-progress button').click()")
    assert "0 of 3 chapters read" in browser.text(".course-progress")
    assert browser.evaluate("Object.keys(localStorage).filter(key => key.startsWith('course '))") == []


@needs_chromium
def test_the_language_is_switched_with_the_keyboard(made, browser):
    browser.open(made / "03_third.html", "phone")
    focused = "document.activeElement.classList.contains('other-edition')"
    for _ in range(30):
        press(browser, "Tab", 9)
        if browser.evaluate(focused):
            break
    assert browser.evaluate(focused)
    browser.events.clear()
    press(browser, "Enter", 13, text="\r")
    browser.wait_for_page()
    assert browser.evaluate("location.pathname").endswith("/zh/03_third.html")


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
    browser.open(made / f"{page}.html", width)
    before = browser.text("[data-figure=memory] .figure-words")
    browser.evaluate("document.querySelector('#figure-memory-ranks').focus()")
    press(browser, "ArrowRight", 39)
    after = browser.text("[data-figure=memory] .figure-words")
    assert before != after and peak in after

    assert browser.text("[data-figure=hang] .figure-words").startswith(hangs)
    browser.evaluate(f"document.querySelector('[data-rank=\"1\"] button[title={later}]').focus()")
    press(browser, "Enter", 13, text="\r")
    assert browser.text("[data-figure=hang] .figure-words").startswith(returns)
    browser.assert_fits(width, ".bd-article", SCROLLING)


@needs_chromium
@pytest.mark.parametrize(
    ("touch", "kinds"),
    [(False, ("mousePressed", "mouseMoved", "mouseReleased")), (True, ("touchStart", "touchMove", "touchEnd"))],
)
def test_a_call_is_dragged_to_another_place(made, browser, touch, kinds):
    browser.open(made / "03_third.html")
    browser.ask("Emulation.setTouchEmulationEnabled", enabled=touch)
    x, y = browser.evaluate("""(() => { const e = document.querySelectorAll('[data-rank="1"] .figure-handle')[1];
      e.scrollIntoView({block: "center", behavior: "instant"});
      const r = e.getBoundingClientRect(); return [r.left + 20, r.top + r.height / 2]; })()""")
    start, move, end = kinds
    for kind, up in ((start, 0), (move, 20), (move, 45), (end, 45)):
        if touch:
            points = [] if kind == end else [{"x": x, "y": y - up}]
            browser.ask("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        else:
            browser.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y - up, button="left", buttons=1, clickCount=1)
    browser.ask("Emulation.setTouchEmulationEnabled", enabled=False)
    assert browser.text("[data-figure=hang] .figure-words").startswith("Returns, with the right values.")


@needs_axe
@needs_chromium
@pytest.mark.parametrize(("theme", "width"), [("light", "desktop"), ("dark", "phone")])
@pytest.mark.parametrize("page", ["index", "01_first", "03_third", "search", "zh/index", "zh/01_first", "zh/03_third"])
def test_a_page_passes_the_checks_of_axe(made, browser, page, theme, width):
    browser.open(made / f"{page}.html")
    browser.evaluate(f"""['mode', 'theme'].forEach(name => {{
      localStorage.setItem(name, '{theme}'); document.documentElement.dataset[name] = '{theme}'; }})""")
    browser.open(made / f"{page}.html", width)
    assert find_violations(browser) == []
