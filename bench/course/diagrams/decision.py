"""From questions to a mode: the first question that is answered with yes decides."""

from bench.analysis import style
from bench.config.modes import MODES
from bench.course.diagrams import shapes

TOO_LARGE = "The model does not fit on one device,\neven with a batch of one?"
QUESTIONS = (
    (TOO_LARGE, "fsdp, on two or more:\neach device holds a part", MODES["fsdp"].look.colour),
    ("One device is enough,\nor there is no GPU?", "single", MODES["single"].look.colour),
    ("There is Horovod code that runs?", "horovod, or ddp:\nthe same update", MODES["horovod"].look.colour),
    ("Several machines?", "ddp: torchrun or Slurm\n(or horovod)", MODES["ddp"].look.colour),
    ("All must stay in one process,\nfor a quick look?", "dp, and watch device 0", MODES["dp"].look.colour),
)
LAST = ("no to all:\nGPUs of one machine", "ddp", MODES["ddp"].look.colour)
ROW, BOX = 0.82, 0.54  # inches, from one question to the next, and of a box


@style.styled
def decision():
    """One row per question; yes goes to the right, no goes down."""
    rows = (*QUESTIONS, LAST)
    figure, axes, top = shapes.paper(ROW * len(rows), "Which mode? The first yes decides")
    for row, (question, answer, colour) in enumerate(rows):
        y, last = top - ROW * (row + 0.5), row == len(QUESTIONS)
        shapes.box(axes, 0.1, y - BOX / 2, 3.05, BOX, question, style.PALE)
        shapes.box(axes, 3.85, y - BOX / 2, 2.05, BOX, answer, colour)
        shapes.arrow(axes, (3.15, y), (3.85, y), text="" if last else "yes", shift=(0, 0.11))
        if not last:
            shapes.arrow(axes, (0.6, y - BOX / 2), (0.6, y - ROW + BOX / 2), text="no", shift=(0.19, 0))
    return figure
