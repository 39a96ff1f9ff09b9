"""What a lab measures: one number of a run, read from its record and from what was observed of it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One number of a run. name: with its unit. read: (record, observed) -> number, None where it is not known.
    moves: "up" or "down", what the mistake is expected to do to it; "" where nothing was said in advance. form: as for
    format(). ratio: two of them are compared by their ratio, and not by their difference."""

    name: str
    read: Callable
    moves: str = ""
    form: str = ".2f"
    ratio: bool = False

    def expected(self, moves: str) -> "Measure":
        """The same measure with an expected direction."""
        return dataclasses.replace(self, moves=moves)


def of_observed(*path: str, scale: float = 1) -> Callable:
    """A reader of what was observed, one key below the other, times ``scale``."""

    def read(record, observed) -> float | None:
        value = observed
        for key in path:
            value = (value or {}).get(key)
        return None if value is None else scale * value

    return read


def of_epoch(key: str, number: int) -> Callable:
    """A reader of one number of an epoch; number: 0 the first, -1 the last."""
    return lambda record, observed: record.epochs[number].get(key) if record.epochs else None


def top1(record, observed) -> float | None:
    """Per cent, after the last epoch, as rank 0 reports it."""
    return None if record.top1 is None else 100 * record.top1


def ranks_top1(observed: dict) -> list[float]:
    """Per cent, after the last epoch, as each rank reports it."""
    return [100 * epochs[-1] for epochs in observed.get("reported", {}).get("top1", []) if epochs]


TOP1 = Measure("top-1 %, last epoch", top1)
LOSS = Measure("training loss, last epoch", of_epoch("train_loss", -1), form=".3f")
SPEED = Measure("images/s", lambda record, observed: record.throughput, form=".1f", ratio=True)
