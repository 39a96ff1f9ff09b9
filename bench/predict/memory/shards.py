"""What sharding makes of a simulated step, a ``Step`` of step.py: which rank holds what, and what is whole for a
moment."""

import itertools
from collections import defaultdict
from typing import NamedTuple

import torch

from bench.config.options import RunConfig
from bench.measure.memory_parts import Trace


class Share(NamedTuple):
    """A rank's own optimizer step. events: its allocations. state: place -> bytes of the optimizer's state."""

    events: list[tuple[int, int]]
    state: dict[int, int]


def dealt(parameters: list[torch.Tensor], ranks: int) -> list[list[torch.Tensor]]:
    """The parameters that each rank owns, in the order in which it steps them, as torch's ZeroRedundancyOptimizer deals
    them: each to the rank that has least so far, the largest first.

    >>> [[len(parameter) for parameter in own] for own in dealt([torch.empty(n) for n in (1, 5, 3, 3)], ranks=2)]
    [[5, 1], [3, 3]]
    """
    owned = [[] for _ in range(ranks)]
    for parameter in sorted(parameters, key=torch.numel, reverse=True):
        min(owned, key=lambda own: sum(map(torch.numel, own))).append(parameter)
    return owned


def owned(step) -> list:
    """The step of each rank when it has the state of its own parameters, and steps these alone."""
    trace, (stepping, stepped) = step.trace, (step.begin(name) for name in ("optimizer.step", "after optimizer.step"))
    rest = {place: size for place, size in trace.after.items() if trace.kinds.get(place) != "optimizer state"}
    return [
        step._replace(trace=trace._replace(
            events=[*trace.events[:stepping], *share.events, *trace.events[stepped:]],
            after=rest | share.state,
            kinds=trace.kinds | dict.fromkeys(share.state, "optimizer state"),
        ))
        for share in step.shares
    ]  # fmt: skip


def in_blocks(step, config: RunConfig):
    """The step of one rank when the weights of each block are gathered before it computes, and its gradients scattered
    once they are whole; what is in no block is gathered first and scattered last.

    As torch's FSDP goes about it: a block is gathered in one piece, which is copied into its weights; the piece is kept
    until the next block's has come. In backward that of the block to come is gathered while one computes; with PREFETCH
    more of them, and in forward as well. Gradients are copied into one piece to be scattered, which is kept until the
    next block's. On a CPU Gloo gathers into memory of its own, and scatters from a copy (torch's ProcessGroupGloo): a
    piece is there once more while it travels.
    """
    trace, ranks = step.trace, config.num_devices
    backward, stepping, end = (step.begin(phase) for phase in ("backward", "optimizer step", "synchronize"))
    of_kind = {kind: [p for p in trace.after if trace.kinds.get(p) == kind]
               for kind in ("weights", "gradients", "optimizer state")}  # fmt: skip
    after, kinds, noted = dict(trace.after), dict(trace.kinds), dict(trace.noted)
    after |= {place: trace.after[place] // ranks for places in of_kind.values() for place in places}
    extra, numbers = defaultdict(list), itertools.count(-1, -1)  # index -> events before it; places that no tensor has

    def comes(index: int, size: int) -> tuple[int, int]:
        place = next(numbers)
        noted[place] = "gathered"
        extra[index].append((place, size))
        return place, size

    def goes(index: int, memory: tuple[int, int]) -> None:
        extra[index].append((memory[0], -memory[1]))

    def travels(index: int, piece: tuple[int, int]) -> tuple[int, int]:
        if config.device == "cpu":
            copy = next(numbers), piece[1]
            extra[index].append(copy)
            goes(index, copy)
        return piece

    def gather(index: int, size: int) -> tuple[int, int]:
        return travels(index, comes(index, size))

    def scatter(index: int, places, before: tuple[int, int] | None) -> tuple[int, int]:
        if before:
            goes(index, before)
        piece = comes(index, sum(trace.after[place] for place in places))
        for place in places:
            own, size = next(numbers), trace.after[place]
            extra[index] += [(place, -size), (own, size // ranks)]
            after[own], kinds[own], noted[place] = after.pop(place), "gradients", "gradients"
        return travels(index, piece)

    forward, blocks, held = step.phases[0][0], step.blocks, {}
    rest = sum(trace.after[place] for place in of_kind["weights"]) - sum(block.weights for block in blocks)
    piece, root = gather(forward, rest), comes(forward, rest)
    pieces, ahead = {}, config.prefetch or 0  # pieces of blocks to come; how many blocks PREFETCH asks for
    for number, block in enumerate(blocks):
        before, piece = piece, pieces.pop(number, None) or gather(block.begin, block.weights)
        goes(block.begin, before)
        held[number] = comes(block.begin, block.weights)
        for later in range(number + 1, min(number + 1 + ahead, len(blocks))):
            pieces[later] = pieces.get(later) or gather(block.begin, blocks[later].weights)
        if config.reshard:
            goes(block.end, held.pop(number))
    goes(backward, piece)
    now, scattered = backward, None
    for number, block in reversed(list(enumerate(blocks))):
        if config.reshard:
            piece = pieces.pop(number, None) or gather(now, block.weights)
            held[number] = comes(now, block.weights)
            goes(now, piece)
            for later in range(number - 1, max(number - 1 - max(1, ahead), -1), -1):
                pieces[later] = pieces.get(later) or gather(now, blocks[later].weights)
        arrived = [i for i, (place, size) in enumerate(trace.events) if place in block.gradients and size > 0]
        now = max([now, *(i + 1 for i in arrived)])
        while now < end and trace.events[now][1] < 0:  # what only the operation needed has gone
            now += 1
        goes(now, held.pop(number))
        scattered = scatter(now, block.gradients, scattered)
    goes(end, root)
    goes(end, scatter(end, set(of_kind["gradients"]).difference(*(block.gradients for block in blocks)), scattered))

    events, starts = [], []  # where each event's time begins now
    for i, (place, size) in enumerate(trace.events):
        starts.append(len(events))
        events += [*extra[i], (place, size // ranks if i >= stepping else size)]
    starts.append(len(events))
    events += extra[len(trace.events)]
    phases = [(starts[index], name) for index, name in step.phases]
    return step._replace(trace=Trace(events, after, kinds, noted), phases=phases)
