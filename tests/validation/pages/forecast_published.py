"""The published tables in the manual: where each is from, and what the forecast says of each of its rows."""

import functools

from bench.report import markdown
from tests.validation.forecast import published


@functools.cache
def found() -> list[published.Judged]:
    """Every row of the committed tables."""
    return published.judged(published.read())


@functools.cache
def learned() -> list[published.Learned]:
    """Every row of several nodes, fitted to those of one."""
    return published.learned(published.read())


def sources() -> str:
    """Each table: its source, what it states, what is assumed, and what of it is left out."""
    rows = []
    for table in published.read():
        head = table.head
        rows.append([f"[{table.name}]({head['source']})", head["title"], head["stated"], head["assumed"],
                     head["left out"]])  # fmt: skip
    names = ("table", "what it is", "stated there", "assumed here", "left out")
    return markdown.table([(name, False) for name in names], rows)


def summary() -> str:
    """How far off, beside linear scaling."""
    return (
        "\n".join([f"{line[0].upper()}{line[1:]}." for line in published.answer(found())])
        + "\n\n"
        + markdown.grid(published.summary(found()))
    )


def rows() -> str:
    """Every row."""
    return markdown.grid(published.grid(found()))


def learned_summary() -> str:
    return markdown.grid(published.learned_summary({"the rows of one node": learned()}))


def learned_rows() -> str:
    return markdown.grid(published.learned_grid(learned()))
