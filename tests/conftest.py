"""What all tests share: the made-up NVML driver, and one real record."""

import pytest

from tests import runs

pytest_plugins = ["tests.stubs.nvml"]


@pytest.fixture(scope="session")
def real_run(tmp_path_factory):
    """One small run of a single process that ended well, for tests that read what a run leaves behind."""
    result = runs.run(tmp_path_factory.mktemp("real"), mode="single", steps=3)
    assert result.code == 0, result.stderr
    return result
