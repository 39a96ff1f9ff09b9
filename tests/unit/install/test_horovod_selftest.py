"""`bench install-horovod --self-test`: real ranks under horovodrun, with a made-up folder of tests."""

from pathlib import Path

import pytest

from bench.errors import BenchError, UserError
from bench.install import horovod_selftest
from tests.runs import needs_horovod

pytestmark = pytest.mark.slow

TESTS = """
import os, unittest
import mock

class TorchTests(unittest.TestCase):
    def test_ranks(self):
        assert os.environ["HOROVOD_SIZE"] == "2" and mock.patch

    def test_broadcast_state(self):
        assert False, "left out"

    def test_second(self):
        assert os.environ["HOROVOD_RANK"] != "{bad}"
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with tests where Horovod's repository has them; the test of one rank fails."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOROVOD_SIZE", "7")  # left over from something else

    def make(bad: str) -> str:
        path = tmp_path / horovod_selftest.TESTS
        path.parent.mkdir(parents=True)
        path.write_text(TESTS.replace("{bad}", bad))
        return str(tmp_path)

    return make


@needs_horovod
def test_what_passes_and_what_is_left_out_is_said(clone, capfd):
    horovod_selftest.self_test(clone(bad="none"), 200)
    said = capfd.readouterr().out
    assert said.count("2 passed, 1 deselected") == 2 and "rank 0: " in said and "rank 1: " in said
    assert all(f"left out: {name}: {why}" in said for name, why in horovod_selftest.LEFT_OUT.items())


@needs_horovod
def test_a_test_that_fails_on_one_rank_is_named(clone):
    with pytest.raises(BenchError, match="fail here: test_second; log: ") as caught:
        horovod_selftest.self_test(clone(bad="1"), 200)
    assert "HOROVOD_RANK" in Path(str(caught.value).rpartition("log: ")[2]).read_text()


def test_a_folder_without_the_tests_is_one_line(tmp_path):
    with pytest.raises(UserError, match="name a clone of Horovod's repository"):
        horovod_selftest.self_test(str(tmp_path), 10)


def test_the_time_is_limited(clone, monkeypatch):
    monkeypatch.setattr(horovod_selftest, "command", lambda tests, work: ["sleep", "60"])
    with pytest.raises(BenchError, match=r"did not end within 1 s \(TIMEOUT\)"):
        horovod_selftest.self_test(clone(bad="none"), 1)
