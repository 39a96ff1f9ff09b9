"""What sharding makes of a simulated step, a ``Step`` of memory_plan.py: which rank holds what, and what is whole for a
moment."""

import itertools
from collections import defaultdict

from bench.config.options import RunConfig
from bench.measure.memory_parts import Trace


def owned(step, ranks: int) -> list:
    """The step of each rank, when the optimizer's state is sharded by whole parameters: each is dealt to the rank that
    has least so far, the largest first."""
    trace = step.trace
    state = {place: size for place, size in trace.after.items() if trace.kinds.get(place) == "optimizer state"}
    gradients = sorted((n for place, n in trace.after.items() if trace.kinds.get(place) == "gradients"), reverse=True)
    parts = [0] * ranks
    for size in gradients:
        parts[parts.index(min(parts))] += size
    rest = {place: size for place, size in trace.after.items() if place not in state}
    own = -1  # a place that no tensor has
    of_ranks = [sum(state.values()) * part // max(1, sum(gradients)) for part in parts]
    kinds = trace.kinds | {own: "optimizer state"}
    afters = [rest | ({own: size} if size else {}) for size in of_ranks]
    return [step._replace(trace=trace._replace(after=after, kinds=kinds)) for after in afters]


def in_blocks(step, config: RunConfig):
    """The step of one rank when the weights of each block are gathered before it computes, and its gradients scattered
    once they are whole; what is in no block is gathered first and scattered last.

    As torch's FSDP goes about it: a block is gathered in one piece, which is copied into its weights; the piece is kept
    until the next block's comes. In backward that of the block to come is gathered while one computes. Gradients are
    copied into one piece to be scattered, which is kept until the next block's.
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

    def scatter(index: int, places, before: tuple[int, int] | None) -> tuple[int, int]:
        if before:
            goes(index, before)
        piece = comes(index, sum(trace.after[place] for place in places))
        for place in places:
            own, size = next(numbers), trace.after[place]
            extra[index] += [(place, -size), (own, size // ranks)]
            after[own], kinds[own], noted[place] = after.pop(place), "gradients", "gradients"
        return piece

    forward, blocks, held = step.phases[0][0], step.blocks, {}
    rest = sum(trace.after[place] for place in of_kind["weights"]) - sum(block.weights for block in blocks)
    piece, root = comes(forward, rest), comes(forward, rest)
    for number, block in enumerate(blocks):
        goes(block.begin, piece)
        piece = comes(block.begin, block.weights)
        held[number] = comes(block.begin, block.weights)
        if config.reshard:
            goes(block.end, held.pop(number))
    goes(backward, piece)
    now, ahead, scattered = backward, None, None
    for number, block in reversed(list(enumerate(blocks))):
        if config.reshard:
            piece = ahead or comes(now, block.weights)
            held[number] = comes(now, block.weights)
            goes(now, piece)
            ahead = comes(now, blocks[number - 1].weights) if number else None
        arrived = [i for i, (place, size) in enumerate(trace.events) if place in block.gradients and size > 0]
        now = max([now, *(i + 1 for i in arrived)])
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
