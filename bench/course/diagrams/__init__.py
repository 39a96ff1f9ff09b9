"""Drawings for chapters. Those that are the same for every reader are files in ``tutorials/pictures``, shown by the
function of their name (``turns()``), because Colab shows no file that a text names.
"""

from itertools import zip_longest
from pathlib import Path

from bench.analysis import style
from bench.course.diagrams.device_memory import device_memory, paper
from bench.files import PROJECT

__all__ = ["coverage_grid", "device_memory", "disagreement"]
PICTURES = PROJECT / "tutorials" / "pictures"
ROW, HEAD, NUMBERS, GAP = 0.42, 0.34, 0.7, 0.2  # inches, of ``disagreement``
NOTHING = "nothing"


class Drawing:
    def __init__(self, path: Path):
        self.path = path

    def _repr_svg_(self) -> str:
        return self.path.read_text(encoding="utf-8")


def __getattr__(name: str):
    path = PICTURES / f"{name}.svg"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in PICTURES.glob("*.svg")))
        raise AttributeError(f"no drawing {name}: there are {there}")
    return lambda: Drawing(path)


@style.styled
def coverage_grid(ways: dict[str, list[int]], results: dict[str, str]):
    """How often each image is counted. ways: name -> counts per image. results: name -> text at the end of its row."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    images = len(next(iter(ways.values())))
    step = 1.55  # rows per way: its name, then its cells
    figure = Figure(figsize=(style.WIDTH, 0.8 + 0.62 * len(ways)), facecolor=style.WHITE, layout="constrained")
    figure.suptitle("How often is each image counted?", size=style.TITLE, weight="bold")
    axes = figure.subplots()
    for row, (name, counts) in enumerate(ways.items()):
        top = row * step
        axes.text(0, top - 0.08, name, size=style.TEXT, weight="bold", va="bottom")
        axes.text(images + 0.2, top + 0.45, results[name], size=style.SMALL, va="center", linespacing=1.3)
        for image, count in enumerate(counts):
            colour = style.WHITE if count == 1 else style.VERMILION if count == 0 else style.ORANGE
            axes.add_patch(Rectangle((image, top), 0.92, 0.9, facecolor=colour, edgecolor=style.BLACK, linewidth=0.8))
            axes.text(image + 0.46, top + 0.47, str(count), size=style.TEXT, ha="center", va="center")
    axes.set(xlim=(-0.1, images + 5.2), ylim=(len(ways) * step - 0.4, -0.75))
    axes.set_axis_off()
    return figure


@style.styled
def disagreement(logs: list[list[str]]):
    """A column of calls per rank, the first difference marked. Raises ValueError for over 3 ranks or 12 calls."""
    from matplotlib.patches import Rectangle

    calls = list(zip_longest(*logs, fillvalue=NOTHING))
    if not (1 < len(logs) <= 3 and 0 < len(calls) <= 12):
        raise ValueError("two or three ranks with one to twelve calls can be drawn")
    first = next((row for row, call in enumerate(calls) if len(set(call)) > 1), None)
    title = "All ranks entered the same calls" if first is None else f"The ranks differ from call {first + 1} on"
    figure, axes, top = paper(HEAD + ROW * len(calls) + 0.1, title, "From the log of each rank, in its order.")
    wide = (style.WIDTH - NUMBERS - style.MARGIN - GAP * (len(logs) - 1)) / len(logs)
    for rank in range(len(logs)):
        x = NUMBERS + rank * (wide + GAP)
        axes.text(x + wide / 2, top - HEAD / 2, f"rank {rank}", ha="center", va="center", weight="bold")
        for row, call in enumerate(calls):
            differs = row == first
            empty = call[rank] == NOTHING and not differs
            y, height = top - HEAD - ROW * (row + 1), ROW - 0.08
            colour = style.VERMILION if differs else style.WHITE if empty else "#E8F3FA"
            axes.add_patch(Rectangle((x, y), wide, height, facecolor=colour, edgecolor=style.BLACK, linewidth=0.9,
                                     hatch="///" if differs else "", linestyle="--" if empty else "-"))  # fmt: skip
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.2} if differs else None
            axes.text(x + wide / 2, y + height / 2, call[rank], ha="center", va="center", size=style.SMALL, bbox=behind,
                      linespacing=1.2)  # fmt: skip
    for row in range(len(calls)):
        y = top - HEAD - ROW * (row + 0.5) - 0.04
        axes.text(style.MARGIN, y, f"call {row + 1}", va="center", size=style.SMALL)
    return figure
