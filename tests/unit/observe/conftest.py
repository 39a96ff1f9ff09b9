"""A Watch of a test observes nothing of the next one, and prints nothing when the interpreter ends."""

import contextlib

import pytest

from bench.observe.watch import exits


@pytest.fixture(autouse=True)
def watches_end():
    """Those that are not reported are taken down."""
    before = list(exits)
    yield
    for watch in [each for each in exits if each not in before]:
        exits.remove(watch)
        with contextlib.suppress(Exception):
            watch.part()
