"""Drawings of how the modes work. They show an algorithm and no measurement, and say so where times are drawn.

One file a drawing; each function returns something that a notebook shows: a matplotlib figure or an animated SVG.
"""

from bench.course.diagrams.ddp_buckets import ddp_buckets
from bench.course.diagrams.horovod_fusion import horovod_fusion

__all__ = ["ddp_buckets", "horovod_fusion"]
