"""Made-up input: the profile that tries thousands has as long as it takes."""

import pytest

from tests.fuzz import PROFILE

HERE = __file__.rpartition("/")[0]


def pytest_collection_modifyitems(items) -> None:
    """No limit of time where the profile is not the suite's."""
    for item in items:
        if PROFILE != "suite" and str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.timeout(0))
