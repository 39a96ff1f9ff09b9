"""One rank of `bench network`: it joins as in training, and sends messages instead.

Every size of an operation runs twice before the rounds: this checks the result, warms up and shows how long a round
takes. Sizes whose rounds do not fit into the time left are skipped, with all larger ones. Each round has every size
once, so that a disturbance of some seconds affects all sizes. A time is that of a block: after a barrier, the operation
as often in a row as fills BLOCK_S, over that number.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.config.options import RunConfig
from bench.process.heartbeat import StatusWriter
from bench.tasks.network.plan import ELEMENT, Plan, read_plan

BLOCK_S = 0.05
MOST_IN_A_ROW = 200


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    status.phase("joining the group")
    import torch

    from bench.measure.environment import collect_environment
    from bench.measure.load import Load
    from bench.measure.node import machine_of
    from bench.modes import load_mode
    from bench.tasks.network.record import write

    torch.set_num_threads(config.threads_per_process)
    mode, plan = load_mode(config.mode)(config), read_plan(config.label.probe)
    topology, load, wanted = mode.topology, Load(), operations_of(mode)
    share = dataclasses.replace(plan, budget_s=plan.budget_s / len(wanted))
    operations = [measure(operation, mode, share, status) for operation in wanted]
    status.phase("collecting results")
    part = {"seconds": [operation.pop("seconds") for operation in operations], "load": load.stop(), "devices": [{}]}
    parts = mode.gather(part | {"node": machine_of(mode)})
    if topology.rank == 0:
        write(run_dir, config, plan, topology, collect_environment(), operations, parts)
    status.phase("done")
    mode.close()


@dataclass
class Operation:
    """ranks: those that take part; the others wait at the barriers. once: does it with a tensor. expected: the value of
    every element afterwards, when each rank starts with its rank + 1."""

    name: str
    ranks: list[int]
    once: Callable
    expected: float


def operations_of(mode) -> list[Operation]:
    ranks = list(range(mode.topology.world_size))
    kinds = {"ping_pong": ([0, ranks[-1]], 1.0), "all_reduce": (ranks, float(sum(rank + 1 for rank in ranks)))}
    return [Operation(name, kinds[name][0], once, kinds[name][1]) for name, once in mode.exchanges().items()]


def measure(operation: Operation, mode, plan: Plan, status: StatusWriter) -> dict:
    """One operation over all sizes. "seconds" are this rank's, by size and round; the rest is equal on all ranks."""
    import torch

    def block(tensor, times: int) -> float:
        status.phase("running")  # a heartbeat
        return seconds_of(operation.once, tensor, times, mode)

    blocks, left_out = first_pass(operation, mode, plan, block)
    found = {size: [] for size in blocks}
    buffer = torch.zeros(max(found) // ELEMENT, device=mode.topology.device)  # sums of zeros stay zeros
    status.total(plan.rounds * len(found))
    for number in range(plan.rounds):
        for place, (size, times) in enumerate(blocks.items()):
            status.step(number * len(found) + place)
            found[size].append(block(buffer[: size // ELEMENT], times))
    return {
        "name": operation.name,
        "ranks": operation.ranks,
        "sizes": [{"bytes": size, "in_a_row": times} for size, times in blocks.items()],
        "left_out": left_out,
        "seconds": list(found.values()),
    }


def seconds_of(once: Callable, tensor, times: int, mode) -> float:
    """Mean seconds of an operation over ``times`` in a row, which all ranks start together."""
    mode.barrier()
    began = time.perf_counter()
    for _ in range(times):
        once(tensor)
    if tensor.is_cuda:
        import torch

        torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def first_pass(operation: Operation, mode, plan: Plan, block: Callable) -> tuple[dict[int, int], list[dict]]:
    """Runs each size twice and checks the first: size -> times in a row, and the sizes for which there is no time.

    All ranks use the slowest rank's seconds, so they decide the same. The next size is expected to take longer in
    proportion to its bytes, an overestimate where latency dominates.
    """
    import torch

    blocks, began, round_s, slowest, before = {}, time.perf_counter(), 0.0, 0.0, 0
    for size in plan.sizes:
        spent = max(mode.gather(time.perf_counter() - began))
        expected = slowest * size / before if before else 0.0
        if blocks and spent + 2 * expected + plan.rounds * (round_s + max(expected, BLOCK_S)) > plan.budget_s:
            left = [larger for larger in plan.sizes if larger >= size]
            return blocks, [{"bytes": nbytes, "expected_s": slowest * nbytes / before} for nbytes in left]
        tensor = torch.full((size // ELEMENT,), mode.topology.rank + 1.0, device=mode.topology.device)
        block(tensor, 1)
        check(operation, tensor, mode.topology.rank)
        tensor.zero_()
        slowest, before = max(mode.gather(block(tensor, 1))), size
        blocks[size] = min(MOST_IN_A_ROW, max(1, math.ceil(BLOCK_S / slowest)))
        round_s += slowest * blocks[size]
    return blocks, []


def check(operation: Operation, tensor, rank: int) -> None:
    if rank in operation.ranks and not bool((tensor == operation.expected).all()):
        raise RuntimeError(
            f"{operation.name} of {tensor.nbytes} bytes gave {tensor.flatten()[0]:g} and not {operation.expected:g}"
        )
