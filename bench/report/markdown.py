"""Tables as Markdown, and blocks of a Markdown text that are made from the code."""

import re

from bench.analysis.tables import Grid


def table(head: list[tuple[str, bool]], rows: list[list[str]]) -> str:
    """A table. head: (name, whether its cells are numbers).

    >>> print(table([("mode", False), ("n", True)], [["ddp", "8"]]), end="")
    | mode | n |
    | --- | ---: |
    | ddp | 8 |
    """
    names = [" ".join(name.split()) for name, _ in head]
    lines = [line(names), line("---:" if number else "---" for _, number in head), *map(line, rows)]
    return "\n".join(lines) + "\n"


def line(cells) -> str:
    """One line of a table; what would end a cell is escaped.

    >>> line(["a|b", "c"])
    '| a\\\\|b | c |'
    """
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def grid(found: Grid) -> str:
    return table(found.head, found.rows)


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    """A text in which what is between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->`` is the block of that name.

    Raises KeyError for a name that is not among the blocks.

    >>> with_blocks("a\\n<!-- begin: x -->\\nold\\n<!-- end: x -->\\n", {"x": "new\\n"})
    'a\\n<!-- begin: x -->\\nnew\\n<!-- end: x -->\\n'
    """

    def filled(found: re.Match) -> str:
        return f"<!-- begin: {found[1]} -->\n{blocks[found[1]]}<!-- end: {found[1]} -->"

    return re.sub(r"<!-- begin: ([\w-]+) -->\n.*?<!-- end: \1 -->", filled, text, flags=re.DOTALL)
