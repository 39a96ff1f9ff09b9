"""What the tests with real processes share."""

import pytest

from tests.multiprocess.several_runs import Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The processes that take the runs of a file's tests (several_runs.py)."""
    found = Ranks(tmp_path_factory.mktemp("ranks"))
    yield found
    found.close()
