"""DistributedDataParallel: what two processes do when the model is wrapped and in one step, and what they send."""

from bench.analysis import style
from bench.course.diagrams import shapes

ROW = 0.66  # inches
LEFT, RIGHT, WIDE = 1.22, 4.06, 1.82  # inches: the two processes' columns
SENT = style.VERMILION
TO_RIGHT, BOTH = "to the right", "both ways"

# (number and name, in process 0, in process 1, what is sent, how)
STEPS = (
    ("wrap the model", "its own weights", "rank 0's weights\nin the place of its own", "weights,\nbuffers", TO_RIGHT),
    ("1  batch", "images 0, 2, 4, …", "images 1, 3, 5, …", "", ""),
    ("2  forward", "buffers, then outputs,\nloss of its batch", "rank 0's buffers, outputs,\nloss of its batch",
     "buffers", TO_RIGHT),
    ("3  backward:\nlast layers", "gradients: bucket 1 full", "gradients: bucket 1 full", "all-reduce 1", BOTH),
    ("    first layers", "gradients: bucket 2 full", "gradients: bucket 2 full", "all-reduce 2", BOTH),
    ("4  wait", "mean of both gradients", "mean of both gradients", "", ""),
    ("5  step", "its own optimizer:\nnew weights", "its own optimizer:\nthe same new weights", "", ""),
)  # fmt: skip


@style.styled
def ddp_step():
    """A drawing of DistributedDataParallel on two processes, from top to bottom: once, then one step."""
    height = ROW * len(STEPS) + 0.46
    note = (
        "Drawing of the algorithm, not a measurement. Orange-red: sent from process to process. Bucket 1 is sent while "
        "backward computes the gradients of bucket 2. Buffers (as batch norm's statistics) are sent before a forward "
        "pass where the model has some."
    )
    figure, axes, top = shapes.paper(height, "DistributedDataParallel: two processes, one step", note)
    for x, name in ((LEFT, "process 0 (rank 0)"), (RIGHT, "process 1 (rank 1)")):
        axes.text(x + WIDE / 2, top - 0.14, name, ha="center", va="center", size=style.TEXT, weight="bold")
    for row, (name, first, second, sent, how) in enumerate(STEPS):
        y = top - 0.38 - ROW * (row + 1) + 0.12
        axes.text(style.MARGIN, y + 0.25, name, va="center", size=style.SMALL + 0.5, linespacing=1.15)
        shapes.box(axes, LEFT, y, WIDE, 0.5, first, "#FDF0D5")
        shapes.box(axes, RIGHT, y, WIDE, 0.5, second, "#E8F3FA")
        if sent:
            ends = (LEFT + WIDE + 0.05, y + 0.2), (RIGHT - 0.05, y + 0.2)
            shapes.arrow(axes, *ends, SENT, both=how == BOTH)
            axes.text((LEFT + WIDE + RIGHT) / 2, y + 0.27, sent, ha="center", va="bottom", size=style.SMALL,
                      color=SENT, linespacing=1.1)  # fmt: skip
    line = top - 0.38 - ROW + 0.06  # between what is done once and the step
    axes.plot([style.MARGIN, style.WIDTH - style.MARGIN], [line, line], color=style.GREY, linewidth=0.8, linestyle="--")
    return figure
