"""Drawings of how the modes work. They show an algorithm and no measurement, and say so where times are drawn.

One file a drawing; each function returns something that a notebook shows: a matplotlib figure or an animated SVG.
"""

from bench.course.diagrams.coverage import coverage_grid
from bench.course.diagrams.formats import number_formats

__all__ = ["coverage_grid", "number_formats"]
