"""Tables as Markdown."""

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
