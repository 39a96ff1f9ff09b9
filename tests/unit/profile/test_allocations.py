"""What a step's memory is filled with on a CPU: a real collective over Gloo, whose memory another thread lets go."""

import threading

import pytest
import torch
import torch.distributed as dist

from bench.profile.allocations import record_step
from bench.profile.memory_parts import WORKSPACE

MIB = 2**20


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def filled(step, kept=lambda: []) -> dict[str, int]:
    """MiB at the peak by kind, without kernels' workspaces."""
    (found,) = record_step(step, [torch.device("cpu")], kept, [], lambda: [])
    assert found["notes"] == []
    return {kind: round(1024 * gib) for kind, gib in found["gib"].items() if kind != WORKSPACE}


def numbers(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4)


def reduced(mib: int) -> list[torch.Tensor]:
    """Of all ranks the sum."""
    total = numbers(mib)
    dist.all_reduce(total)
    return [total]


def elsewhere(held: list) -> None:
    """Let go in a thread of which the profiler knows nothing, as Gloo's may be the last to do."""
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


@pytest.mark.parametrize("let_go", [list.clear, elsewhere])
def test_what_a_collective_used_is_gone_after_its_last_operation_whichever_thread_lets_go(alone, let_go):
    """The peak is at the end: 20 MiB that were made of the sum, and 70 of what comes last."""
    there, kept = [], []

    def step():
        held = reduced(20)
        there.append(held[0] + 1)
        let_go(held)
        numbers(70)

    assert sum(filled(step).values()) == 90

    def step_that_keeps():
        kept.extend(reduced(20))
        numbers(70)

    found = filled(step_that_keeps, lambda: [("weights", each) for each in kept])
    assert found["weights"] == 20 and found["activations"] == 70
