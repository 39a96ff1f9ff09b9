"""Checks, answers, and the table of the parts. To add a check: a function in its part's file, with
``@PART.check(seconds, *needs)``. To add a part: a file with a ``PART``, and a line in ``PARTS``."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

# In the order in which they run: the most important first.
PARTS = {name: f"bench.proof.gpu_check.{name.lower()}_{what}" for name, what in {
    "A1": "truth", "B1": "shared", "A2": "single", "A4": "sharded", "A3": "training",
    "B2": "repeats"}.items()}  # fmt: skip
LONGEST_S, WHOLE_S = 600, 1800  # of a part; of all on one GPU, by the checks' estimates
PROVEN, FAILED, NOT_EXERCISED = "proven", "failed", "not exercised"


@dataclass(frozen=True)
class Answer:
    ok: bool
    figures: dict = field(default_factory=dict)


class NotExercised(Exception):
    pass


@dataclass(frozen=True)
class Check:
    """question: one sentence. run: (ground) -> Answer. seconds: the most it takes on a recent GPU; with less time left
    it is not started, and after ``limit_s`` it counts as hung. needs: keys of ground.NEEDS."""

    part: str
    name: str
    question: str
    run: Callable
    seconds: float
    needs: tuple[str, ...] = ()

    @property
    def limit_s(self) -> float:
        return 60 + 3 * self.seconds  # an older GPU takes longer


class Part:
    def __init__(self, name: str, title: str):
        self.name, self.title, self.checks = name, title, []

    def check(self, seconds: float, *needs: str):
        """A decorator for a check, with the function's name; the question is the docstring's first line."""

        def add(function):
            self.add(function.__name__.replace("_", "-"), function.__doc__.splitlines()[0], function, seconds, *needs)
            return function

        return add

    def add(self, name: str, question: str, run: Callable, seconds: float, *needs: str) -> None:
        self.checks.append(Check(self.name, name, question, run, seconds, needs))

    def seconds_on(self, num_gpus: int) -> float:
        from bench.proof.gpu_check.ground import TWO_GPUS  # not at the top: `bench help` reads PARTS

        return sum(check.seconds for check in self.checks if num_gpus > 1 or TWO_GPUS not in check.needs)


def part_in(module: str) -> Part:
    return importlib.import_module(module).PART
