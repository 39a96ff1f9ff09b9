"""nn.DataParallel: what travels between the devices in one step."""

from bench.analysis import style
from bench.course.diagrams import shapes

ROW = 0.62  # inches
LEFT, RIGHT, WIDE = 0.98, 3.98, 1.88  # inches: the two devices' columns
COPIED = style.VERMILION

# (number and name, on device 0, on device 1, what is copied between them)
STEPS = (
    ("1  scatter", "batch of 64 → images 0–31", "images 32–63", "images"),
    ("2  replicate", "the weights", "a copy of the weights", "weights"),
    ("3  forward", "thread 0: outputs 0–31", "thread 1: outputs 32–63", ""),
    ("4  gather", "outputs 0–63, the loss", "", "outputs"),
    ("5  backward", "gradient of 0–31\n+ gradient of 32–63", "gradient of 32–63", "gradients"),
    ("6  step", "optimizer changes\nthe weights", "the copy is thrown away", ""),
)


@style.styled
def data_parallel_flow():
    """A drawing of one step of nn.DataParallel on two devices, from top to bottom."""
    height = ROW * len(STEPS) + 0.42
    note = (
        "Drawing of the algorithm, not a measurement. Orange-red: copied from device to device, every step. The batch "
        "may also be scattered from the CPU."
    )
    figure, axes, top = shapes.paper(height, "nn.DataParallel: one process, two devices, one step", note)
    for x, name in ((LEFT, "device 0"), (RIGHT, "device 1")):
        axes.text(x + WIDE / 2, top - 0.14, name, ha="center", va="center", size=style.TEXT, weight="bold")
    for row, (name, first, second, sent) in enumerate(STEPS):
        y = top - 0.36 - ROW * (row + 1) + 0.1
        axes.text(style.MARGIN, y + 0.23, name, va="center", size=style.SMALL + 0.5)
        shapes.box(axes, LEFT, y, WIDE, 0.46, first, "#FDF0D5")
        if second:
            shapes.box(axes, RIGHT, y, WIDE, 0.46, second, "#E8F3FA", dashed=row == len(STEPS) - 1)
        if sent:
            to_right = name.split()[-1] in ("scatter", "replicate")
            ends = [(LEFT + WIDE + 0.05, y + 0.2), (RIGHT - 0.05, y + 0.2)]
            if name.endswith("gather"):  # from the outputs of the row above
                ends[1] = (RIGHT + 0.3, y + ROW - 0.02)
            start, end = ends if to_right else ends[::-1]
            shapes.arrow(axes, start, end, COPIED)
            axes.text(LEFT + WIDE + 0.56, y + (0.56 if name.endswith("gather") else 0.4), sent, ha="center",
                      va="center", size=style.SMALL, color=COPIED)  # fmt: skip
    return figure
