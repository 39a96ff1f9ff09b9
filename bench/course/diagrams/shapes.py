"""A sheet of paper for drawings, measured in inches, its origin at the bottom left."""

from bench.analysis import style


def paper(height: float, title: str, note: str = ""):
    """(figure, axes, top): an empty sheet of style.WIDTH × ``height`` inches with a title, and a note at its foot.

    Data units of the axes are inches; the body is between 0 and ``top``.
    """
    from matplotlib.figure import Figure

    lines = style.wrapped(title, style.TITLE, weight="bold")
    notes = style.wrapped(note, style.SMALL)
    head = len(lines) * style.TITLE * style.LINE / 72 + style.MARGIN
    foot = len(notes) * style.SMALL * style.LINE / 72 + (style.MARGIN if notes else 0)
    whole = height + head + foot
    figure = Figure(figsize=(style.WIDTH, whole), facecolor=style.WHITE)
    figure.text(style.MARGIN / style.WIDTH, 1 - style.MARGIN / 2 / whole, "\n".join(lines), size=style.TITLE,
                weight="bold", va="top")  # fmt: skip
    figure.text(style.MARGIN / style.WIDTH, style.MARGIN / 2 / whole, "\n".join(notes), size=style.SMALL,
                color="#404040", va="bottom")  # fmt: skip
    axes = figure.add_axes((0, foot / whole, 1, height / whole))
    axes.set_xlim(0, style.WIDTH)
    axes.set_ylim(0, height)
    axes.axis("off")
    return figure, axes, height


def box(axes, x: float, y: float, width: float, height: float, text: str, colour: str, hatch: str = "",
        dashed: bool = False) -> None:  # fmt: skip
    """A box with its lower left corner at (x, y), and a text in its middle, black on white where there is a hatch."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=style.BLACK, hatch=hatch,
                             linewidth=0.9, linestyle="--" if dashed else "-"))  # fmt: skip
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.2} if hatch else None
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", size=style.SMALL, bbox=behind,
              linespacing=1.2)  # fmt: skip
