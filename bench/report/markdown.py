"""Tables as Markdown, and blocks of a Markdown text that are made from the code."""

import re

from bench.analysis.tables import Grid


def table(head: list[tuple[str, bool]], rows: list[list[str]]) -> str:
    """head: (name, whether its cells are numbers).

    >>> print(table([("mode", False), ("n", True)], [["ddp", "8"]]), end="")
    | mode | n |
    | --- | ---: |
    | ddp | 8 |
    """
    names = [" ".join(name.split()) for name, _ in head]
    lines = [names, ["---:" if number else "---" for _, number in head], *rows]
    cells = ([str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def grid(found: Grid) -> str:
    return table(found.head, found.rows)


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    """Replace what is between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->`` by the block of that name.

    >>> with_blocks("a\\n<!-- begin: x -->\\nold\\n<!-- end: x -->\\n", {"x": "new\\n"})
    'a\\n<!-- begin: x -->\\nnew\\n<!-- end: x -->\\n'
    """

    def filled(found: re.Match) -> str:
        return f"<!-- begin: {found[1]} -->\n{blocks[found[1]]}<!-- end: {found[1]} -->"

    return re.sub(r"<!-- begin: ([\w-]+) -->\n.*?<!-- end: \1 -->", filled, text, flags=re.DOTALL)
