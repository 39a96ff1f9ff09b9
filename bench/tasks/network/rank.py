"""One rank of `bench network`: it joins as in training, and sends messages instead. Then it multiplies matrices.

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
    topology, load, (wanted, unsupported) = mode.topology, Load(), supported(operations_of(mode), mode)
    share = dataclasses.replace(plan, budget_s=plan.budget_s / len(wanted))
    operations = [measure(operation, mode, share, status) for operation in wanted]
    part = {"seconds": [operation.pop("seconds") for operation in operations], "load": load.stop(), "devices": [{}]}
    multiplies = plan.backend in ("gloo", "nccl") and not config.share_gpu  # once, and not if ranks share a device
    part["products"] = multiply(mode, status) if multiplies else {}
    status.phase("collecting results")
    parts = mode.gather(part | {"node": machine_of(mode)})
    if topology.rank == 0:
        write(run_dir, config, plan, topology, collect_environment(), operations, unsupported, parts)
    status.phase("done")
    mode.close()


@dataclass
class Operation:
    """ranks: those that take part; the others wait at the barriers. once: does it with a tensor. parts: equal ones into
    which a tensor must divide. expected: the value of each part's elements afterwards, when each rank starts with its
    rank + 1; None if it is not defined."""

    name: str
    ranks: list[int]
    once: Callable
    expected: list[float | None]
    parts: int = 1

    def elements(self, nbytes: int) -> int:
        """Of a tensor of that many bytes, rounded up to whole parts."""
        return math.ceil(nbytes / (ELEMENT * self.parts)) * self.parts


def operations_of(mode) -> list[Operation]:
    n, own = mode.topology.world_size, mode.topology.rank
    ranks, numbers = list(range(n)), [rank + 1.0 for rank in range(n)]
    kinds = {
        "ping_pong": ([0, n - 1], [1.0]),
        "all_reduce": (ranks, [sum(numbers)]),
        "all_gather": (ranks, numbers),
        "reduce_scatter": (ranks, [sum(numbers) if rank == own else None for rank in ranks]),
    }
    found = mode.exchanges().items()
    return [Operation(name, kinds[name][0], once, kinds[name][1], len(kinds[name][1])) for name, once in found]


def supported(operations: list[Operation], mode) -> tuple[list[Operation], dict[str, str]]:
    """The operations that the backend has, and why it has no other; it refuses one before anything is sent."""
    import torch

    found, unsupported = [], {}
    for operation in operations:
        try:
            operation.once(torch.zeros(operation.parts, device=mode.topology.device))
            found.append(operation)
        except (RuntimeError, NotImplementedError) as error:
            if "support" not in str(error):
                raise
            unsupported[operation.name] = str(error).splitlines()[0][:200]
    return found, unsupported


def measure(operation: Operation, mode, plan: Plan, status: StatusWriter) -> dict:
    """One operation over all sizes. "seconds" are this rank's, by size and round; the rest is equal on all ranks."""
    import torch

    def block(tensor, times: int) -> float:
        status.phase("running")  # a heartbeat
        return seconds_of(operation.once, tensor, times, mode)

    blocks, left_out = first_pass(operation, mode, plan, block)
    found = {size: [] for size in blocks}
    buffer = torch.zeros(operation.elements(max(found)), device=mode.topology.device)  # sums of zeros stay zeros
    status.total(plan.rounds * len(found))
    for number in range(plan.rounds):
        for place, (size, times) in enumerate(blocks.items()):
            status.step(number * len(found) + place)
            found[size].append(block(buffer[: operation.elements(size)], times))
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
        tensor = torch.full((operation.elements(size),), mode.topology.rank + 1.0, device=mode.topology.device)
        block(tensor, 1)
        check(operation, tensor, mode.topology.rank)
        tensor.zero_()
        slowest, before = max(mode.gather(block(tensor, 1))), size
        blocks[size] = min(MOST_IN_A_ROW, max(1, math.ceil(BLOCK_S / slowest)))
        round_s += slowest * blocks[size]
    return blocks, []


def check(operation: Operation, tensor, rank: int) -> None:
    if rank not in operation.ranks:
        return
    for part, expected in zip(tensor.chunk(operation.parts), operation.expected, strict=True):
        if expected is not None and not bool((part == expected).all()):
            raise RuntimeError(f"{operation.name} of {tensor.nbytes} bytes gave {part[0]:g} and not {expected:g}")


# --- matrix products --------------------------------------------------------------------------------------------------

MATRICES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192, 16384)}  # n of n x n
PRODUCT_S = 0.25  # for one size; a larger one that would take longer is left out
FEWEST = 3  # products of a size


def multiply(mode, status: StatusWriter) -> dict[tuple[str, int], float]:
    """(precision, n) -> seconds of the fastest product of two n x n matrices, while all ranks compute."""
    import torch

    device, found = mode.topology.device, {}
    kinds = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    for precision, dtype in kinds.items():
        if precision == "tf32" and device.type != "cuda":
            continue
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        mode.barrier()
        seconds = 0.0
        for n in MATRICES[device.type]:
            status.phase("running")
            if 8 * seconds > PRODUCT_S:
                break
            try:
                seconds = fastest_product(torch.randn(n, n, device=device).to(dtype))
            except RuntimeError:  # too little memory, or a precision that this device does not have
                break
            found[precision, n] = seconds
    return found


def fastest_product(matrix) -> float:
    import torch

    times, out, began = [], torch.empty_like(matrix), time.perf_counter()
    while len(times) < FEWEST or time.perf_counter() - began < PRODUCT_S:
        start = time.perf_counter()
        torch.mm(matrix, matrix, out=out)
        if matrix.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
