"""The plan of `bench predict-images`, and the columns of its table. It imports no torch."""

import dataclasses
from dataclasses import dataclass

from bench.config import tasks

NAME = "predictions.csv"  # config.leaves
MOST = 5  # classes per image
DIGITS = 5  # of a probability; the order of sums changes later ones


@dataclass(frozen=True)
class Plan:
    """folder: of images, with all below it. data: of the checkpoint's training, as in DATA. classes: their names, or
    none where they are unknown."""

    folder: str
    checkpoint: str
    data: str
    num_classes: int
    classes: tuple[str, ...] = ()

    def text(self) -> str:
        return tasks.text_of("predict", dataclasses.asdict(self))


def read_plan(text: str) -> Plan:
    _, values = tasks.parse(text)
    return Plan(**values | {"classes": tuple(values["classes"])})


def head(num_classes: int) -> list[str]:
    columns = ["name", "class", "probability"]
    for place in range(2, min(MOST, num_classes) + 1):
        columns += [f"class_{place}", f"probability_{place}"]
    return [*columns, "error"]
