"""The measures of a demo: one number of a run each, read from its record and from its observations."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    name: with its unit; {metric}, {points} and {units} are replaced by the workload's words. read: (record, observed)
    -> number, None if unknown. moves: "up" or "down", the expected effect of the mistake; "" if none was predicted.
    form: as for format(). ratio: two values are compared by their ratio instead of their difference.
    """

    name: str
    read: Callable
    moves: str = ""
    form: str = ".2f"
    ratio: bool = False

    def of(self, workload) -> "Measure":
        """The same measure in the words of a ``WorkloadInfo``; more digits for a metric that is not a percentage."""
        first = workload.metrics[0]
        name = self.name.format(metric=first.name, points=first.points, units=workload.units)
        fine = not first.percent and ("{metric}" in self.name or "{points}" in self.name)
        return dataclasses.replace(self, name=name, form=".4f" if fine else self.form)

    def expected(self, moves: str) -> "Measure":
        return dataclasses.replace(self, moves=moves)


def of_observed(*path: str, scale: float = 1) -> Callable:
    """A reader of a nested key of ``observed``, times ``scale``."""

    def read(record, observed) -> float | None:
        value = part_of(observed, path)
        return None if value is None else scale * value

    return read


def part_of(observed: dict, path: Sequence[str]):
    """A part of a part; None if it was not observed."""
    for key in path:
        observed = (observed or {}).get(key)
    return observed


def of_epoch(key: str, number: int) -> Callable:
    """A reader of one number of an epoch; number: 0 the first, -1 the last."""
    return lambda record, observed: record.epochs[number].get(key) if record.epochs else None


def metric(record, observed) -> float | None:
    return None if record.top1 is None else record.workload.metrics[0].displayed(record.top1)


def ranks_metric(record, observed: dict) -> list[float]:
    first = record.workload.metrics[0]
    return [first.displayed(epochs[-1]) for epochs in observed.get("reported", {}).get(first.key, []) if epochs]


METRIC = Measure("{metric}, last epoch", metric)
LOSS = Measure("training loss, last epoch", of_epoch("train_loss", -1), form=".3f")
SPEED = Measure("{units}/s", lambda record, observed: record.throughput, form=".1f", ratio=True)
