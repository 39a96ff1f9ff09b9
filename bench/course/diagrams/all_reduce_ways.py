"""Four ways to all-reduce on eight ranks of two machines: who sends to whom, one message after the other."""

from bench.analysis import style

RANKS, DEVICES = 8, 4  # of a machine
INSIDE, BETWEEN = style.BLUE, style.VERMILION
THICK = 1.8  # points: of a message that is the whole tensor
PANEL = 1.22  # inches

Turn = tuple[float, list[tuple[int, int]]]  # the share of the tensor in each message; (from, to) of those at once


def ring(members: list[list[int]], turns: int, share: float) -> list[Turn]:
    """So many turns of rings that go on side by side."""
    sends = [(ranks[place - 1], ranks[place]) for ranks in members for place in range(len(ranks))]
    return [(share, sends)] * turns


def tree() -> list[Turn]:
    """Up, adding, and down again in the opposite order."""
    up = [[(rank + d, rank) for rank in range(0, RANKS, 2 * d)] for d in (1, 2, 4)]
    down = [[(to, sender) for sender, to in sends] for sends in reversed(up)]
    return [(1.0, sends) for sends in up + down]


def ways() -> dict[str, list[Turn]]:
    """Each way's messages, in the order in which they follow one another.

    >>> [len(turns) for turns in ways().values()]
    [14, 6, 3, 8]
    """
    machines = [list(range(first, first + DEVICES)) for first in range(0, RANKS, DEVICES)]
    inside = ring(machines, DEVICES - 1, 1 / DEVICES)
    return {
        "ring": ring([list(range(RANKS))], 2 * (RANKS - 1), 1 / RANKS),
        "tree": tree(),
        "doubling": [(1.0, [(rank, rank ^ distance) for rank in range(RANKS)]) for distance in (1, 2, 4)],
        "by machines": [*inside, *ring([list(pair) for pair in zip(*machines, strict=True)], 2, 1 / RANKS), *inside],
    }


def left_a_machine(turns: list[Turn]) -> float:
    """The bytes that leave machine 0, in times of the tensor.

    >>> [left_a_machine(turns) for turns in ways().values()]
    [1.75, 1.0, 4.0, 1.0]
    """
    return sum(share for share, sends in turns for sender, to in sends if sender < DEVICES <= to)


@style.styled
def all_reduce_ways():
    """A panel per way; to the right the messages that follow one another, from top to bottom the ranks."""
    note = (
        "Drawing, not a measurement. Red: between the machines (ranks 0 to 3, ranks 4 to 7). Thick: the whole tensor "
        "in a message; thin: a quarter or an eighth of it."
    )
    paper = style.canvas(None, "Who sends to whom, one message after the other", 4 * PANEL, more=(note,))
    for axes, (name, turns) in zip(style.axes_on(paper, 4, sharex=True), ways().items(), strict=True):
        axes.set_title(f"{name}: depth {len(turns)}; {left_a_machine(turns):g} × the tensor leaves machine 0",
                       loc="left", size=style.SMALL)  # fmt: skip
        for place, (share, sends) in enumerate(turns):
            for sender, to in sends:
                colour = INSIDE if (sender < DEVICES) == (to < DEVICES) else BETWEEN
                axes.annotate("", (place + 0.95, to), (place + 0.05, sender), arrowprops={
                    "arrowstyle": "-|>", "color": colour, "linewidth": max(0.7, THICK * share), "shrinkA": 0,
                    "shrinkB": 0, "mutation_scale": 6 + 4 * share})  # fmt: skip
        axes.axhline(DEVICES - 0.5, color=style.GREY, linewidth=0.8, linestyle=":")
        axes.set(xlim=(0, 2 * (RANKS - 1)), ylim=(RANKS - 0.5, -0.5), yticks=[0, 7], ylabel="rank")
        axes.set_xticks(range(2 * (RANKS - 1) + 1))
    axes.set_xlabel("messages that have followed one another")
    return paper.figure
