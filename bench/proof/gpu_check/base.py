"""What a check is, what it answers, and the table of the parts.

To add a check: a function in the file of its part, with ``@PART.check(seconds, *needs)``. To add a part: its file, with
a ``PART``, and its line in ``PARTS``.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

# In the order in which they run: what proves most comes first, and on one GPU all of them take half an hour at most.
PARTS = {name: f"bench.proof.gpu_check.{name.lower()}_{what}" for name, what in {
    "A1": "truth", "B1": "shared", "A2": "single", "A4": "sharded", "A3": "training",
    "B2": "repeats"}.items()}  # fmt: skip
LONGEST_S, WHOLE_S = 600, 1800  # of a part, and of all of them on one GPU, by their checks' estimates
PROVEN, FAILED, NOT_EXERCISED = "proven", "failed", "not exercised"


@dataclass(frozen=True)
class Answer:
    """What a check found. ok: whether it is so. figures: name -> number or word, what the answer rests on."""

    ok: bool
    figures: dict = field(default_factory=dict)


class NotExercised(Exception):
    """Raised by a check that cannot ask its question here, with the reason."""


@dataclass(frozen=True)
class Check:
    """One question that only a GPU can answer.

    name: within its part. question: in one sentence. run: (ground) -> Answer. seconds: what it should take at most on a
    recent GPU; it is not begun with less time left, and ended as hung after ``limit_s``. needs: keys of
    bench/proof/gpu_check/needs.py, in words that follow "needs".
    """

    part: str
    name: str
    question: str
    run: Callable
    seconds: float
    needs: tuple[str, ...] = ()

    @property
    def limit_s(self) -> float:
        """When it is ended: an older GPU takes longer than a recent one."""
        return 60 + 3 * self.seconds


class Part:
    """The checks of one part, in the order in which they are made."""

    def __init__(self, name: str, title: str):
        self.name, self.title, self.checks = name, title, []

    def check(self, seconds: float, *needs: str):
        """A decorator: the function is a check; its name is the check's, its docstring's first line the question."""

        def add(function):
            self.add(function.__name__.replace("_", "-"), function.__doc__.splitlines()[0], function, seconds, *needs)
            return function

        return add

    def add(self, name: str, question: str, run: Callable, seconds: float, *needs: str) -> None:
        """A check that is made in a loop."""
        self.checks.append(Check(self.name, name, question, run, seconds, needs))

    def seconds_on(self, num_gpus: int) -> float:
        """What it should take on so many GPUs: a check that needs more is not made."""
        from bench.proof.gpu_check.needs import TWO_GPUS  # `bench help` reads the table of the parts

        return sum(check.seconds for check in self.checks if num_gpus > 1 or TWO_GPUS not in check.needs)


def part_in(module: str) -> Part:
    """The part in a module, as in "bench.proof.gpu_check.a1_truth"."""
    return importlib.import_module(module).PART
