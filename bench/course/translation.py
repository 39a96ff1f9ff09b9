"""The Chinese edition: ``tutorials/zh`` holds the prose of a page. Code, outputs and tests exist in English only.

A block is a paragraph, a list, a table or a heading: lines between blank lines, outside code fences. The line
``<!-- en 3fa9c1d2 -->`` stands above the translation of the English block with this hash. A Chinese page is the English
page with its blocks replaced. A block without a translation stays in English and is marked. Links and pictures are
written as in the English block. A guess that a chapter asks for is a block, too: the comment of its code cell. So is
the alternative text of a cell's picture, ``alt="…"``.

``phrases.tsv`` there has the words that code writes on a page. ``{}`` stands for a value.

``python -m bench.course.translation [PAGE …]`` lists missing and outdated blocks; ``--blocks PAGE`` prints the English
blocks without a translation, each below its line, to be translated in place.
"""

import functools
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.course.guesses import find_questions
from bench.course.outputs import alternative_texts
from bench.errors import UserError
from bench.files import PROJECT

LANGUAGE = "zh"
TUTORIALS = PROJECT / "tutorials"
FOLDER = TUTORIALS / LANGUAGE
PARTS = ("exercises", "manual", "site")  # folders below tutorials, which are below tutorials/zh as well
NOTE = "此段译文待更新"  # beside a block that is shown in English
MARK = re.compile(r"^<!-- en (?P<hash>[0-9a-f]{8})(?P<open> todo)? -->[ \t]*$", re.MULTILINE)
FENCE = re.compile(r"^[ \t]*(?P<fence>```+|~~~+).*?^[ \t]*(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!-- BEGIN RUBRIC -->.*?^<!-- END RUBRIC -->$|^<!--.*?-->$", re.MULTILINE | re.DOTALL)
PARAGRAPH = re.compile(r"[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*")
# What is the same in every language: formulas, inline code, tags, targets of links.
SAME = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|<[^>]+>|\]\([^)]*\)|https?://\S+", re.DOTALL)
WORD = re.compile(r"[A-Za-z]{2,}")


