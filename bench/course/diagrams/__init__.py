"""Drawings of how the modes work. They show an algorithm and no measurement, and say so where times are drawn.

One file a drawing; each function returns something that a notebook shows: a matplotlib figure or an animated SVG.
"""

from bench.course.diagrams.same_steps import same_steps
from bench.course.diagrams.turns import turns
from bench.course.diagrams.verdicts import verdicts

__all__ = ["same_steps", "turns", "verdicts"]
