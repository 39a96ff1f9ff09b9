"""`bench site`: executed chapters, manual and problem sets as HTML pages that load nothing from other hosts.

Input: ``tutorials/`` and the notebooks executed here, or else the committed outputs; a chapter without either is
executed. Output: ``build/site``, to be opened from disk or put on any server, and in its folder ``zh`` the pages that
are translated. Style, scripts and interactive figures: ``tutorials/site``.
"""

import copy
import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.course import chapters, figures, guesses, landing, translation
from bench.course.chapters import BUILD, TUTORIALS, required
from bench.course.exercises.text import without_solutions
from bench.course.outputs import captions, describe_images, fold_code, fold_long_outputs
from bench.errors import RunFailed
from bench.files import PROJECT
from bench.process.tree import capture

SITE = PROJECT / "build" / "site"
LOOK = PROJECT / "tutorials" / "site"  # conf.py and the style sheet
LIMIT_S = 600
READ = '<p class="chapter-end"><label><input type="checkbox" data-read="{name}"> {words}</label></p>'
CHINESE = {  # settings of Sphinx
    "language": "zh_CN", "project": "数据并行训练", "html_title": "数据并行训练",
    "nb_code_prompt_show": "显示代码", "nb_code_prompt_hide": "隐藏代码",
}  # fmt: skip

JIEBA = ("Building prefix dict", "Loading model", "Prefix dict", "Dumping model")  # what it prints in any case

CODE, TARGET = r"`[^`\n]+`", r"\((?P<target>[^()\s]+)\)"  # inline code first, because no link starts in it
LINK = re.compile(rf"{CODE}|(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]{TARGET}")
PICTURE = re.compile(rf"{CODE}|!\[(?P<text>[^\]]*)\]{TARGET}")
FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*?$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Edition:
    """The pages of one language, by the path of the English text if there is one. A page that only the Chinese edition
    has is below ``tutorials/zh``.

    pages: path below ``tutorials`` -> path on this edition's site. others: path below ``tutorials`` -> page of the
    other edition, from the root of these pages.
    """

    tutorials: Path
    chapters: list[Path]
    sets: list[Path]
    manual: list[Path]
    more: list[Path]
    pages: dict[str, str]
    others: dict[str, str]
    chinese: bool = False

    def say(self, phrase: str) -> str:
        return translation.phrase(phrase) if self.chinese else phrase

    def read_translation(self, path: Path) -> dict[str, str]:
        """Hash of an English block -> its translation."""
        return (translation.read_translation(path) or {}) if self.chinese else {}

    def translate(self, text: str, path: Path) -> str:
        return self.translator(path)(text)

    def translator(self, path: Path) -> Callable[[str], str]:
        """For all texts of a page, whose translation is read once."""
        if not self.chinese or self.is_own(path):
            return str
        texts = self.read_translation(path)
        return lambda text: translation.translate(text, texts, translation.mark_missing)

    def is_own(self, path: Path) -> bool:
        """Whether a page exists only in Chinese."""
        return (self.tutorials / translation.LANGUAGE) in path.parents

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.tutorials).as_posix()


@dataclass(frozen=True)
class Chapter:
    """notebook: with outputs, as readers can download it. asking: ids of its cells that ask for a guess. questions:
    of the guesses, by name."""

    notebook: object
    asking: set[str]
    questions: dict[str, str]


def build(quick: bool = False, tutorials: Path = TUTORIALS, notebooks: Path = BUILD, to: Path = SITE) -> Path:
    """Returns the first page. Raises RunFailed when a chapter fails, and for every warning of Sphinx."""
    languages = editions(Path(tutorials))
    for module in ("sphinx", "myst_nb", "sphinx_book_theme", *(["jieba"] if languages[-1].chinese else [])):
        required(module, "site")
    shutil.rmtree(to, ignore_errors=True)
    for edition in languages:
        shown = {path: chapters.find_or_execute(path, quick, notebooks) for path in edition.chapters}
        folder = to / translation.LANGUAGE if edition.chinese else to
        source = to.with_name(f"{to.name}-source" + "-zh" * edition.chinese)
        shutil.rmtree(source, ignore_errors=True)
        made = assemble(shown, edition, source)
        render(source, folder, edition.chinese)
        for path, chapter in made.items():  # for the button that downloads one
            write(folder / "_sources" / f"{path.stem}.ipynb", chapters.written(chapter.notebook))
    return to / "index.html"


