"""``bench verify`` proves what it says, and would notice if it were not so."""

import re
from unittest import mock

import numpy as np
import pytest

from bench.commands import verify
from tests.runs import needs_horovod


@pytest.fixture(scope="module")
def verified(ranks):
    """One verification on the smallest workload, of fewer steps than a person's."""
    with mock.patch.object(verify, "STEPS", (1, 4)):
        return ranks.bench("verify", "--device=cpu", "--image-size=8", "--batch=4")


@needs_horovod
def test_all_modes_agree(verified):
    assert verified.code == 0, verified.stdout + verified.stderr
    (last,) = verified.stdout.strip().splitlines()[-1:]
    found = re.fullmatch(r"verify: ok: largest difference (\S+), bound 1e-05", last)
    assert found and 0 < float(found[1]) <= verify.BOUND


@needs_horovod
def test_every_pair_is_shown(verified):
    for mode in ("dp", "ddp", "horovod"):
        rows = [line for line in verified.stdout.splitlines() if line.strip().startswith(f"single – {mode} ")]
        assert len(rows) == 2, verified.stdout  # without batch norm, and with it
        assert rows[0].split().count("yes") == 3


@needs_horovod
def test_what_batch_norm_does_is_as_the_text_says(verified):
    """dp has one set of statistics; ddp's ranks differ by one step; horovod's drift apart."""
    between = {
        mode: float(number) for mode, number in re.findall(r"^  (\w+): between ranks (\S+),", verified.stdout, re.M)
    }
    assert between["dp"] == 0 < between["ddp"]
    assert between["ddp"] < between["horovod"]


def test_weights_that_are_no_numbers_never_agree():
    """nan compares as false with everything, and a maximum passes over it."""
    broken = {"w": np.array([np.nan, 1.0])}

    class Snapshot(dict):
        files = ("w",)

    difference = verify.largest(Snapshot(broken), Snapshot(broken))
    assert not max(0.0, difference) <= verify.BOUND
