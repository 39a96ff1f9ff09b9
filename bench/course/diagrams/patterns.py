"""All data-parallel patterns on one sheet: what lives on which of two devices, and what travels between them."""

from dataclasses import dataclass

from bench.analysis import style
from bench.course.diagrams import shapes
from bench.course.diagrams.device_memory import LOOKS as ALL_LOOKS

LOOKS = {what: ALL_LOOKS[what] for what in ("weights", "gradients", "optimizer state", "images")}
LEFT, BETWEEN, DEVICE, LINE = 1.2, 1.7, 1.45, 0.17  # inches: of the names, between the devices, a device, a row of one
WHOLE, SHARD, COPY = "whole", "shard", "copy"  # kept whole; a part of it; a copy that lasts for one step
ROW = 5 * LINE + 0.22  # inches, of one pattern


@dataclass(frozen=True)
class Pattern:
    """name: of the modes. keeps: for each device, how it has its weights, gradients and optimizer state; None: not.
    travels: what is sent in every step."""

    name: str
    keeps: tuple[tuple[str | None, str | None, str | None], ...]
    travels: str = ""


PATTERNS = (
    Pattern("single", ((WHOLE, WHOLE, WHOLE),)),
    Pattern("dp", ((WHOLE, WHOLE, WHOLE), (COPY, COPY, None)), "images, weights →\n← outputs, gradients"),
    Pattern("ddp,\nhorovod", ((WHOLE, WHOLE, WHOLE),) * 2, "sum of gradients"),
    Pattern("zero1", ((WHOLE, WHOLE, SHARD),) * 2, "sum of gradients,\nthen new weights"),
    Pattern("fsdp", ((SHARD, SHARD, SHARD),) * 2, "weights, twice,\nand parts of the\nsum of gradients"),
    Pattern("local", ((WHOLE, WHOLE, WHOLE),) * 2, "mean of weights,\nin every k-th step"),
)  # fmt: skip


@style.styled
def patterns():
    """A row per pattern, with two devices; what lives there is a bar, as long as the share of it that is kept."""
    note = (
        "A drawing, not a measurement. A whole bar: all of it is there; a short one: this device's shard (with N "
        "devices, 1/N); dashed: a copy that lasts for one step. Every device also holds the activations of its images."
    )
    figure, axes, top = shapes.paper(ROW * len(PATTERNS) + 0.75, "What lives on a device, and what travels", note)
    legend(axes, top - 0.14)
    for at, x in enumerate((LEFT, LEFT + DEVICE + BETWEEN)):
        axes.text(x + DEVICE / 2, top - 0.5, f"device {at}", ha="center", va="center", size=style.SMALL, weight="bold")
    for number, pattern in enumerate(PATTERNS):
        row(axes, top - 0.68 - ROW * number, pattern)
    return figure


def legend(axes, y: float) -> None:
    """A small box per kind of content, in a line."""
    for number, (what, look) in enumerate(LOOKS.items()):
        x = style.MARGIN + 1.42 * number
        shapes.box(axes, x, y - 0.07, 0.22, 0.14, colour=look.colour, hatch=look.hatch)
        axes.text(x + 0.29, y, "its images" if what == "images" else what, va="center", size=style.SMALL)


def row(axes, y: float, pattern: Pattern) -> None:
    """One pattern, its upper edge at ``y``."""
    axes.text(style.MARGIN, y - ROW / 2 + 0.08, pattern.name, va="center", size=style.TEXT, weight="bold")
    for at, keeps in enumerate(pattern.keeps):
        device(axes, LEFT + at * (DEVICE + BETWEEN), y, keeps)
    if pattern.travels:
        middle, left, right = y - ROW / 2 + 0.08, LEFT + DEVICE + 0.06, LEFT + DEVICE + BETWEEN - 0.06
        shapes.arrow(axes, (left, middle - 0.32), (right, middle - 0.32), style.VERMILION, both=True)
        axes.text((left + right) / 2, middle + 0.09, pattern.travels, ha="center", va="center", size=style.SMALL,
                  color=style.VERMILION, linespacing=1.2)  # fmt: skip


def device(axes, x: float, y: float, keeps: tuple) -> None:
    """A frame with a bar for each thing that the device has; its images come last."""
    shapes.box(axes, x, y - ROW + 0.16, DEVICE, ROW - 0.16)
    for number, (how, look) in enumerate(zip((*keeps, WHOLE), LOOKS.values(), strict=True)):
        if how:
            width = (DEVICE - 0.16) * (0.5 if how == SHARD else 1)
            shapes.box(axes, x + 0.08, y - 0.09 - (number + 1) * (LINE + 0.035) + 0.05, width, LINE, colour=look.colour,
                       hatch=look.hatch, dashed=how == COPY)  # fmt: skip
