"""A Watch of a test hears nothing of the next one."""

import contextlib

import pytest

from tests.unit.observe.test_view import silenced


@pytest.fixture(autouse=True)
def watches_end():
    """Those that are not reported are taken down."""
    yield
    while silenced:
        with contextlib.suppress(Exception):
            silenced.pop().part()
