"""What the tests that make up hostile input share: how much is tried, and changes of any JSON. The suite tries the same
examples each time; HYPOTHESIS_PROFILE=wide tries many, and others each time."""

import contextlib
import copy
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile("suite", max_examples=40, derandomize=True, **COMMON)
settings.register_profile("wide", max_examples=5000, **COMMON)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "suite")
settings.load_profile(PROFILE)
MARKS = [] if PROFILE == "suite" else [pytest.mark.timeout(0)]  # what tries thousands has as long as it takes

ODD = [None, True, False, 0, -1, 1, 0.5, 5e-324, 1e30, -1e30, 1e99, 1e308, -1e308, 2**53, 2**64, 10**400, "", "a",
       "x" * 300_000, "1e5", "[red]", "$x^$", "<b>", "a/../b", "\ud800", "\x1b[31m\n", "٣", "²", [], [[]], [None], {},
       {"": {}}]  # fmt: skip
KINDS = ("put", "drop", "add", "scale", "twice", "all")


def fewer(by: int) -> settings:
    """For what takes long: a part of the examples."""
    return settings(max_examples=settings.default.max_examples // by)


def places(value, path=()):
    """Every place in a JSON value, as the keys on the way to it."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


@st.composite
def changes_of(draw, value: dict) -> list[tuple]:
    """A few changes of a JSON object: where, of which kind, with what. First a part, then a place in it: otherwise most
    would be in its longest list."""
    changes = []
    for _ in range(draw(st.integers(1, 3))):
        head = draw(st.sampled_from(sorted(value)))
        place = draw(st.sampled_from(list(places(value[head], (head,)))))
        changes.append((place, draw(st.sampled_from(KINDS)), draw(st.sampled_from(ODD))))
    return changes


def changed(value: dict, changes: list[tuple]) -> dict:
    value = copy.deepcopy(value)
    for place, kind, odd in changes:
        with contextlib.suppress(KeyError, IndexError, TypeError, OverflowError):
            change(value, place, kind, odd)
    return value


def change(value, place: tuple, kind: str, odd) -> None:
    *way, last = place
    odd = copy.deepcopy(odd)  # a later change must not reach the list of them
    for key in way:
        value = value[key]
    old = value[last]
    if kind == "put":
        value[last] = odd
    elif kind == "drop":
        del value[last]
    elif kind == "add" and isinstance(old, dict):
        old["more"] = odd
    elif kind == "add" and isinstance(old, list):
        old.append(odd)
    elif kind == "scale" and isinstance(old, int | float):
        value[last] = old * 1e150
    elif kind == "scale" and isinstance(old, str) and len(old) < 10**6:  # three times in a row, a text is too long
        value[last] = old * 1000
    elif kind == "twice" and isinstance(old, list):
        old += copy.deepcopy(old)
    elif kind == "all" and isinstance(old, list):
        value[last] = [odd] * len(old)
    elif kind == "all" and isinstance(old, dict):
        value[last] = dict.fromkeys(old, odd)
