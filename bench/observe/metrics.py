"""What a script says of itself: the figures that each rank would print, and the learning rate."""

from typing import ClassVar

from bench.observe.probe import Probe
from bench.observe.together import columns
from bench.record.observed import rate_of


def reported_of(parts: list[dict]) -> dict:
    """What the ranks would print."""
    return columns(parts) | {"val_images": parts[0].get("val_images")}


class Metrics(Probe):
    """What ``Watch.metric`` was told after each epoch."""

    joins: ClassVar = {"reported": reported_of}
    silent: ClassVar = {"reported": "watch.metric was not called"}

    def __init__(self, watch):
        super().__init__(watch)
        self.reported = {}

    def metric(self, values: dict) -> None:
        for name, value in values.items():
            if name == "val_images":
                self.reported[name] = int(value)
            else:
                self.reported.setdefault(name, []).append(int(value) if name == "images" else float(value))

    def part(self) -> dict:
        return {"reported": self.reported or None}


def watched_rate(parts: list[dict]) -> dict | None:
    """A Watch's learning rate. images: of one optimizer step of one rank."""
    part = parts[0]
    return rate_of(part["used"], part["lr"], sum(part["images"] for part in parts), part["lr_batch"])


class Rates(Probe):
    """The highest learning rate, beside the recipe's."""

    joins: ClassVar = {"learning_rate": watched_rate}
    silent: ClassVar = {"learning_rate": "no recipe: Watch(…, lr=, lr_batch=)"}
    peak = 0.0

    def before_step(self, optimizer) -> None:
        if optimizer is self.watch.optimizer:
            self.peak = max(self.peak, *(float(group["lr"]) for group in optimizer.param_groups))

    def part(self) -> dict:
        recipe, counts = self.watch.recipe, self.watch.counts
        if not recipe or not counts.images:
            return {}
        return {"learning_rate": recipe | {"used": self.peak, "images": counts.images_per_step()}}
