"""Drawings of how the modes work. They show an algorithm and no measurement, and say so where times are drawn.

A drawing that is the same for every reader is a file in ``tutorials/pictures``, which the function of its name shows:
``turns()``. So it is in the notebook's output, wherever that is opened; Colab shows no file that a text names. Drawings
of numbers that a cell has worked out are functions here.
"""

from pathlib import Path

from bench.course.diagrams.data_coverage import coverage_grid
from bench.course.diagrams.device_memory import device_memory
from bench.course.diagrams.disagreement import disagreement
from bench.files import PROJECT

__all__ = ["coverage_grid", "device_memory", "disagreement"]
PICTURES = PROJECT / "tutorials" / "pictures"


class Drawing:
    """A finished drawing, as a notebook shows it."""

    def __init__(self, path: Path):
        self.path = path

    def svg(self) -> str:
        return self.path.read_text(encoding="utf-8")

    _repr_svg_ = svg


def __getattr__(name: str):
    path = PICTURES / f"{name}.svg"
    if not path.is_file():
        raise AttributeError(
            f"no drawing {name}: there are {', '.join(sorted(p.stem for p in PICTURES.glob('*.svg')))}"
        )
    return lambda: Drawing(path)
