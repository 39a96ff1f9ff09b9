"""The table of workloads: what must be known of one before any process starts, and what reports say of its numbers.

To add a workload: write its file or folder in bench/workload, with a class ``Workload``, and add its line here.
"""

import dataclasses
from dataclasses import dataclass

from bench.config import data_sets


@dataclass(frozen=True)
class Metric:
    """A number of a validation. key: in a record's epochs, a share of 0..1. label: in tables and pictures. better: the
    direction in which it improves."""

    key: str
    label: str
    better: str = "up"


@dataclass(frozen=True)
class WorkloadInfo:
    """One line of the table. unit: what throughput counts, one and several. metrics: the first is the one that studies
    of accuracy compare."""

    name: str
    unit: str
    units: str
    metrics: tuple[Metric, ...]

    def to_dict(self) -> dict:
        """The record's ``workload`` field."""
        found = dataclasses.asdict(self)
        return found | {"metrics": list(found["metrics"])}


WORKLOADS = {
    "images": WorkloadInfo("images", "image", "images", (Metric("top1", "top-1"), Metric("top5", "top-5"))),
}


def workload_of(config) -> WorkloadInfo:
    """The workload of a config: that of its data set."""
    return WORKLOADS[data_sets.info_of(config.data).workload]
