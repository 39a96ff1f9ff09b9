"""From questions to a mode: the first question that is answered with yes decides."""

from bench.analysis import style
from bench.config.modes import MODES

TOO_LARGE = "The model does not fit on one device,\neven with a batch of one?"
QUESTIONS = (
    (TOO_LARGE, "none of these modes:\neach device holds it whole", style.GREY),
    ("One device is enough,\nor there is no GPU?", "single", MODES["single"].look.colour),
    ("There is Horovod code that runs?", "horovod, or ddp:\nthe same update", MODES["horovod"].look.colour),
    ("Several machines?", "ddp: torchrun or Slurm\n(or horovod)", MODES["ddp"].look.colour),
    ("All must stay in one process,\nfor a quick look?", "dp, and watch device 0", MODES["dp"].look.colour),
)
LAST = ("no to all:\nGPUs of one machine", "ddp", MODES["ddp"].look.colour)
ROW, TOP = 0.82, 0.45  # inches


@style.styled
def decision():
    """One row per question; yes goes to the right, no goes down."""
    from matplotlib.figure import Figure

    height = ROW * (len(QUESTIONS) + 1) + TOP
    figure = Figure(figsize=(style.WIDTH, height), facecolor=style.WHITE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, style.WIDTH), ylim=(0, height))
    axes.axis("off")
    axes.text(0.1, height - 0.22, "Which mode? The first yes decides", size=style.TITLE, weight="bold", va="center")
    for row, (question, answer, colour) in enumerate((*QUESTIONS, LAST)):
        y, last = height - TOP - ROW * (row + 0.5), row == len(QUESTIONS)
        box(axes, 0.1, y, 3.05, question, style.PALE, style.BLACK)
        box(axes, 3.85, y, 2.05, answer, colour, style.BLACK)
        arrow(axes, (3.15, y), (3.85, y), "" if last else "yes", (0, 0.11))
        if not last:
            arrow(axes, (0.6, y - 0.29), (0.6, y - ROW + 0.29), "no", (0.19, 0))
    return figure


def box(axes, left: float, y: float, width: float, text: str, edge: str, colour: str) -> None:
    """A frame with a text in its middle."""
    from matplotlib.patches import FancyBboxPatch

    frame = FancyBboxPatch((left, y - 0.27), width, 0.54, boxstyle="round,pad=0.02", facecolor=style.WHITE,
                           edgecolor=edge, linewidth=2)  # fmt: skip
    axes.add_patch(frame)
    axes.text(left + width / 2, y, text, ha="center", va="center", size=style.SMALL, color=colour)


def arrow(axes, start, end, word: str, aside) -> None:
    """An arrow with a word beside its middle."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": style.GREY, "shrinkA": 0, "shrinkB": 0})
    x, y = (start[0] + end[0]) / 2 + aside[0], (start[1] + end[1]) / 2 + aside[1]
    axes.text(x, y, word, ha="center", va="center", size=style.SMALL, color="#404040")
