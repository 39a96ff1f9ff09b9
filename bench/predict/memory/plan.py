"""Predicted memory per device at the peak of a step, by kind: a simulated step (step.py), and what each mode adds.

Not included: cuDNN's workspaces, the allocator's cache, and on a CPU the data set, Gloo's buffers (except copies of
FSDP's pieces) and loader workers.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from bench.config.data_sets import data_kind
from bench.config.modes import MODES
from bench.config.options import RunConfig, to_dict, unchecked
from bench.predict.memory.step import STEPPED, STEPPING, Step, Unlike, between, simulate
from bench.predict.step.engines import FUSION_MIB, MIB
from bench.profile.memory_parts import TENSORS, Trace, at_peak
from bench.workload.images.synthetic import POOL

PHASES = {**dict.fromkeys(("optimizer step", STEPPING, STEPPED), "optimizer"), "synchronize": "end of backward"}


class Device(NamedTuple):
    """Bytes by kind at the peak, and the phase of the peak."""

    parts: dict[str, int]
    moment: str

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def of_devices(config: RunConfig, num_outputs: int, simulate: Callable = simulate) -> list[Device]:
    """The peak of each device; on a CPU, of each process. simulate: (config, num_outputs, replicas) -> Step. To the
    simulated step of one device

    - ddp adds buckets, a second copy of the gradients (with GRADIENT_AS_BUCKET_VIEW gradients are views of them);
    - horovod adds its fusion buffer; on a CPU at most the size of the gradients: untouched memory has no pages;
    - zero1 adds buckets, and has the optimizer's state of each rank's own parameters, and steps only these;
    - fsdp has 1/N of weights, gradients and state, and gathered blocks and gradients that are being scattered;
    - compression adds copies of half the size; PowerSGD its error, as large as the gradients;
    - dp on GPUs adds, on device 0, all images and outputs, and the sum of gradients at the end of backward; the other
      devices have copies of weights and buffers, and gradients until they are summed. On a CPU it is one process.

    The pool of DATA=synthetic is on each process's device, under dp on device 0.
    """
    replicas = config.num_devices if MODES[config.mode].one_process else 1
    if config.device == "cpu" and replicas > 1:
        return [with_data(config, peak_of(simulate(config, num_outputs, replicas)))]
    step = simulate(config, num_outputs)
    if replicas > 1:
        return [with_data(config, main_of_dp(step, replicas))] + (replicas - 1) * [replica_of_dp(step)]
    if config.gradient_as_bucket_view:
        step = as_views(step)
    buckets = {"buckets": size} if (size := bucket_bytes(config, step.trace)) else {}
    shards = MODES[config.mode].shards
    if "weights" in shards and config.num_devices > 1:
        return [with_data(config, peak_of(in_blocks(step, config)))] * config.num_devices
    found = [peak_of(each) for each in owned(step)] if step.shares else [peak_of(step)] * config.num_devices
    return [with_data(config, Device(device.parts | buckets, device.moment)) for device in found]


def bucket_bytes(config: RunConfig, trace: Trace) -> int:
    """A mode's copies of gradients."""
    gradients = sum(size for place, size in trace.after.items() if trace.kinds.get(place) == "gradients")
    fusion = round(MIB * (FUSION_MIB if config.fusion_mb is None else config.fusion_mb))
    exchanged = config.num_devices > 1 and config.sync
    kept = {
        "": 0,
        "buckets": 0 if config.gradient_as_bucket_view else gradients,
        "fusion buffer": exchanged * (fusion if config.device == "cuda" else min(fusion, gradients)),
    }[MODES[config.mode].gradient_copy]
    return kept + {"none": 0, "fp16": gradients // 2, "bf16": gradients // 2, "powersgd": gradients}[config.compression]


def with_data(config: RunConfig, device: Device) -> Device:
    parts = dict(device.parts)
    copies = bool(config.ema) + bool(config.swa)
    if copies:
        parts["averages"] = copies * (parts.get("weights", 0) + parts.get("buffers", 0))
    if data_kind(config.data)[0] == "synthetic":
        parts["data"] = POOL * (4 * 3 * config.image_size**2 + 8)
    return Device({kind: parts[kind] for kind in TENSORS if kind in parts}, device.moment)


def peak_of(step: Step) -> Device:
    parts, when = at_peak(step.trace)
    phase = [name for index, name in step.phases if index <= max(when - 1, step.phases[0][0])][-1]
    forward = step.phases[0][0] <= when <= step.begin("backward")
    return Device(parts, PHASES.get(phase, "forward" if forward else "backward"))


def as_views(step: Step) -> Step:
    """The step when gradients are views of buckets: the buckets are there before it, and what backward computes is
    copied into them and freed."""
    trace = step.trace
    places = {place for place in trace.after if trace.kinds.get(place) == "gradients"}
    own = {-10 - place: trace.after[place] for place in places}  # unused places
    after = {place: size for place, size in trace.after.items() if place not in places} | own
    events, moved = [], []
    for place, size in trace.events:
        moved.append(len(events))  # where this event is now
        events += [(place, size)] + ([(place, -size)] if place in places and size > 0 else [])
    phases = [([*moved, len(events)][index], name) for index, name in step.phases]
    kinds = trace.kinds | dict.fromkeys(own, "gradients")
    return step._replace(trace=Trace(events, after, kinds, trace.noted), phases=phases)


def replica_of_dp(step: Step) -> Device:
    """A device of nn.DataParallel that is not the first: the step up to the end of backward."""
    trace, end = step.trace, step.begin("synchronize")
    after = dict(trace.after)
    for place, size in reversed(trace.events[end:]):
        if size > 0:
            after.pop(place, None)
        else:
            after[place] = -size
    after = {place: size for place, size in after.items() if trace.kinds.get(place) != "optimizer state"}
    kinds = {place: "replicas" if kind in ("weights", "buffers") else kind for place, kind in trace.kinds.items()}
    return peak_of(step._replace(trace=trace._replace(events=trace.events[:end], after=after, kinds=kinds)))


def main_of_dp(step: Step, num_devices: int) -> Device:
    """Device 0 of nn.DataParallel, with all gradients twice for a moment when they are summed."""
    trace, end = step.trace, step.begin("synchronize")
    after, kinds = dict(trace.after), dict(trace.kinds)
    gradients = sum(size for place, size in after.items() if kinds.get(place) == "gradients")
    images = sum(size for place, size in after.items() if kinds.get(place) == "images")
    sums, others, outputs = -1, -2, -3  # unused places
    events = [*trace.events[:end], (sums, gradients), (sums, -gradients), *trace.events[end:]]
    summing = [name for _, name in step.phases].index("synchronize")
    phases = [(index + 2 * (n > summing), name) for n, (index, name) in enumerate(step.phases)]
    after |= {others: (num_devices - 1) * images, outputs: 2 * num_devices * step.output}
    kinds |= {others: "images", outputs: "outputs"}
    noted = trace.noted | {sums: "gradients"}
    return peak_of(step._replace(trace=Trace(events, after, kinds, noted), phases=phases))


def owned(step: Step) -> list[Step]:
    """The step of each rank that has only the optimizer's state of its own parameters."""
    trace, (stepping, stepped) = step.trace, (step.begin(name) for name in (STEPPING, STEPPED))
    rest = {place: size for place, size in trace.after.items() if trace.kinds.get(place) != "optimizer state"}
    return [
        step._replace(trace=trace._replace(
            events=[*trace.events[:stepping], *share.events, *trace.events[stepped:]],
            after=rest | share.state,
            kinds=trace.kinds | dict.fromkeys(share.state, "optimizer state"),
        ))
        for share in step.shares
    ]  # fmt: skip


def in_blocks(step: Step, config: RunConfig) -> Step:
    """The step of one rank under FSDP: weights of each block are gathered before it computes, and its gradients
    scattered when complete; parameters outside of blocks are gathered first and scattered last.

    A block is gathered in one piece, which is copied into its weights; the piece is kept until the next block's has
    come. In backward the next block's piece is gathered during computation; with PREFETCH_BLOCKS more of them, and in
    forward too. Gradients are copied into one piece, which is kept until the next block's. On a CPU Gloo gathers into
    its own memory and scatters from a copy (torch's ProcessGroupGloo): each piece is there twice while it is sent.
    """
    trace, ranks = step.trace, config.num_devices
    backward, stepping, end = (step.begin(phase) for phase in ("backward", "optimizer step", "synchronize"))
    of_kind = {kind: [p for p in trace.after if trace.kinds.get(p) == kind]
               for kind in ("weights", "gradients", "optimizer state")}  # fmt: skip
    after, kinds, noted = dict(trace.after), dict(trace.kinds), dict(trace.noted)
    after |= {place: trace.after[place] // ranks for places in of_kind.values() for place in places}
    extra, numbers = defaultdict(list), itertools.count(-1, -1)  # index -> events before it; unused places

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
    pieces, ahead = {}, config.prefetch or 0  # pieces of later blocks
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

    events, starts = [], []  # new index of each event
    for i, (place, size) in enumerate(trace.events):
        starts.append(len(events))
        events += [*extra[i], (place, size // ranks if i >= stepping else size)]
    starts.append(len(events))
    events += extra[len(trace.events)]
    phases = [(starts[index], name) for index, name in step.phases]
    return step._replace(trace=Trace(events, after, kinds, noted), phases=phases)


# --- the largest batch ----------------------------------------------------------------------------------------------


def largest_batch(config: RunConfig, num_outputs: int, limit: int, most: int) -> int:
    """The largest batch per device, up to ``most``, whose fullest device needs at most ``limit`` bytes; 0 if none.

    BATCH and twice that are simulated; other batches are interpolated linearly: each tensor of the step, or the total
    where the two steps have different tensors, as when a loss loops over its examples.
    """
    batches = config.per_device_batch, 2 * config.per_device_batch

    def of_batch(asked: RunConfig, batch: int) -> RunConfig:
        return unchecked(to_dict(asked) | {"per_device_batch": batch})  # may exceed the data set

    def step(asked: RunConfig, outputs: int, replicas: int = 1) -> Step:
        ends = [simulate(of_batch(asked, batch), outputs, replicas) for batch in batches]
        return between(*ends, batches, asked.per_device_batch)

    def fullest(batch: int, simulate: Callable) -> int:
        return max(device.total for device in of_devices(of_batch(config, batch), num_outputs, simulate))

    try:
        return bisect.bisect_right(range(1, most + 1), limit, key=lambda batch: fullest(batch, step))
    except Unlike:
        small, large = (fullest(batch, simulate) for batch in batches)
        per_example = max(0, large - small) / (batches[1] - batches[0])
        sizes = range(1, most + 1)
        return bisect.bisect_right(sizes, limit, key=lambda batch: small + (batch - batches[0]) * per_example)
