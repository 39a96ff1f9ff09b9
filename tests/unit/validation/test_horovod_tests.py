"""Horovod's own tests: real ranks under horovodrun, with a made-up folder of tests."""

from pathlib import Path

import pytest

from bench.errors import BenchError
from tests.runs import needs_horovod
from tests.validation.horovod_tests import __main__ as horovod_tests
from tests.validation.horovod_tests import launch

pytestmark = pytest.mark.slow

TESTS = """
import os, unittest
import mock

class TorchTests(unittest.TestCase):
    def test_ranks(self):
        assert os.environ["HOROVOD_SIZE"] == "2" and mock.patch

    def test_broadcast_state(self):
        assert False, "left out"

    def test_broadcast_state_of_another_name(self):
        self.skipTest("not left out")

    def test_last(self):
        if os.environ["HOROVOD_RANK"] == "{aborted}":
            os.abort()

    def test_second(self):
        assert os.environ["HOROVOD_RANK"] != "{bad}"
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with tests where Horovod's repository has them; the test of one rank fails."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOROVOD_SIZE", "7")  # left over from something else

    def make(bad: str = "none", aborted: str = "none") -> str:
        path = tmp_path / horovod_tests.TESTS
        path.parent.mkdir(parents=True)
        path.write_text(TESTS.format(bad=bad, aborted=aborted))
        return str(tmp_path)

    return make


@needs_horovod
def test_what_passes_and_what_is_left_out_is_said(clone, capfd):
    horovod_tests.self_test(clone(), 200)
    said = capfd.readouterr().out
    assert all(f"rank {rank}: 3 passed, 1 skipped, 0 failed" in said for rank in (0, 1))
    assert all(f"left out: {name}: {why}" in said for name, why in horovod_tests.LEFT_OUT.items())


@needs_horovod
def test_a_test_that_fails_on_one_rank_is_named(clone):
    with pytest.raises(BenchError, match="fail here: test_second; log: ") as caught:
        horovod_tests.self_test(clone(bad="1"), 200)
    assert "HOROVOD_RANK" in Path(str(caught.value).rpartition("log: ")[2]).read_text()


@needs_horovod
def test_a_rank_that_is_aborted_is_found_by_its_test(clone):
    with pytest.raises(BenchError, match="fail here: test_last; log: "):
        horovod_tests.self_test(clone(aborted="1"), 200)


def test_lists_of_the_rendezvous_that_are_not_whole_are_kept():
    """Horovod empties all of them as soon as one is whole."""
    lists = launch.Lists({"local": 2, "cross": 1})
    lists["local"].append(0)
    lists["cross"].append(0)
    lists.clear()
    assert lists == {"local": [0]}
    lists["local"].append(1)
    lists.clear()
    assert lists == {}


def test_a_folder_without_the_tests_is_one_line(tmp_path, capsys):
    assert horovod_tests.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "name a clone of Horovod's repository" in error and error.count("\n") == 1


def test_the_time_is_limited(clone, monkeypatch):
    monkeypatch.setattr(horovod_tests, "command", lambda tests: ["sleep", "60"])
    with pytest.raises(BenchError, match=r"did not end within 1 s"):
        horovod_tests.self_test(clone(), 1)
