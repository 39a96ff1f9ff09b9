"""The unit tests are a developer's inner loop, `make test QUICK=1`, but for the files that start many processes."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = {"test_extensions.py", "test_trackers.py", "test_memory.py", "test_page.py", "test_launch_commands.py"}


def pytest_collection_modifyitems(items) -> None:
    """Mark them."""
    for item in items:
        if HERE in item.path.parents and item.path.name not in SLOW:
            item.add_marker(pytest.mark.quick)
