"""Check the project's words, for `make lint`: `prose.tsv` lists expressions with their replacements.

    python -m tests.prose [PATH ...]    file:line, the expression, the replacement; exit code 1

It reads pages, templates, the text of notebooks, docstrings, comments, and the strings of the package: help, messages,
tables. It does not read code within text, nor what is generated into a page (`<!-- begin: … -->`). Where a listed
expression is right, its pattern excludes the place. A page has at most 22 words per sentence on average.

Words that the style avoids, but that have too many right uses for a list: engine (a folder of the code), figure,
finding, look, probe, program, steal, standing, "alone", "had", "such a", ", for" before a noun without a verb.
"""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from bench.files import PROJECT

HISTORY = ("CHANGELOG.md", "NOTES.md")  # they describe what was
MOST_WORDS = 22  # per sentence, average of a page
WORDS = [line.split("\t") for line in Path(__file__).with_suffix(".tsv").read_text().splitlines() if "\t" in line]
WHOLE = r"""(?<![\w.=/"'-])(?:%s)(?![\w=/"-])"""
PATTERNS = [(re.compile(WHOLE % pattern, re.IGNORECASE), better) for pattern, better in WORDS]
ALL = re.compile(WHOLE % "|".join(pattern for pattern, _ in WORDS), re.IGNORECASE)
CODE = re.compile(
    r"^( *)(```+|~~~+).*?^\1\2 *$|(`+)[^`].*?\3|\]\([^)\n]*\)|<!--.*?-->|https?://\S+", re.MULTILINE | re.DOTALL
)
BLOCK = re.compile(r"<!-- begin: (\S+) -->.*?<!-- end: \1 -->", re.DOTALL)
MARKUP = re.compile(r"<(script|style)\b.*?</\1>|\{[{%#].*?[}%#]\}|</?[a-z][^>]*>", re.DOTALL)  # of a template


def blank(found: re.Match) -> str:
    return "\n" * found[0].count("\n") or " x "


def texts(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text() if path.suffix in (".md", ".ipynb", ".py", ".j2") else ""
    if path.suffix == ".md":
        notes = path.with_name("NOTES.md")  # the page of a machine quotes them
        lines = set(notes.read_text().splitlines()) if notes.exists() else ()
        text = "\n".join("" if line in lines else line for line in source.splitlines())
        yield 1, CODE.sub(blank, BLOCK.sub(blank, text))
    elif path.suffix == ".j2":
        yield 1, CODE.sub(blank, MARKUP.sub(blank, source))
    elif path.suffix == ".ipynb" and not path.with_suffix(".md").exists():  # else it is made from that
        cells = [cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown"]
        yield from ((1, CODE.sub(blank, "".join(cell["source"]))) for cell in cells)
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], CODE.sub(blank, token.string)
        nodes = [*ast.walk(ast.parse(source))]
        documented = (node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
        docs = {id(node.body[0].value) for node in documented if ast.get_docstring(node) is not None}
        inside = path.relative_to(PROJECT).parts if path.is_relative_to(PROJECT) else ()
        shown = "tests" not in inside or "pages" in inside  # strings that a person reads
        for node in nodes:
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if id(node) in docs or (shown and " " in text.strip()):
                yield node.lineno, CODE.sub(blank, text)


def hits(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, expression, replacement) of each expression that is in the list."""
    for first, text in texts(path):
        for pattern, better in PATTERNS if ALL.search(text) else ():
            for found in pattern.finditer(text):
                yield first + text[: found.start()].count("\n"), " ".join(found[0].split()), better


def sentences(text: str) -> list[list[int]]:
    """Words of each sentence, by paragraph: without headings, tables, code and what is made from records."""
    text = CODE.sub(lambda found: "x" if "\n" not in found[0] else "\n\n", BLOCK.sub("\n\n", text))
    text = re.sub(r"^ *(\||#|<).*$", "\n", text, flags=re.MULTILINE)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    split = [re.split(r"(?<=[.!?])[*)\"]*\s+", each.strip()) for each in paragraphs if re.search(r"\w", each)]
    return [[len(re.findall(r"[^\s]*\w[^\s]*", part)) for part in each if re.search(r"\w", part)] for each in split]


def tracked() -> list[Path]:
    names = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    return [PROJECT / name for name in names.splitlines()]


def main(names: list[str]) -> int:
    paths = [Path(name).resolve() for name in names] or tracked()
    paths = [path for path in paths if path.name not in HISTORY and path.exists()]
    paths = [path for path in paths if path.suffixes != [".zh", ".md"] and PROJECT / "tutorials/zh" not in path.parents]
    lines = []
    for path in paths:
        lines += [f"{os.path.relpath(path, PROJECT)}:{n}: {words} → {better}" for n, words, better in hits(path)]
    for path in [path for path in paths if path.suffix == ".md"]:
        each = [words for paragraph in sentences(path.read_text()) for words in paragraph]
        if sum(each) > MOST_WORDS * len(each):
            average = f"{sum(each)} words, {sum(each) / len(each):.1f} per sentence"
            lines.append(f"{os.path.relpath(path, PROJECT)}: {average} → shorter sentences")
    print("\n".join(lines) or f"prose: {len(paths)} files, no expression of the list")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
