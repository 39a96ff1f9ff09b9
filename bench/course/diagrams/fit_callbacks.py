"""Keras's ``fit`` on several ranks: at which moment which callback acts, and what is sent for it."""

from bench.analysis import style
from bench.course.diagrams import shapes

# moment of fit, who acts, what is sent; the last two empty where fit itself does something
ROWS = (
    ("training begins", "SameStart", "rank 0's weights, to all"),
    ("a batch begins", "WarmUp", ""),
    ("forward, backward", "", ""),
    ("gradients are there", "MeanGradients", "sum of the gradients"),
    ("the optimizer's step", "", ""),
    ("an epoch ends, first", "MeanMetrics", "sum of the metrics"),
    ("then", "readers of metrics;\nSave, on rank 0 alone", ""),
)
LOOPS = (("each step", 1, 5), ("each epoch", 1, 7))  # the first row of a loop, and the first behind it
ROW, GAP, LEFT, HEAD = 0.42, 0.1, 1.15, 0.3  # inches


@style.styled
def fit_callbacks():
    """Columns: the moments of fit, the callbacks, the messages; the loops at the left."""
    note = "A drawing, not a measurement. Every rank does all of it, but for Save."
    figure, axes, top = shapes.paper(
        HEAD + len(ROWS) * ROW + 0.1, "fit calls, and callbacks keep the ranks alike", note
    )
    wide = (style.WIDTH - LEFT - style.MARGIN - 2 * GAP) / 3
    for column, title in enumerate(("fit", "callback", "sent between ranks")):
        x = LEFT + column * (wide + GAP) + wide / 2
        axes.text(x, top - HEAD / 2, title, ha="center", va="center", weight="bold")
    for row, (moment, callback, sent) in enumerate(ROWS):
        y = top - HEAD - ROW * (row + 1)
        shapes.box(axes, LEFT, y, wide, ROW - 0.08, moment, "#E8F3FA" if callback else style.PALE)
        if callback:
            shapes.box(axes, LEFT + wide + GAP, y, wide, ROW - 0.08, callback, style.SKY)
            x = LEFT + 2 * (wide + GAP)
            shapes.box(
                axes, x, y, wide, ROW - 0.08, sent or "nothing", style.ORANGE if sent else style.WHITE, dashed=not sent
            )
    for place, (name, first, last) in enumerate(LOOPS):
        x, high, low = LEFT - 0.14 - 0.5 * place, top - HEAD - ROW * first, top - HEAD - ROW * last + 0.08
        axes.plot([x + 0.08, x, x, x + 0.08], [high, high, low, low], color=style.BLACK, linewidth=1.2)
        axes.text(x - 0.05, (high + low) / 2, name, rotation=90, ha="right", va="center", size=style.SMALL)
    return figure
