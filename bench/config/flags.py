"""Parsers for the values of a command's own flags: "read" in a flag's options (bench/cli/base.py). Each gets the
variable's name and the text, and raises UserError for an invalid text."""

import math
from collections.abc import Callable, Container

from bench.config.command_line import ON_OFF
from bench.config.fields import variable_of
from bench.config.options import FIELDS, RunConfig
from bench.errors import UserError


def refuse_others(asked: RunConfig, takes: Container[str], why: str) -> None:
    for f in FIELDS.values():
        if f.name not in takes and getattr(asked, f.name) != f.default:
            raise UserError(f"{variable_of(f)} {why}: leave it out")


def whole_number(at_least: int, at_most: int = 10**15) -> Callable[[str, str], int]:
    return lambda name, text: parse_integer(name, text, at_least, at_most)


def number(
    what: str = "a number above 0", fits: Callable[[float], bool] = lambda value: 0 < value < math.inf
) -> Callable[[str, str], float]:
    def read(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise UserError(f"{name}={text}: {what}")
        return value

    return read


def rounds(name: str, text: str) -> int | str:
    return text if text == "auto" else parse_integer(name, text, at_least=1)


def parse_integer(name: str, text: str, at_least: int, at_most: int = 10**15) -> int:
    number = int(text[:20]) if text.isdecimal() else -1
    if not at_least <= number <= at_most:
        limit = f" and at most {at_most}" if number > at_most else ""
        raise UserError(f"{name}={text}: write a whole number, at least {at_least}{limit}")
    return number


def is_on(name: str, text: str | None) -> bool:
    if text not in (None, "0", "1"):
        raise UserError(f"{name}={text}: write 1 or 0")
    return text == "1"


SWITCH = ON_OFF | {"read": is_on}
