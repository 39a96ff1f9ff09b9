"""Which messages `bench network` sends, how often, and within how much time."""

import dataclasses
import re
from dataclasses import dataclass

from bench.config import tasks
from bench.errors import UserError

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
ELEMENT = 4  # bytes of a float32
SMALLEST, LARGEST = ELEMENT, 8 * 2**30
SIZES = "4KiB-256MiB"
STEP = 4  # from one size of a range to the next
MOST_SIZES, MOST_ROUNDS = 40, 1000


@dataclass(frozen=True)
class Plan:
    """What the ranks are told. sizes: bytes of a message, the smallest first. rounds: how often each is timed.
    budget_s: seconds for all; larger sizes are left out where they do not fit. backend: by what they are sent."""

    sizes: tuple[int, ...]
    rounds: int
    budget_s: float
    backend: str = "gloo"

    def text(self) -> str:
        """As the config of a run carries it."""
        return tasks.text_of("network", dataclasses.asdict(self))


def read_plan(text: str) -> Plan:
    """The opposite of ``Plan.text``.

    >>> read_plan(Plan((4096, 16384), 3, 60.0).text())
    Plan(sizes=(4096, 16384), rounds=3, budget_s=60.0, backend='gloo')
    """
    _, values = tasks.parse(text)
    return Plan(**values | {"sizes": tuple(values["sizes"])})


def parse_sizes(text: str) -> tuple[int, ...]:
    """The sizes that SIZES names, in bytes, the smallest first: a range, in steps of 4 times, or a list.

    Raises UserError for what is no size, or not a whole number of float32.

    >>> parse_sizes("4KiB-100KiB"), parse_sizes("1MiB,4,2KiB")
    ((4096, 16384, 65536, 102400), (4, 2048, 1048576))
    """
    if "-" in text and "," not in text:
        low, high = map(parse_size, text.split("-", 1))
        if low > high:
            raise UserError(f"SIZES={text}: the first size is the larger one: write {SIZES}")
        sizes = {high}
        while low < high:
            sizes.add(low)
            low *= STEP
    else:
        sizes = set(map(parse_size, text.split(",")))
    if len(sizes) > MOST_SIZES:
        raise UserError(f"SIZES={text}: at most {MOST_SIZES} sizes")
    return tuple(sorted(sizes))


def parse_size(text: str) -> int:
    """One size in bytes. Raises UserError."""
    found = re.fullmatch(r"\s*(\d{1,15}) ?([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in UNITS:
        raise UserError(f"SIZES: {text!r} is no size: write bytes, or a whole number with KiB, MiB or GiB, as in 4KiB")
    size = int(found[1]) * UNITS[found[2].upper()]
    if not SMALLEST <= size <= LARGEST or size % ELEMENT:
        raise UserError(
            f"SIZES: {text.strip()} is {size} bytes: a multiple of {ELEMENT} (float32) from {in_bytes(SMALLEST)} to "
            f"{in_bytes(LARGEST)}"
        )
    return size


def in_bytes(size: int) -> str:
    """A size as a person writes it.

    >>> in_bytes(4096), in_bytes(256 * 2**20), in_bytes(4100), in_bytes(12)
    ('4 KiB', '256 MiB', '4100 B', '12 B')
    """
    for unit, word in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {word}"
    return f"{size} B"


def as_flag(sizes: tuple[int, ...]) -> str:
    """The sizes as SIZES takes them: a range where they are one.

    >>> as_flag((4096, 16384, 65536)), as_flag((4096, 65536))
    ('4KiB-64KiB', '4KiB,64KiB')
    """
    words = [in_bytes(size).replace(" ", "") for size in sizes]
    whole = f"{words[0]}-{words[-1]}"
    return whole if len(sizes) > 2 and parse_sizes(whole) == tuple(sizes) else ",".join(words)
