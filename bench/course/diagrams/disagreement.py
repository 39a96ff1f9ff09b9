"""What each rank entered, call by call, and the first call in which they differ."""

from itertools import zip_longest

from bench.analysis import style
from bench.course.diagrams import shapes

ROW, HEAD, NUMBERS, GAP = 0.42, 0.34, 0.7, 0.2  # inches
NOTHING = "nothing"


@style.styled
def disagreement(logs: list[list[str]]):
    """A column for each rank's log, a row for each call. At most 3 ranks and 12 calls, so that the text stays legible.

    Raises ValueError for more.
    """
    calls = list(zip_longest(*logs, fillvalue=NOTHING))
    if not (1 < len(logs) <= 3 and 0 < len(calls) <= 12):
        raise ValueError("two or three ranks with one to twelve calls can be drawn")
    first = first_difference(calls)
    title = "All ranks entered the same" if first is None else f"The ranks part at call {first + 1}"
    figure, axes, top = shapes.paper(HEAD + ROW * len(calls) + 0.1, title, "From the ranks' own logs, in their order.")
    wide = (style.WIDTH - NUMBERS - style.MARGIN - GAP * (len(logs) - 1)) / len(logs)
    for rank in range(len(logs)):
        x = NUMBERS + rank * (wide + GAP)
        axes.text(x + wide / 2, top - HEAD / 2, f"rank {rank}", ha="center", va="center", weight="bold")
        for row, call in enumerate(calls):
            differs = row == first
            look = {"colour": style.VERMILION, "hatch": "///"} if differs else {"colour": "#E8F3FA"}
            empty = {"colour": style.WHITE, "dashed": True} if call[rank] == NOTHING and not differs else {}
            y = top - HEAD - ROW * (row + 1)
            shapes.box(axes, x, y, wide, ROW - 0.08, call[rank], **(look | empty))
    for row in range(len(calls)):
        y = top - HEAD - ROW * (row + 0.5) - 0.04
        axes.text(style.MARGIN, y, f"call {row + 1}", va="center", size=style.SMALL)
    return figure


def first_difference(calls: list[tuple[str, ...]]) -> int | None:
    """The row in which not all ranks have entered the same; None where there is none.

    >>> first_difference([("a", "a"), ("b", "c"), ("c", "nothing")])
    1
    """
    return next((row for row, call in enumerate(calls) if len(set(call)) > 1), None)
