"""The table of workloads: facts that are needed before any process starts, and units for reports. To add one: its file
or folder in bench/workload, with a class ``Workload``, and its line here."""

import dataclasses
from dataclasses import dataclass

from bench.config import data_sets


@dataclass(frozen=True)
class Metric:
    key: str  # in a record's epochs
    label: str  # in tables and pictures
    better: str = "up"  # or "down"
    percent: bool = True  # a share of 0..1, shown in per cent; otherwise shown as it is
    margin: float = 1.0  # equivalence margin for two means, in the unit shown; fixed before any runs

    def displayed(self, value: float) -> float:
        return 100 * value if self.percent else value

    def words(self, value: float) -> str:
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4f} {self.label}"

    @property
    def name(self) -> str:
        return f"{self.label} %" if self.percent else self.label

    @property
    def heading(self) -> str:
        return self.label[:1].upper() + self.label[1:]

    @property
    def points(self) -> str:
        return f"percentage points of {self.label}" if self.percent else self.label

    def best(self, values) -> float | None:
        known = [value for value in values if value is not None]
        return (max if self.better == "up" else min)(known, default=None)

    def improves(self, value: float, best: float | None) -> bool:
        return best is None or (value > best if self.better == "up" else value < best)

    def reached(self, value: float | None, target: float) -> bool:
        return value is not None and (value >= target if self.better == "up" else value <= target)


@dataclass(frozen=True)
class WorkloadInfo:
    name: str
    unit: str  # what throughput counts
    units: str  # in the plural
    metrics: tuple[Metric, ...]  # studies of accuracy compare the first
    examples: str = ""  # unit of a batch, if different
    per_example: int = 1  # units in one of them

    @property
    def batched(self) -> str:
        return self.examples or self.units

    def to_dict(self) -> dict:
        found = dataclasses.asdict(self)
        return found | {"metrics": list(found["metrics"])}


WORKLOADS = {
    "images": WorkloadInfo("images", "image", "images", (Metric("top1", "top-1"), Metric("top5", "top-5"))),
    "text": WorkloadInfo("text", "token", "tokens", (Metric("bits_per_byte", "bits per byte", "down", False, 0.05),),
                         examples="sequences"),
    "own": WorkloadInfo("own", "example", "examples", (Metric("score", "score", percent=False, margin=0.01),)),
}  # fmt: skip


def workload_of(config) -> WorkloadInfo:
    return dataclasses.replace(WORKLOADS[data_sets.info_of(config.data).workload], per_example=config.context or 1)


def work(config, data: str | None = None) -> str:
    """Model and data in words: ``resnet18, digits at 16 px``. data: replaces DATA, which may be private."""
    sizes = f" of {config.layers} layers, width {config.width}, {config.heads} heads" if config.layers else ""
    size = f" at {config.image_size} px" if config.image_size else ""
    size = f" in sequences of {config.context} bytes" if config.context else size
    return f"{config.model}{sizes}, {data or config.data}{size}"
