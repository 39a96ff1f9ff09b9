"""Checkpoints that a disk or a hand has changed: what is read is what was written, or nothing is."""

import functools
import io
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bench.errors import UserError
from bench.training import checkpoint
from tests.fuzz import MARKS
from tests.unit.training.test_checkpoint import full_state

pytestmark = [pytest.mark.slow, *MARKS]
NAN = float("nan")
ODD = [None, True, -1, 0.5, 2**70, NAN, "a", [], [None], {}, {"": None}, torch.ones(2), [{}]]
FINE = {"scaler": [None, {}, {"": None}], "guard": [None, -1, 0.5, 2**70], "loss_sum": [-1, 0.5, 2**70, NAN],
        "elapsed_s": [-1, 0.5, 2**70], "accuracy": [[]], "model": [{}], "optimizer": [{}, {"": None}]}  # fmt: skip


@functools.cache
def written() -> tuple[dict, bytes]:
    torch.manual_seed(0)
    state, file = full_state(), io.BytesIO()
    torch.save(state, file)
    return state, file.getvalue()


def equal(a, b) -> bool:
    """Whether two states are the same in every bit, and in the order of their names."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def read(content: bytes) -> dict | None:
    """What is read of a file; None where it is refused, in one line that names it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "latest.pt"
        path.write_bytes(content)
        try:
            return checkpoint.read(path)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 1000
            return None


SIZE = len(written()[1])
places = st.integers(0, SIZE - 1)


@given(places, st.integers(0, 7))
@example(6311, 3)  # in a weight: torch reads it, and says nothing
def test_a_bit_that_flips(place, bit):
    state, content = written()
    content = bytearray(content)
    content[place] ^= 1 << bit
    found = read(bytes(content))
    assert found is None or equal(found, state)


@given(places, places, st.binary(max_size=9))
def test_a_file_that_is_cut_or_has_something_put_in(start, end, put):
    state, content = written()
    found = read(content[:start] + put + content[end:])
    assert found is None or equal(found, state)


@given(st.sampled_from([*checkpoint.PARTS]), st.sampled_from(ODD))
@example("accuracy", [{"epoch": 1}])
@example("ranks", [{"buffers": {}, "rng": {"cpu": 1}}])
def test_a_value_that_no_run_has_written(key, odd):
    """It is refused by its name, unless it has a kind that a run may write there."""
    fine = any(odd is value or equal(odd, value) for value in FINE.get(key, []))
    try:
        checkpoint.check(written()[0] | {key: odd}, Path("x.pt"))
        assert fine
    except UserError as error:
        assert not fine and "x.pt" in str(error) and key in str(error)
