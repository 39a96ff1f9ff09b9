"""Drawings of how the modes work. They show an algorithm and no measurement, and say so where times are drawn.

One file a drawing; each function returns something that a notebook shows: a matplotlib figure or an animated SVG.
"""

from bench.course.diagrams.decision import decision
from bench.course.diagrams.machines import machines

__all__ = ["decision", "machines"]
