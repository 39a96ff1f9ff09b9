"""What the ranks of `bench emulate` are told. It imports no torch."""

import dataclasses
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.config import tasks
from bench.config.modes import MODES
from bench.predict.step import profile as profiles
from bench.predict.step.profile import Profile

NAME = "emulation.json"  # config.leaves
MODES_EMULATED = tuple(name for name, info in MODES.items()
                       if not (info.one_process or info.baseline) and info.same_update)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """profile: what one device computes. dilate: by how much computation is slowed, and the links too. rate_mbit,
    latency_ms: of the links that are emulated, not of those that carry; None: without a limit."""

    profile: Profile
    dilate: float = 1.0
    rate_mbit: float | None = None
    latency_ms: float = 0.0

    def to_dict(self) -> dict:
        """As JSON takes it."""
        return dataclasses.asdict(self)

    def put(self, path: Path) -> str:
        """Write it, and return what the config of a run carries: a profile is too long for an option's value."""
        path.write_text(json.dumps(self.to_dict()))
        return tasks.text_of("emulate", str(path.resolve()))


def from_dict(values: dict) -> Plan:
    """The opposite of ``Plan.to_dict``.

    >>> profile = Profile("r", "", "", "cpu", "images", 4, 1.0, 2.0, 0.5, 0.5, (1.0,), (), ())
    >>> from_dict(Plan(profile, 4.0).to_dict()) == Plan(profile, 4.0)
    True
    """
    return Plan(**values | {"profile": profiles.from_dict(values["profile"])})


def find(probe: str) -> Plan:
    """The plan of a run, by what its config carries."""
    _, path = tasks.parse(probe)
    return from_dict(json.loads(Path(path).read_text()))


def drawn(factors: tuple[float, ...], seed: int, rank: int) -> Iterator[float]:
    """By how much longer than the median each step of a rank is: one of the profile's timed steps, drawn anew for each.

    >>> draws = [drawn((0.9, 1.0, 1.1), 0, rank) for rank in (0, 0, 1)]
    >>> first, again, other = [[next(draw) for _ in range(8)] for draw in draws]
    >>> first == again, first == other
    (True, False)
    """
    draw = random.Random(f"{seed} {rank}")
    while True:
        yield draw.choice(factors)