def render(source: Path, to: Path, chinese: bool = False) -> None:
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-E"]
    command += ["-d", str(source.with_name(f"{source.name}-doctrees")), "-c", str(LOOK)]
    if chinese:
        words = source.with_name(f"{source.name}-words.txt")  # the terms, which searches find as a whole
        words.write_text("".join(f"{term}\n" for term in translation.chinese_terms()), encoding="utf-8")
        settings = CHINESE | {"html_search_options.dict": str(words)}
        command += [word for name, value in settings.items() for word in ("-D", f"{name}={value}")]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    done = capture([*command, str(source), str(to)], LIMIT_S, env=environment)
    if done.code is None:
        raise RunFailed(f"Sphinx was not ready within {LIMIT_S} s")
    if done.code:
        lines = [line for line in done.err.splitlines() if line.strip() and not line.startswith(JIEBA)]
        lines = lines or ["it printed nothing"]
        raise RunFailed("Sphinx: " + "\n".join(lines[:20]).replace(f"{source}{os.sep}", ""))


# --- Pages of an edition ----------------------------------------------------------------------------------------------


def editions(tutorials: Path) -> list[Edition]:
    """The English edition; if its first page is translated, the Chinese one."""
    texts, start = chapters.reading_order(tutorials), tutorials / "README.md"
    more = sorted(path for path in tutorials.glob("*.md") if path not in (*texts, start))
    sets = sorted((tutorials / "exercises").glob("[0-9][0-9]_*.md"))
    manual = sorted((tutorials / "manual").glob("*.md"))
    lists = [texts, sets, manual, more]
    every = site_pages(tutorials, *lists) | {
        "exercises/README.md": "exercises/index.md",
        "exercises": "exercises/index.md",
    }
    if not translation.is_translated(start):
        return [Edition(tutorials, *lists, every, {})]
    translated = [[path for path in each if translation.is_translated(path)] for each in lists]
    translated[0] += (own := translation.own_chapters(tutorials))
    translated[3] += [path for path in translation.only_chinese(tutorials) if path not in own]
    known = site_pages(tutorials, *translated)
    zh = translation.LANGUAGE
    others = {f"{zh}/{name.removeprefix(f'{zh}/')}": f"{zh}/{html_page(place)}" for name, place in known.items()}
    known |= {f"{zh}/{name}": place for name, place in known.items() if not name.startswith(f"{zh}/")}
    english = {name: f"../{html_page(place)}" for name, place in every.items()}
    return [Edition(tutorials, *lists, every, others), Edition(tutorials, *translated, known, english, chinese=True)]


def site_pages(tutorials: Path, texts: list[Path], *pages: list[Path]) -> dict[str, str]:
    """Path below ``tutorials`` -> path on the site."""
    found = {"README.md": "index.md"}
    for path in texts:
        name = path.relative_to(tutorials).with_suffix("").as_posix()
        found |= {f"{name}{end}": f"{path.stem}.ipynb" for end in (".md", ".ipynb")}
    names = [path.relative_to(tutorials).as_posix() for each in pages for path in each]
    return found | {name: name.removeprefix(f"{translation.LANGUAGE}/") for name in names}


def html_page(place: str) -> str:
    return f"{place.rpartition('.')[0]}.html"


# --- Input of Sphinx --------------------------------------------------------------------------------------------------


