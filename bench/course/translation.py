"""The Chinese edition: ``tutorials/zh`` holds the prose of a page. Code, outputs and tests exist in English only.

A block is a paragraph, a list, a table or a heading: lines between blank lines, outside code fences. The line
``<!-- en 3fa9c1d2 -->`` stands above the translation of the English block with this hash. A Chinese page is the English
page with its blocks replaced. A block without a translation stays in English and is marked. Links and pictures are
written as in the English block.

``python -m bench.course.translation [PAGE …]`` lists missing and outdated blocks; ``--blocks PAGE`` prints the English
blocks without a translation, each below its line, to be translated in place.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError
from bench.files import PROJECT

LANGUAGE = "zh"
FOLDER = PROJECT / "tutorials" / LANGUAGE
MARK = re.compile(r"^<!-- en (?P<hash>[0-9a-f]{8})(?P<open> todo)? -->$", re.MULTILINE)
FENCE = re.compile(r"^[ \t]*(?P<fence>```+|~~~+).*?^[ \t]*(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!-- BEGIN RUBRIC -->.*?^<!-- END RUBRIC -->$|^<!--.*?-->$", re.MULTILINE | re.DOTALL)
PARAGRAPH = re.compile(r"[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*")
# What is the same in every language: formulas, inline code, tags, targets of links.
SAME = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|<[^>]+>|\]\([^)]*\)|https?://\S+", re.DOTALL)
WORD = re.compile(r"[A-Za-z]{2,}")


@dataclass(frozen=True)
class Page:
    """An English page and its translation. The README's translation is beside it, because people read it there."""

    english: Path
    chinese: Path

    @property
    def texts(self) -> dict[str, str]:
        """Hash of an English block -> its translation."""
        return translations(self.chinese.read_text(encoding="utf-8"))

    @property
    def missing(self) -> list[str]:
        """English blocks that the translation does not mention; each once."""
        known = {match["hash"] for match in MARK.finditer(self.chinese.read_text(encoding="utf-8"))}
        found = dict.fromkeys(blocks(self.english.read_text(encoding="utf-8")))
        return [block for block in found if digest(block) not in known]

    @property
    def outdated(self) -> list[str]:
        """Hashes of blocks that the English page no longer has."""
        current = {digest(block) for block in blocks(self.english.read_text(encoding="utf-8"))}
        marks = MARK.finditer(self.chinese.read_text(encoding="utf-8"))
        return [match["hash"] for match in marks if match["hash"] not in current]


def pages() -> list[Page]:
    """Every page with a translation."""
    found = [Page(PROJECT / "README.md", PROJECT / f"README.{LANGUAGE}.md")]
    for path in sorted(FOLDER.rglob("*.md")):
        english = FOLDER.parent / path.relative_to(FOLDER)
        if english.exists():  # else the page exists only in Chinese
            found.append(Page(english, path))
    return [page for page in found if page.chinese.exists()]


def translations(text: str) -> dict[str, str]:
    """The blocks of a translated page. Blank lines around a block do not belong to it.

    >>> translations("<!-- en 00000001 -->\\n# 为什么\\n\\n<!-- en 00000002 todo -->\\n")
    {'00000001': '# 为什么'}
    """
    marks = list(MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
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


def main(words: list[str]) -> int:
    """Returns 1 if a block is missing or outdated."""
    only_blocks, names = "--blocks" in words, [word for word in words if word != "--blocks"]
    if only_blocks:
        for name in names:
            print_blocks(PROJECT / name)
        return 0
    found = 0
    for page in pages():
        if names and str(page.english.relative_to(PROJECT)) not in names:
            continue
        place = page.chinese.relative_to(PROJECT)
        for block in page.missing:
            print(f"{place}: missing <!-- en {digest(block)} --> {' '.join(block.split())[:80]}")
        for each in page.outdated:
            print(f"{place}: outdated <!-- en {each} -->")
        found += len(page.missing) + len(page.outdated)
    print(f"{found} blocks are missing or outdated")
    return int(found > 0)


def print_blocks(english: Path) -> None:
    if not english.is_file():
        raise UserError(f"{english} is not a file")
    chinese = FOLDER / english.relative_to(FOLDER.parent) if FOLDER.parent in english.parents else None
    page = Page(english, chinese or english.with_suffix(f".{LANGUAGE}.md"))
    text = english.read_text(encoding="utf-8")
    for block in page.missing if page.chinese.exists() else dict.fromkeys(blocks(text)):
        print(f"<!-- en {digest(block)} -->\n{block}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
