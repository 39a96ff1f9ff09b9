"""What a rank measures and what it leaves out, with messages that take a known time."""

from types import SimpleNamespace

import pytest
import torch

from bench.tasks.network.plan import Plan, parse_sizes
from bench.tasks.network.rank import BLOCK_S, MOST_IN_A_ROW, Operation, check, first_pass

ALPHA, BETA = 1e-4, 1e-7  # a link of 10 MB/s
MODE = SimpleNamespace(gather=lambda item: [item], topology=SimpleNamespace(rank=0, device=torch.device("cpu")))
OPERATION = Operation("all_reduce", [0], None, 1.0)


def passed(budget_s: float, sizes: str = "4KiB-4MiB", rounds: int = 10):
    """How often in a row each size is to be timed, and what is left out."""
    plan = Plan(parse_sizes(sizes), rounds, budget_s)
    return first_pass(OPERATION, MODE, plan, lambda tensor, times: ALPHA + BETA * tensor.nbytes)


def test_small_messages_are_timed_in_blocks_and_large_ones_alone():
    blocks, left_out = passed(600.0)
    assert left_out == [] and list(blocks) == list(parse_sizes("4KiB-4MiB"))
    assert blocks[2**12] == pytest.approx(BLOCK_S / (ALPHA + BETA * 2**12), abs=1) and blocks[2**22] == 1
    assert passed(600.0, "4,8")[0][4] == MOST_IN_A_ROW


def test_what_does_not_fit_into_the_time_is_left_out_with_all_that_is_larger():
    """Twelve of 1 MiB take 1.3 s, twelve of 4 MiB 5 s."""
    blocks, left_out = passed(5.0)
    assert max(blocks) == 2**20 and [size["bytes"] for size in left_out] == [2**22]
    assert left_out[0]["expected_s"] == pytest.approx(BETA * 2**22, rel=0.01)
    blocks, left_out = passed(0.001)
    assert list(blocks) == [2**12] and len(left_out) == 5  # one is always measured


def test_a_sum_that_is_none_is_an_error():
    """Nothing is timed that does not do what it is to do."""
    check(OPERATION, torch.ones(4), 0)
    check(OPERATION, torch.zeros(4), 1)  # a rank that takes no part
    with pytest.raises(RuntimeError, match="all_reduce of 16 bytes gave 2 and not 1"):
        check(OPERATION, torch.full((4,), 2.0), 0)
