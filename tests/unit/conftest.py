"""The unit tests are a developer's inner loop, `make test QUICK=1`, but for the files that mark themselves slow."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items) -> None:
    """Mark them."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.quick)