def assemble(shown: dict[Path, Path], edition: Edition, source: Path) -> dict[Path, Chapter]:
    """Write all pages to a folder for Sphinx. shown: chapter -> executed notebook."""
    tutorials, say, names = edition.tutorials, edition.say, edition.name_of
    made = {path: read_chapter(path, shown[path], edition) for path in shown}
    for path, chapter in made.items():
        write(source / f"{path.stem}.ipynb", chapters.written(chapter_page(chapter, path, edition)))
    for path in [*edition.more, *edition.sets, *edition.manual]:
        text = without_solutions(path.read_text()) if path in edition.sets else path.read_text()
        place = edition.pages[names(path)]
        text = resolve_links(edition.translate(text, path), names(path), edition)
        text = figures.embed(text, "../" * place.count("/"))
        write(source / place, copy_pictures(text, path, source / place, source))

    sets = [f"exercises/{path.stem}" for path in edition.sets]
    if "exercises/README.md" in edition.pages:
        text = resolve_links((tutorials / "exercises" / "README.md").read_text(), "exercises/README.md", edition)
        write(source / "exercises" / "index.md", text + toctree("", [name.partition("/")[2] for name in sets]))
        sets = ["exercises/index"]
    readme, template = tutorials / "README.md", LOOK / "start.md"
    start = edition.translate(template.read_text(), template)
    course = {path: chapter for path, chapter in made.items() if not edition.is_own(path)}
    index = landing.with_start(edition.translate(readme.read_text(), readme), start, course, say)
    index = resolve_links(index, "README.md", edition)
    index += toctree(say("Chapters"), [path.stem for path in course])
    index += toctree(say("Manual"), [f"manual/{path.stem}" for path in edition.manual])
    own = [edition.pages[names(path)].rpartition(".")[0] for path in (*edition.more, *made) if path not in course]
    index += toctree(say("More"), [*sets, *own])
    write(source / "index.md", index)
    write(source / "editions.json", json.dumps(links_to_other(edition)))
    return made


def links_to_other(edition: Edition) -> dict:
    """For ``bench/course/sphinx_editions.py``. twins: page -> the same page of the other edition, from these pages'
    root. anchors: page -> translated heading -> English heading, which gives the anchor.
    """
    mark, root = f"{translation.LANGUAGE}/", "../" if edition.chinese else "zh/"
    named = {name.removeprefix(mark): place for name, place in edition.pages.items()}
    others = {name.removeprefix(mark): place for name, place in edition.others.items()}
    twins = {place.rpartition(".")[0]: others[name] for name, place in named.items() if name in others}
    paths = [*edition.chapters, *edition.sets, *edition.manual, *edition.more, edition.tutorials / "README.md"]
    anchors = {edition.pages[edition.name_of(path)].rpartition(".")[0]: headings(path, edition) for path in paths}
    return {"root": root if others else "", "twins": twins, "anchors": anchors if edition.chinese else {}}


def headings(path: Path, edition: Edition) -> dict[str, list[str]]:
    """Translated heading -> English headings with this translation, in the order of the page, without markup."""
    texts, found = edition.read_translation(path), {}
    for block in [] if edition.is_own(path) else translation.blocks(path.read_text()):
        ours = texts.get(translation.digest(block), "")
        if re.match("#{1,3} ", block) and ours.startswith("#"):
            found.setdefault(plain(ours), []).append(plain(block))
    return found


def plain(heading: str) -> str:
    return re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading.lstrip("# ").partition("\n")[0]).strip()


