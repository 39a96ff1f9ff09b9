"""The unit tests are a developer's inner loop, `make test QUICK=1`, except those of SLOW and those marked slow."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Each takes five seconds of a core or more.
SLOW = ("test_fake_cuda", "test_equal_arms", "test_streams", "test_install", "test_false_answers", "test_storage",
        "test_models", "test_forecast", "test_sequential", "test_checkpoint", "test_schedules")  # fmt: skip


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        left_out = item.path.stem in SLOW or any(map(item.get_closest_marker, ("slow", "wide", "weekly")))
        if HERE in item.path.parents and not left_out:
            item.add_marker(pytest.mark.quick)
