"""Check the project's words: `prose.tsv` lists expressions that are always wrong here, each with its replacement.

    python -m tests.validation.prose [PATH ...]           file:line, the expression, the replacement; exit code 1
    python -m tests.validation.prose --sentences PAGE ... words per sentence of a page, and its longest paragraph

It reads pages, the text of notebooks, docstrings, comments, and the strings of `bench`.
"""

import argparse
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
WORDS = [line.split("\t") for line in Path(__file__).with_suffix(".tsv").read_text().splitlines() if "\t" in line]
WHOLE = r"""(?<![\w.=/"'-])(?:%s)(?![\w=/"-])"""
PATTERNS = [(re.compile(WHOLE % pattern, re.IGNORECASE), better) for pattern, better in WORDS]
ALL = re.compile("|".join(pattern.pattern for pattern, _ in PATTERNS), re.IGNORECASE)
CODE = re.compile(
    r"^( *)(```+|~~~+).*?^\1\2 *$|(`+)[^`].*?\3|\]\([^)\n]*\)|<!--.*?-->|https?://\S+", re.MULTILINE | re.DOTALL
)
BLOCK = re.compile(r"<!-- begin: (\S+) -->.*?<!-- end: \1 -->", re.DOTALL)


def blank(found: re.Match) -> str:
    """The same number of lines without the text."""
    return "\n" * found[0].count("\n") or " x "


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(first line, prose) of a file."""
    source = path.read_text() if path.suffix in (".md", ".ipynb", ".py") else ""
    if path.suffix == ".md":
        notes = path.with_name("NOTES.md")  # the page of a machine quotes them
        lines = set(notes.read_text().splitlines()) if notes.exists() else ()
        yield 1, CODE.sub(blank, "\n".join("" if line in lines else line for line in source.splitlines()))
    elif path.suffix == ".ipynb" and not path.with_suffix(".md").exists():  # else it is made from that
        cells = [cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown"]
        yield from ((1, CODE.sub(blank, "".join(cell["source"]))) for cell in cells)
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], CODE.sub(blank, token.string)
        tree = ast.parse(source)
        documented = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
        docs = {id(node.body[0].value) for node in documented if ast.get_docstring(node) is not None}
        strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in strings:
            if id(node) in docs or (" " in node.value.strip() and path.is_relative_to(PROJECT / "bench")):
                yield node.lineno, CODE.sub(blank, node.value)


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", action="store_true", help="print words per sentence, and judge nothing")
    parser.add_argument("paths", nargs="*", type=Path, help="files [all files that git tracks]")
    args = parser.parse_args(argv)
    paths = [path.resolve() for path in args.paths] or tracked()
    if args.sentences:
        for path in (path for path in paths if path.suffix == ".md"):
            lengths = sentences(path.read_text())
            words, number = sum(map(sum, lengths)), sum(map(len, lengths))
            longest = max(map(len, lengths), default=0)
            name, average = os.path.relpath(path, PROJECT), words / max(number, 1)
            print(f"{name}: {words} words, {average:.1f} per sentence, at most {longest} sentences in a paragraph")
        return 0
    found = [(path, *hit) for path in paths if path.name not in HISTORY and path.exists() for hit in hits(path)]
    for path, line, words, better in found:
        print(f"{os.path.relpath(path, PROJECT)}:{line}: {words} → {better}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
