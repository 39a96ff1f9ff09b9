"""The Chinese edition: every page is in step with the English one, and says what that says."""

import re

import pytest

from bench.course import chapters, guesses, outputs, translation
from bench.course.exercises import text as sets
from bench.course.figures import FIGURES, scripts
from bench.files import PROJECT
from tests import chinese
from tests.browser.scripts import STATES_OF, evaluate, needs_javascript

CORE = ("00", "01", "03", "04", "05", "08", "14", "16", "23")  # chapters, each with its problem set
REQUIRED = ["README.md", "tutorials/README.md", "tutorials/site/start.md", "tutorials/hang_checklist.md",
            "tutorials/manual/options.md", "tutorials/manual/mistakes.md"]  # fmt: skip
PLACE = {path: path.relative_to(PROJECT).as_posix() for path in chinese.chinese_pages()}


@pytest.mark.parametrize("path", PLACE, ids=PLACE.get)
def test_a_page_is_in_step_with_the_english_one(path):
    """`python -m tests.chinese` prints the same lines; its docstring has the rules."""
    assert chinese.problems(path) == []


def test_the_pages_of_this_edition_are_there():
    pages = [PROJECT / name for name in REQUIRED] + [
        path for number in CORE for path in (*chapters.chapters(number), *sets.sets(number))
    ]
    assert [str(path) for path in pages if not translation.Page.of(path).chinese.exists()] == []


def test_the_readme_repeats_the_code():
    texts = [(PROJECT / name).read_text() for name in ("README.md", "README.zh.md")]
    english, ours = ([match[0] for match in translation.FENCE.finditer(text)] for text in texts)
    assert english == ours != []
    assert all("](README" in text for text in texts), "each has a link to the other"


def test_a_chapter_has_its_code_outside_of_the_translation():
    """The blocks of a chapter are those of its notebook's cells, and its guesses those that the notebook asks for."""
    for path in chapters.chapters():
        text, notebook = path.read_text(), chapters.notebook_of(path)
        cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
        in_cells = {translation.digest(block) for cell in cells for block in translation.blocks(cell)}
        pictures = {translation.digest(block) for block in translation.blocks(text) if block.startswith("![")}
        assert in_cells | pictures == {*map(translation.digest, translation.blocks(text))} | pictures, path.name
        assert guesses.find_questions(text) == [asked for asked in guesses.questions(notebook).values() if asked]
        assert outputs.alternative_texts(text) == [c.metadata["alt"] for c in notebook.cells if "alt" in c.metadata]


ENGLISH = """# Two

Use `dp` on [4](a.md) or 12 ranks, $n$.

| alpha | b |
|---|---|
| `x|y` | c |

## A prediction

```python
guess = None  # your number: MB sent
```
"""


@pytest.fixture
def page(tmp_path):
    (tmp_path / "zh").mkdir()
    (tmp_path / "page.md").write_text(ENGLISH)
    found = translation.Page.of(tmp_path / "page.md")
    marks = [f"<!-- en {name} -->\n{block}\n" for name, block in found.blocks.items()]
    found.chinese.write_text("\n".join(marks))
    return found


def test_missing_outdated_and_acknowledged_blocks_are_listed(page):
    assert page.missing == page.outdated == page.acknowledged == []
    first, asked = translation.digest("# Two"), translation.digest("MB sent")
    text = page.chinese.read_text().replace(f"en {first} -->", f"en {first} todo -->")
    page.chinese.write_text(text.replace(f"en {asked}", "en 00000000"))
    assert page.missing == ["MB sent"] and page.outdated == ["00000000"] and page.acknowledged == ["# Two"]
    shown = translation.translate(ENGLISH, page.texts, translation.mark_missing)
    assert re.findall(rf'(.*)\n\n<p class="untranslated-heading">{translation.NOTE}', shown) == ["# Two"]


def test_a_mark_may_have_a_space_at_its_end_and_every_block_without_one_is_missing(page):
    page.chinese.write_text(page.chinese.read_text().replace(" -->", " --> "))
    assert page.missing == [] and len(page.texts) == len(page.blocks)
    for text in ("", "# 标题\n"):
        page.chinese.write_text(text)
        assert page.texts == {} and page.missing == [*page.blocks.values()] != []