def read(path: Path) -> str:
    """A page's text; empty if there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@dataclass(frozen=True)
class Page:
    """An English page and its translation. One of them may not exist. The README's translation is beside it, because
    people read it there."""

    english: Path
    chinese: Path

    @classmethod
    def of(cls, english: Path) -> "Page":
        """tutorials/manual/options.md -> with tutorials/zh/manual/options.md, which may not exist."""
        folder = english.parent
        if english == PROJECT / "README.md":
            return cls(english, PROJECT / f"README.{LANGUAGE}.md")
        inside = (folder.parent / LANGUAGE / folder.name) if folder.name in PARTS else folder / LANGUAGE
        return cls(english, inside / english.name)

    @property
    def blocks(self) -> dict[str, str]:
        """Hash -> English block, in the order of the page; the guesses and the alternative texts are last."""
        text = read(self.english)
        found = (*blocks(text), *find_questions(text), *alternative_texts(text))
        return {digest(block): block for block in found}

    @property
    def texts(self) -> dict[str, str]:
        """Hash of an English block -> its translation."""
        return translations(read(self.chinese))

    @property
    def marks(self) -> dict[str, bool]:
        """Hashes that the translation mentions -> whether it says that the block is still to be translated."""
        return {match["hash"]: bool(match["open"]) for match in MARK.finditer(read(self.chinese))}

    @property
    def missing(self) -> list[str]:
        """English blocks that the translation does not mention."""
        return [block for name, block in self.blocks.items() if name not in self.marks]

    @property
    def outdated(self) -> list[str]:
        """Hashes of blocks that the English page no longer has."""
        return [name for name in self.marks if name not in self.blocks]

    @property
    def acknowledged(self) -> list[str]:
        """English blocks that are marked as still to be translated."""
        return [block for name, block in self.blocks.items() if self.marks.get(name)]


def find_page(name: Path | str) -> Page:
    """By the path of the English or of the Chinese page."""
    path = PROJECT / name
    if FOLDER in path.parents:
        page = Page(TUTORIALS / path.relative_to(FOLDER), path)
    else:
        page = Page.of(PROJECT / "README.md" if path == PROJECT / f"README.{LANGUAGE}.md" else path)
    if not page.english.is_file() and not page.chinese.is_file():
        raise UserError(f"{name} is not a page: give an English or a Chinese one, e.g. tutorials/04_ddp.md")
    return page


def read_translation(english: Path) -> dict[str, str] | None:
    """The translation of a page; None if it has none."""
    page = Page.of(english)
    return page.texts if page.chinese.exists() else None


def select_translated(paths: list[Path]) -> list[Path]:
    """Print the names of the others in one line. Raises UserError if none is translated."""
    found = [path for path in paths if is_translated(path)]
    if others := ", ".join(path.stem for path in paths if path not in found):
        if not found:
            raise UserError(f"EDITION={LANGUAGE}: not translated: {others}: use EDITION=en")
        print(f"not translated: {others}", flush=True)
    return found


def is_translated(path: Path) -> bool:
    """Also true for a page that exists only in Chinese."""
    return FOLDER in path.parents or Page.of(path).chinese.exists()


def pages(tutorials: Path = TUTORIALS) -> list[Page]:
    """Every page with a translation."""
    found = [Page.of(PROJECT / "README.md")] if tutorials == TUTORIALS else []
    for path in sorted((tutorials / LANGUAGE).rglob("*.md")):
        english = tutorials / path.relative_to(tutorials / LANGUAGE)
        if english.exists():
            found.append(Page(english, path))
    return [page for page in found if page.chinese.exists()]


def only_chinese(tutorials: Path = TUTORIALS) -> list[Path]:
    """The pages that only this edition has."""
    folder = tutorials / LANGUAGE
    return [path for path in sorted(folder.rglob("*.md")) if not (tutorials / path.relative_to(folder)).exists()]


def own_chapters(tutorials: Path = TUTORIALS) -> list[Path]:
    """Those of them that have cells; a notebook with their outputs is beside each, as beside a chapter."""
    return [path for path in only_chinese(tutorials) if "\n```python" in path.read_text(encoding="utf-8")]


def translations(text: str) -> dict[str, str]:
    """The blocks of a translated page. Blank lines around a block do not belong to it.

    >>> translations("<!-- en 00000001 -->\\n# 为什么\\n\\n<!-- en 00000002 todo -->\\n")
    {'00000001': '# 为什么'}
    """
    marks = list(MARK.finditer(text))
    ends = [*(mark.start() for mark in marks), len(text)][1:]
    found = {}
    for mark, end in zip(marks, ends, strict=True):
        own = FENCE.sub("", text[mark.end() : end]).strip("\n")  # the README repeats its code
        if own.strip() and not mark["open"]:
            found[mark["hash"]] = own.rstrip()
    return found


def blocks(text: str) -> Iterator[str]:
    """The blocks of an English page that have words to translate.

    >>> list(blocks("# A title\\n\\n```python\\nx = 1\\n```\\n\\n$$a$$\\n\\nTwo\\nlines.\\n"))
    ['# A title', 'Two\\nlines.']
    """
    for is_block, piece in split(text):
        if is_block:
            yield piece


def split(text: str) -> Iterator[tuple[bool, str]]:
    """All of a text in pieces: (whether it is a block with words, piece)."""
    end = 0
    kept = sorted(
        (match.span() for pattern in (FENCE, COMMENT) for match in pattern.finditer(text)), key=lambda span: span[0]
    )
    for start, stop in [*kept, (len(text), len(text))]:
        if start < end:
            continue  # a comment in a fence
        yield from split_prose(text[end:start])
        yield False, text[start:stop]
        end = stop


def split_prose(text: str) -> Iterator[tuple[bool, str]]:
    end = 0
    for match in PARAGRAPH.finditer(text):
        yield False, text[end : match.start()]
        yield bool(WORD.search(SAME.sub("", match[0]))), match[0]
        end = match.end()
    yield False, text[end:]


def digest(block: str) -> str:
    """
    >>> digest("Two\\nlines.") == digest("Two lines.")
    True
    """
    return hashlib.sha256(" ".join(block.split()).encode()).hexdigest()[:8]


def translate(text: str, texts: dict[str, str], mark: Callable[[str], str] = str) -> str:
    """An English text in Chinese. texts: of ``Page.texts``. mark: what becomes of a block without a translation."""
    pieces = []
    for is_block, piece in split(text):
        pieces.append((texts.get(digest(piece)) or mark(piece)) if is_block else piece)
    return "".join(pieces)


def mark_missing(block: str) -> str:
    """An English block with a note that it is not translated; a heading has it below. A picture has none, because its
    caption must stay below its cell.

    >>> mark_missing("  Words."), mark_missing("![Words](a.svg)")
    ('  <p class="untranslated">此段译文待更新</p>\\n\\n  Words.', '![Words](a.svg)')
    """
    indent = re.match(r"[ \t]*", block)[0]
    if block.startswith("!["):
        return block
    if block.startswith("#"):
        return f'{block}\n\n<p class="untranslated-heading">{NOTE}</p>'
    return f'{indent}<p class="untranslated">{NOTE}</p>\n\n{block}'


# --- Words that code writes -------------------------------------------------------------------------------------------


@functools.cache
def phrases() -> dict[str, str]:
    """English -> Chinese, with the same number of ``{}``."""
    lines = (FOLDER / "phrases.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return dict(line.split("\t") for line in lines if line)


def chinese_terms() -> list[str]:
    lines = (FOLDER / "terms.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return list(
        dict.fromkeys(found for line in lines for found in re.findall(r"[\u4e00-\u9fff]+", line.split("\t")[1]))
    )


def phrase(english: str) -> str:
    return phrases()[english]


def phrases_script() -> str:
    """The phrases for the scripts of the site: ``Phrases.say(text)``. A value in a text is translated, too."""
    code = (TUTORIALS / "site" / "phrases.js").read_text(encoding="utf-8")
    return code.replace("{/* phrases */}", json.dumps(phrases(), ensure_ascii=False, indent=0))


# --- The list of what is to be done -----------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    """Returns 1 if a block is missing or outdated, 2 for a page that does not exist."""
    only_blocks, names = "--blocks" in words, [word for word in words if word != "--blocks"]
    try:
        chosen = [find_page(name) for name in names] or [*pages(), *map(find_page, only_chinese())]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if only_blocks:
        for block in [block for page in chosen for block in page.missing]:
            print(f"<!-- en {digest(block)} -->\n{block}\n")
        return 0
    lines = [line for page in chosen for line in problems(page)]
    todo = sum(len(page.acknowledged) for page in chosen)
    print(*lines, f"{len(lines)} blocks are missing or outdated, {todo} are marked todo", sep="\n")
    return int(bool(lines))


def problems(page: Page) -> list[str]:
    """A line for each block that is missing or outdated, or one for a translation without an English page."""
    place = page.chinese.relative_to(PROJECT)
    if not page.english.is_file():
        gone = f"{place}: {page.english.relative_to(PROJECT)} does not exist: move the translation, or remove its marks"
        return [gone] if page.marks else []
    lines = [f"{place}: missing <!-- en {digest(each)} --> {' '.join(each.split())[:80]}" for each in page.missing]
    return lines + [f"{place}: outdated <!-- en {each} -->" for each in page.outdated]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
