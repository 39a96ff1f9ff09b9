"""What the ranks of `bench predict-images` are told, and the table that rank 0 leaves. It imports no torch."""

import dataclasses
from dataclasses import dataclass

from bench.config import tasks

NAME = "predictions.csv"  # config.leaves
MOST = 5  # classes of an image that are named
DIGITS = 5  # of a probability: sums in another order differ beyond


@dataclass(frozen=True)
class Plan:
    """folder: of images, searched whole. checkpoint: whose weights classify. data: what it was trained on, as in DATA.
    classes: their names, or none known. num_classes: how many it tells apart."""

    folder: str
    checkpoint: str
    data: str
    num_classes: int
    classes: tuple[str, ...] = ()

    def text(self) -> str:
        """As the config of a run carries it."""
        return tasks.text_of("predict", dataclasses.asdict(self))


def read_plan(text: str) -> Plan:
    """The opposite of ``Plan.text``.

    >>> read_plan(Plan("a", "b.pt", "cifar10", 2, ("x", "y")).text())
    Plan(folder='a', checkpoint='b.pt', data='cifar10', num_classes=2, classes=('x', 'y'))
    """
    _, values = tasks.parse(text)
    return Plan(**values | {"classes": tuple(values["classes"])})


def head(num_classes: int) -> list[str]:
    """The columns of the table.

    >>> head(2)
    ['name', 'class', 'probability', 'class_2', 'probability_2', 'error']
    """
    columns = ["name", "class", "probability"]
    for place in range(2, min(MOST, num_classes) + 1):
        columns += [f"class_{place}", f"probability_{place}"]
    return [*columns, "error"]
