"""This machine: one node, which lives in the launching process."""

from pathlib import Path

from bench.config.options import RunConfig
from bench.launch.node import Node, Placement


def nodes(config: RunConfig, run_dir: Path) -> list[Node]:
    """One node with all ranks."""
    return [Node(Placement(ranks=range(config.num_processes)), run_dir)]
