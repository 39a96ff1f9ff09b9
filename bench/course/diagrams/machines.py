"""Two machines with two devices each: the names of their ranks, and two ways for them to sum a gradient."""

from bench.analysis import style
from bench.course.diagrams.shapes import arrow

HEIGHT = 6.6  # inches
SLOW, FAST = style.VERMILION, style.BLUE
BOX = (1.0, 0.62)  # inches, of a rank
CENTRES = (1.0, 2.15, 3.85, 5.0)  # inches from the left, ranks 0 … 3


@style.styled
def machines():
    """Three drawings, one above the other: names, the ring over all ranks, and the sum by machines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.WIDTH, HEIGHT), facecolor=style.WHITE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, style.WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    draw_names(axes, 5.55)
    draw_ring(axes, 3.65)
    draw_hierarchy(axes, 1.5)
    axes.text(0.1, 0.06, "A drawing, not a measurement. Red: over the slow link between machines.", size=style.SMALL)
    return figure


def draw_ranks(axes, y: float, words) -> None:
    """Two machines as frames, four ranks as boxes. words: the text in the box of a rank."""
    from matplotlib.patches import Rectangle

    for node in range(2):
        left = CENTRES[2 * node] - BOX[0] / 2 - 0.14
        axes.add_patch(Rectangle((left, y - 0.45), 2.43, 0.9, facecolor="#F4F4F4", edgecolor=style.GREY))
    for rank, x in enumerate(CENTRES):
        corner = (x - BOX[0] / 2, y - BOX[1] / 2)
        axes.add_patch(Rectangle(corner, *BOX, facecolor=style.WHITE, edgecolor=style.BLACK))
        axes.text(x, y, words(rank), ha="center", va="center", size=style.SMALL)


def title(axes, y: float, text: str) -> None:
    """The head of one drawing."""
    axes.text(0.1, y, text, size=style.TEXT, weight="bold", va="center")


def draw_names(axes, y: float) -> None:
    """rank counts over all machines, local_rank on one."""
    title(axes, y + 0.92, "Names: rank = node_rank × devices + local_rank")
    for node in range(2):
        middle = (CENTRES[2 * node] + CENTRES[2 * node + 1]) / 2
        axes.text(middle, y + 0.6, f"machine: node_rank {node}", ha="center", va="center", size=style.SMALL)
    draw_ranks(axes, y, lambda rank: f"rank {rank}\nlocal_rank {rank % 2}")
    arrow(axes, (CENTRES[1] + 0.65, y), (CENTRES[2] - 0.65, y), SLOW)
    arrow(axes, (CENTRES[2] - 0.65, y), (CENTRES[1] + 0.65, y), SLOW)


def draw_ring(axes, y: float) -> None:
    """Rank r sends to r + 1, the last one to rank 0: one arrow leaves each machine."""
    title(axes, y + 0.85, "A ring in the order of the ranks: one arrow leaves each machine")
    draw_ranks(axes, y, lambda rank: f"rank {rank}")
    for rank in range(3):
        colour = SLOW if rank == 1 else FAST
        arrow(axes, (CENTRES[rank] + 0.3, y + 0.31), (CENTRES[rank + 1] - 0.3, y + 0.31), colour, bend=-0.3)
    arrow(axes, (CENTRES[3], y - 0.31), (CENTRES[0], y - 0.31), SLOW, bend=-0.12)


def draw_hierarchy(axes, y: float) -> None:
    """Sum inside, exchange between the first ranks, send the result inside."""
    title(axes, y + 1.1, "By machines: 1 sum inside, 2 between the first ranks, 3 copy inside")
    draw_ranks(axes, y, lambda rank: f"rank {rank}")
    for first in (0, 2):
        a, b = CENTRES[first], CENTRES[first + 1]
        arrow(axes, (b - 0.2, y + 0.31), (a + 0.3, y + 0.31), FAST, bend=0.35)
        axes.text((a + b) / 2, y + 0.62, "1", ha="center", va="center", size=style.TEXT, color=FAST, weight="bold")
        arrow(axes, (a + 0.3, y - 0.31), (b - 0.2, y - 0.31), FAST, bend=0.35)
        axes.text((a + b) / 2, y - 0.62, "3", ha="center", va="center", size=style.TEXT, color=FAST, weight="bold")
    left, right = (CENTRES[0] - 0.35, y - 0.31), (CENTRES[2] - 0.35, y - 0.31)
    arrow(axes, left, right, SLOW, bend=0.42)
    arrow(axes, right, left, SLOW, bend=-0.42)
    axes.text(2.07, y - 1.05, "2", ha="center", va="center", size=style.TEXT, color=SLOW, weight="bold")