def test_a_translation_without_its_english_page_is_a_problem(page, monkeypatch):
    """But a page without marks is one that only this edition has."""
    folder = page.english.parent
    for name, place in (("PROJECT", folder), ("TUTORIALS", folder), ("FOLDER", folder / "zh")):
        monkeypatch.setattr(translation, name, place)
    found = translation.find_page("zh/page.md")
    assert found == page and translation.problems(found) == []
    page.english.unlink()
    (line,) = translation.problems(found)
    assert line.startswith("zh/page.md: page.md does not exist")
    page.chinese.write_text("# 只有中文\n")
    assert translation.problems(found) == []


def test_the_list_takes_english_and_chinese_pages(capsys):
    """A page that does not exist is an error, not a page without problems."""
    for name in ("tutorials/04_ddp.md", "tutorials/zh/04_ddp.md", "README.zh.md", "tutorials/zh/left_out.md"):
        assert translation.main([name]) == 0
    assert translation.main(["tutorials/02_data_parallel.md"]) == 1, "not translated"
    assert translation.main(["--blocks", "tutorials/zh/04_ddp.md"]) == 0
    capsys.readouterr()
    for words in (["nonsense"], ["--blocks", "nonsense"]):
        assert translation.main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and "nonsense" in err


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [("`dp`", "dp", "code"), ("a.md", "b.md", "link"), ("12", "13", "numbers"), ("$n$", "n", "formula"),
     ("| c |", "| c | d |", "table"), ("# Two", "## Two", "heading")],
)  # fmt: skip
def test_what_a_translation_loses_is_found(page, old, new, kind):
    wrong = [line for name, block in page.blocks.items() for line in chinese.compare(block, block.replace(old, new))]
    assert {line.partition(":")[0] for line in wrong} == {kind}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("用梯度（gradient）。\n\n梯度很大。", []),
        ("把**梯度**（Gradients）加起来。", []),
        ("梯度很大，（gradient）在后一句。", []),
        ("梯度很大。\n\n用梯度（gradient）。", ["梯度"]),
        ("# 梯度\n\n| 梯度 |\n\n`梯度`", []),
        ("用梯度桶（gradient bucket）。", []),
        ("用梯度桶（bucket）。\n\n梯度很大。", ["梯度"]),
        ("`broadcast`，即广播。循环十次。", []),
        ("斜率很大。", ["斜率"]),
    ],
)
def test_a_term_has_its_english_at_its_first_use(tmp_path, text, found):
    (path := tmp_path / "page.md").write_text(text)
    assert [re.split(" without|: write", line)[0].partition(": ")[2] for line in chinese.term_problems(path)] == found


def test_a_phrase_keeps_its_values():
    for english, ours in translation.phrases().items():
        places, values = re.findall(r"\{(\d?)\}", ours), english.count("{}")
        assert sorted(places) in ([""] * values, [str(place) for place in range(values)]), english


NAMES = """rank epoch batch worker token ms GB MB kB TB Gbit MiB DDP FSDP HSDP ZeRO DistributedSampler drop_last shuffle
all_reduce broadcast barrier Gloo NCCL DETAIL TORCH_DISTRIBUTED_DEBUG ResNet GPT small XL Adam SGD fp32 bf16 no_sync all
reduce set_epoch torch loss item µs Intel Xeon CPU ZeroRedundancyOptimizer H100 if Connection closed by peer"""


@needs_javascript
def test_the_figures_speak_chinese(tmp_path):
    """All that they say, draw and ask for, with every input at its ends: no English word is left but names."""
    (phrases := tmp_path / "phrases.js").write_text(translation.phrases_script())
    said = evaluate([phrases, *scripts()], f"""Object.entries(Figure.all).flatMap(([name, figure]) => {{
      const shown = [320, 800].flatMap(width => [0, Infinity].flatMap(step => {STATES_OF}(figure).flatMap(state => {{
        const result = figure.compute(state);
        state.step = Math.min(step, figure.steps ? figure.steps(result, state) : 0);
        const drawn = [...figure.draw(result, state, width).matchAll(/<text[^>]*>([^<]*)</g)].map(match => match[1]);
        return [...figure.say(result, state), ...drawn];
      }})));
      const asked = figure.controls.flatMap(c => [c.label, ...(c.options || []).map(([, label]) => label)]);
      const all = [...shown, ...asked, figure.title, ...figure.presets.map(preset => preset.label)];
      return all.map(text => [name, Figure.say(text)]);
    }})""", tmp_path)  # fmt: skip
    assert {name for name, _ in said} == set(FIGURES)
    left = {text for _, text in said if {*re.findall(r"[A-Za-zµ_][A-Za-z_0-9]+", text)} - {*NAMES.split()}}
    assert left == set()
