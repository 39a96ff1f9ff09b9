"""What the tests with real processes share."""

import pytest

from tests.multiprocess.several_runs import Ranks


@pytest.fixture(scope="package")
def ranks(tmp_path_factory, forked_programs):
    """The processes that take the runs of all tests in this folder (several_runs.py)."""
    found = Ranks(tmp_path_factory.mktemp("ranks"))
    yield found
    found.close()
