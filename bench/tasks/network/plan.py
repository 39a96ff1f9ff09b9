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
    """The plan that each rank gets. sizes: bytes of a message, in rising order. rounds: times each size is timed.
    budget_s: seconds for everything; sizes that do not fit are left out."""

    sizes: tuple[int, ...]
    rounds: int
    budget_s: float
    backend: str = "gloo"

    def text(self) -> str:
        return tasks.text_of("network", dataclasses.asdict(self))


def read_plan(text: str) -> Plan:
    _, values = tasks.parse(text)
    return Plan(**values | {"sizes": tuple(values["sizes"])})


def parse_sizes(text: str) -> tuple[int, ...]:
    """The sizes in SIZES, in bytes and rising order: a range in steps of a factor of 4, or a list. Raises UserError."""
    if "-" in text and "," not in text:
        low, high = map(parse_size, text.split("-", 1))
        if low > high:
            raise UserError(f"SIZES={text}: the first size must be the smaller one: write {SIZES}")
        sizes = {high}
        while low < high:
            sizes.add(low)
            low *= STEP
    else:
        sizes = set(map(parse_size, text.split(",")))
    if len(sizes) > MOST_SIZES:
        raise UserError(f"SIZES={text} has {len(sizes)} sizes: give at most {MOST_SIZES}")
    return tuple(sorted(sizes))


def parse_size(text: str) -> int:
    found = re.fullmatch(r"\s*(\d{1,15}) ?([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in UNITS:
        raise UserError(
            f"SIZES: {text!r} is not a size: write bytes, or a whole number with KiB, MiB or GiB, as in 4KiB"
        )
    size = int(found[1]) * UNITS[found[2].upper()]
    if not SMALLEST <= size <= LARGEST or size % ELEMENT:
        raise UserError(
            f"SIZES: {text.strip()} is {size} bytes: write a multiple of {ELEMENT} (float32) from "
            f"{in_bytes(SMALLEST)} to {in_bytes(LARGEST)}"
        )
    return size


def in_bytes(size: int) -> str:
    for unit, word in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {word}"
    return f"{size} B"


def as_flag(sizes: tuple[int, ...]) -> str:
    words = [in_bytes(size).replace(" ", "") for size in sizes]
    whole = f"{words[0]}-{words[-1]}"
    return whole if len(sizes) > 2 and parse_sizes(whole) == tuple(sizes) else ",".join(words)
