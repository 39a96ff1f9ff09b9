"""Two equally fast programs on a machine that grows slower: measured one after the other, and in turns."""

import math
import statistics

from bench.analysis import style

ROUNDS = 4
FIRST, LOSS = 100.0, 3.0  # images per second of both programs at the start, and what each run finds less: made up
LOOKS = {"A": style.Look(style.BLUE, "", "o"), "B": style.Look(style.VERMILION, "///", "s")}
ORDERS = {"one after the other": "AAAABBBB", "in turns, every other round reversed": "ABBAABBA"}


@style.styled
def turns():
    """Two panels, one an order: the eight runs in time, and the ratio B / A that comes out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.WIDTH, 4.4), layout="constrained")
    figure.suptitle(
        "The order of the runs decides what is measured", size=style.TITLE, weight="bold", x=0.02, ha="left"
    )
    figure.supxlabel("drawing, not a measurement: both programs are equally fast by construction", size=style.SMALL)
    for axes, (name, order) in zip(figure.subplots(2, 1), ORDERS.items(), strict=True):
        found = measured(order)
        for place, program in enumerate(order):
            look = LOOKS[program]
            axes.bar(place, speed(place), 0.7, facecolor=look.colour, alpha=0.6, edgecolor="black", hatch=look.hatch)
            axes.annotate(program, (place, 8), ha="center", weight="bold",
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
        axes.set_title(f"{name}: B / A = {ratio(found):.3f}", loc="left", weight="bold")
        axes.set_xticks(range(len(order)), [f"run {place + 1}" for place in range(len(order))], size=style.SMALL)
        axes.set_ylabel("images/s")
        axes.set_ylim(0, 110)
        style.horizontal_grid(axes)
    return figure


def speed(place: int) -> float:
    """Images a second of whichever program runs in this place."""
    return FIRST - LOSS * place


def measured(order: str) -> dict[str, list[float]]:
    """Program -> what its runs show, in the order of time."""
    return {name: [speed(place) for place, program in enumerate(order) if program == name] for name in LOOKS}


def ratio(found: dict[str, list[float]]) -> float:
    """The geometric mean of B / A over the rounds."""
    return math.exp(statistics.fmean(math.log(b / a) for a, b in zip(found["A"], found["B"], strict=True)))
