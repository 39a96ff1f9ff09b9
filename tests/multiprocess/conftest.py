import pytest

from tests.multiprocess import ranks as forked


@pytest.fixture(scope="session")
def ranks():
    """``ranks.run`` and ``ranks.bench``: runs whose ranks are forked, not launched."""
    return forked