def read_chapter(path: Path, executed: Path, edition: Edition) -> Chapter:
    notebook, texts, say = chapters.notebook_of(path), edition.read_translation(path), edition.say
    chapters.take_outputs(chapters.read_notebook(executed), notebook)  # its text may be older
    asking = {cell.id for cell in guesses.cells_of_section(notebook)}
    asked, translate = guesses.questions(notebook), edition.translator(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = resolve_links(translate(cell.source), edition.name_of(path), edition)
    made = notebook.metadata["course"]
    sizes = say(", at the small sizes that a test uses") if made["quick"] else ""
    head, heading, rest = notebook.cells[0].source.partition("\n## ")
    note = f"*{say('The outputs on this page: {}.').format(made['where'] + sizes)}*"
    notebook.cells[0].source = f"{head.rstrip()}\n\n{note}\n{heading}{rest}"
    return Chapter(notebook, asking, {name: texts.get(translation.digest(text), text) for name, text in asked.items()})


def chapter_page(chapter: Chapter, path: Path, edition: Edition):
    """A copy with what only the page has: interactive figures, boxes for guesses, folds, alternative texts."""
    page, say = copy.deepcopy(chapter.notebook), edition.say
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source = figures.embed(cell.source)
    add_guess_boxes(page, path.stem, chapter, say)
    texts = edition.read_translation(path)
    for cell in page.cells:
        if alt := cell.metadata.get("alt"):
            cell.metadata["alt"] = texts.get(translation.digest(alt), alt)
    describe_images(page, captions(edition.translate(path.read_text(), path)))
    fold_long_outputs(page, say)
    fold_code(page)
    if not edition.is_own(path):
        read = READ.format(name=path.stem, words=say("I have read this chapter"))
        page.cells.append(chapters.required("nbformat").v4.new_markdown_cell(read, id="cell-read"))
    return page


def add_guess_boxes(notebook, name: str, chapter: Chapter, say: Callable[[str], str]) -> None:
    """Below each cell that asks for a guess, a box that the page remembers; its measured value is an HTML output."""
    nbformat, cells = chapters.required("nbformat"), []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.id in chapter.asking:
            asked = [match["name"] for match in guesses.ASKED.finditer(cell.source)]
            boxes = [guesses.box(name, each, chapter.questions[each], say) for each in asked]
            cells.append(nbformat.v4.new_markdown_cell("\n".join(boxes), id=f"{cell.id}-guess"))
        for output in cell.get("outputs", []):
            if guesses.MIME in output.get("data", {}):
                output["data"] = {
                    "text/html": guesses.answer(name, output),
                    "text/plain": output["data"]["text/plain"],
                }
    notebook.cells = cells


def resolve_links(text: str, page: str, edition: Edition) -> str:
    """Point links to pages of the site, or to those of the other edition. A link to another file of the repository
    becomes its text. page: the text's path below ``tutorials``.

    >>> pages = {"README.md": "index.md", "03_a.md": "03_a.ipynb"}
    >>> edition = Edition(Path(), [], [], [], [], pages, {"04_f.md": "../04_f.html"}, chinese=True)
    >>> text = "[a](03_a.md#x), [`b`](../Makefile), `[c](d.md)`, [e](https://e.org), [f](04_f.md#g_h)"
    >>> resolve_links(text, "README.md", edition)
    '[a](03_a.ipynb#x), `b`, `[c](d.md)`, [e](https://e.org), <a href="../04_f.html#g_h" hreflang="en">f</a>（英文）'
    """
    here, site_here = posixpath.dirname(page), posixpath.dirname(edition.pages.get(page, page))

    def resolve(match: re.Match) -> str:
        target, hash_sign, anchor = match["target"].partition("#")
        if not target:
            return match[0]
        name = posixpath.normpath(posixpath.join(here, target))
        if place := edition.pages.get(name):
            return f"[{match['text']}]({posixpath.relpath(place, site_here or '.')}{hash_sign}{anchor})"
        if place := edition.others.get(name):
            address = f"{posixpath.relpath(place, site_here or '.')}{hash_sign}{anchor}"
            language = "en" if edition.chinese else "zh-CN"
            said = f'<a href="{address}" hreflang="{language}">{match["text"]}</a>'
            return f"{said}（英文）" if edition.chinese else said
        return match["text"]

    return replace_targets(LINK, resolve, text)


def copy_pictures(text: str, path: Path, page: Path, source: Path) -> str:
    """Copy a text's pictures to ``source/pictures``, and point to the copies. page: the file that the text becomes."""

    def copy(match: re.Match) -> str:
        file = (path.parent / match["target"]).resolve()
        target = source / "pictures" / "-".join(file.parts[-3:])  # two folders may have a file of the same name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return f"![{match['text']}]({os.path.relpath(target, page.parent)})"

    return replace_targets(PICTURE, copy, text)


def replace_targets(pattern: re.Pattern, replace: Callable[[re.Match], str], text: str) -> str:
    def replace_file(match: re.Match) -> str:
        is_file = match["target"] is not None and not re.match(r"[a-z]+:", match["target"])
        return replace(match) if is_file else match[0]

    return "".join(piece if is_code else pattern.sub(replace_file, piece) for is_code, piece in split_code(text))


def split_code(text: str) -> list[tuple[bool, str]]:
    """A Markdown text in pieces: (whether it is a code fence, piece)."""
    pieces, end = [], 0
    for match in FENCE.finditer(text):
        pieces += [(False, text[end : match.start()]), (True, match[0])]
        end = match.end()
    return [*pieces, (False, text[end:])]


def toctree(caption: str, entries: list[str]) -> str:
    lines = [":hidden:", *([f":caption: {caption}"] if caption else []), "", *entries]
    return "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n" if entries else ""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
