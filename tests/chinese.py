"""Check the Chinese pages against the English ones and against the list of terms.

    python -m tests.chinese [PAGE ...]    file, block, what is wrong; exit code 1

Blocks: a translation has the inline code, the targets of links and pictures, and the formulas of its English block,
each at least once and no others. Tables have as many rows and columns, and a heading has its level. Every number of two
characters or more is there (1,281 is 1281), but not those before "million" and "billion", which Chinese writes as 万
and 亿.

Terms: ``tutorials/zh/terms.tsv`` has lines English, Chinese, variants that must not occur in prose. Where a term's
Chinese is used on a page, its English stands in full-width brackets in the same block (a paragraph, a list) as the
first use or in an earlier one: 梯度（gradient）. The brackets may hold more words, and the English may be inflected.
Inline code that is the English word does as well. Headings, tables, captions of pictures, code, targets of links and
HTML do not count as a use, but brackets in them count. A longer term hides a shorter one in it: 梯度桶 is not a use of
梯度. The course's labels (``LABELS``) and terms without Chinese letters need no English.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.course import translation
from bench.course.translation import Page
from bench.files import PROJECT

CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
TARGET = re.compile(r"\]\(([^)\s]+)\)")
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\d.]| (?:m|b)illion)")
HIDDEN = re.compile(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)|<[^>]+>|\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
BRACKETS = re.compile(r"（((?:[^（）]|（[^（）]*）)*)）")
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
CHINESE_PAGES = {"README.zh.md", "zh/README.md"}  # links from the English page to this edition
LABELS = ("hint", "problem set")  # 提示, 习题集
OTHER_WORDS = {"环": r"循环|环境|环节|环顾"}  # words with a term in them that have another meaning


@dataclass(frozen=True)
class Term:
    english: str
    chinese: str
    avoid: tuple[str, ...]


def terms() -> list[Term]:
    lines = (translation.FOLDER / "terms.tsv").read_text(encoding="utf-8").splitlines()[1:]
    cells = [[*line.split("\t"), ""] for line in lines if line]
    return [Term(english, chinese, tuple(filter(None, avoid.split("|")))) for english, chinese, avoid, *_ in cells]


def block_problems(page: Page) -> Iterator[str]:
    """A line for each translated block that has lost or gained something."""
    texts = page.texts
    for name, english in page.blocks.items():
        if name in texts:
            place = f"{page.chinese.relative_to(PROJECT)}: <!-- en {name} -->"
            yield from (f"{place} {each}" for each in compare(english, texts[name]))


def compare(english: str, chinese: str) -> Iterator[str]:
    for kind, pattern in (("code", CODE), ("link", TARGET), ("formula", FORMULA)):
        here, there = ({" ".join(match[match.lastindex or 0].split()) for match in pattern.finditer(each)}
                       for each in (chinese, english))  # fmt: skip
        if here != (there := there - CHINESE_PAGES):
            yield f"{kind}: lost {sorted(there - here)}, new {sorted(here - there)}"
    if shape(english) != shape(chinese):
        yield f"table: {shape(english)} columns per row in English, {shape(chinese)} here"
    level = [re.match(r"#*", each)[0] for each in (english, chinese)]
    if level[0] != level[1]:
        yield f"heading: {level[0] or 'none'} in English, {level[1] or 'none'} here"
    if lost := sorted(numbers(english) - numbers(chinese)):
        yield f"numbers: lost {lost}"


def shape(block: str) -> list[int]:
    rows = [re.sub(r"`[^`]*`", "", line) for line in block.splitlines() if line.lstrip().startswith("|")]
    return [row.replace(r"\|", "").count("|") for row in rows]


def numbers(block: str) -> set[str]:
    text = CODE.sub(" ", TARGET.sub("]", FORMULA.sub(" ", block)))
    return {found for each in NUMBER.findall(text) if len(found := each.replace(",", "")) > 1}


def paragraphs(path: Path) -> list[str]:
    text = translation.FENCE.sub("", path.read_text(encoding="utf-8"))
    return [each for each in re.split(r"\n\s*\n", text) if each.strip()]


def term_problems(path: Path) -> Iterator[str]:
    place, known = path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path.name, terms()
    due = {term.chinese for term in known if re.search(r"[\u4e00-\u9fff]", term.chinese)}
    due -= {term.chinese for term in known if term.english in LABELS}
    said = ""
    for paragraph in paragraphs(path):
        prose = HIDDEN.sub(" ", paragraph)
        for term in known:
            for variant in term.avoid:
                if variant in prose:
                    yield f"{place}: {variant}: write {term.chinese}"
        said += " ".join([*BRACKETS.findall(prose), *(code[1] for code in CODE.findall(paragraph))]) + " "
        lines = [
            line
            for line in HIDDEN.sub(" ", PICTURE.sub(" ", paragraph)).splitlines()
            if not re.match(r"\s*(#|\|)", line)
        ]
        said_words = plain(said)
        for chinese in used("\n".join(lines), sorted(due)):
            names = [term.english for term in known if term.chinese == chinese]
            if not any(plain(name) in said_words for name in names):
                yield f"{place}: {chinese} without （{' / '.join(names)}）: {' '.join(paragraph.split())[:60]}"
            due.remove(chinese)


def used(text: str, chinese: list[str]) -> list[str]:
    found = []
    for term in sorted(chinese, key=len, reverse=True):
        text = re.sub(OTHER_WORDS.get(term) or "$^", " ", text)
        if term in text:
            found.append(term)
        text = text.replace(term, " ")
    return found


def plain(english: str) -> str:
    """Words without endings, to be compared.

    >>> plain("Problem sets") == plain("problem set"), plain("data loaders, sharded")
    (True, ' data loader shard ')
    """
    words = re.findall(r"[a-z]+", english.lower())
    return f" {' '.join(re.sub(r'(?<=[a-z]{3})(?:ing|ed|es|s)$', '', word) for word in words)} "


def problems(path: Path) -> list[str]:
    page = translation.find_page(path)
    return [*term_problems(path), *translation.problems(page), *block_problems(page)]


def chinese_pages() -> list[Path]:
    return [page.chinese for page in translation.pages()] + translation.only_chinese()


def main(names: list[str]) -> int:
    lines = [line for path in ([Path(name).resolve() for name in names] or chinese_pages()) for line in problems(path)]
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
