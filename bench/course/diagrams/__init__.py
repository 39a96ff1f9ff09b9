"""Drawings of how the modes work. They show an algorithm and no measurement, and say so where times are drawn.

One file a drawing; each function returns something that a notebook shows: a matplotlib figure or an animated SVG.
"""

from bench.course.diagrams.all_reduce_ways import all_reduce_ways
from bench.course.diagrams.data_coverage import coverage_grid
from bench.course.diagrams.data_parallel_flow import data_parallel_flow
from bench.course.diagrams.ddp_buckets import ddp_buckets
from bench.course.diagrams.ddp_step import ddp_step
from bench.course.diagrams.decision import decision
from bench.course.diagrams.device_memory import device_memory
from bench.course.diagrams.disagreement import disagreement
from bench.course.diagrams.fit_callbacks import fit_callbacks
from bench.course.diagrams.formats import number_formats
from bench.course.diagrams.horovod_fusion import horovod_fusion
from bench.course.diagrams.machines import machines
from bench.course.diagrams.patterns import patterns
from bench.course.diagrams.process_group import process_group
from bench.course.diagrams.ring_all_reduce import ring_all_reduce
from bench.course.diagrams.same_steps import same_steps
from bench.course.diagrams.sharding import sharding
from bench.course.diagrams.turns import turns
from bench.course.diagrams.verdicts import verdicts

__all__ = [
    "all_reduce_ways",
    "coverage_grid",
    "data_parallel_flow",
    "ddp_buckets",
    "ddp_step",
    "decision",
    "device_memory",
    "disagreement",
    "fit_callbacks",
    "horovod_fusion",
    "machines",
    "number_formats",
    "patterns",
    "process_group",
    "ring_all_reduce",
    "same_steps",
    "sharding",
    "turns",
    "verdicts",
]
