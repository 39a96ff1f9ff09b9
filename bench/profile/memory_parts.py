"""The tensors in a device's memory by kind, at the peak of a step.

Pure functions: from the allocations of one step in their order (by torch's profiler on a CPU, by torch's memory
snapshot on a GPU, or of a simulated step, bench/predict/memory/step.py) and the known kinds of some addresses, to bytes
by kind. The other parts of a GPU's memory are differences between torch's and NVML's values: `of_gpu`.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

WORKSPACE = "workspace"
# Kinds of tensors, in the order of a table.
TENSORS = {
    "weights": "the parameters",
    "gathered": "with sharded weights: full weights of the blocks that compute at the moment, and the pieces in which "
    "weights arrive and gradients leave",
    "buffers": "batch norm's running statistics, and the model's other buffers",
    "gradients": "one number for each trained parameter, if it exists at the peak",
    "optimizer state": "momentum: one number for each trained parameter; Adam: two",
    "buckets": "DDP's or Horovod's copy of the gradients, from which they are sent",
    "replicas": "DataParallel's copies of the model, made again in every step",
    "averages": "averages of the weights (EMA, SWA)",
    "data": "a training set that is on the device for the whole run",
    "images": "the batch; under DataParallel the batches of all devices are on device 0",
    "outputs": "the outputs that DataParallel gathers on device 0, with their gradient",
    "activations": "tensors that the forward pass keeps for the backward pass, and temporaries",
    "kept": "other memory that exists before and after the step",
    WORKSPACE: "how much a CPU's kernels raise the peak with memory that they allocate and free within one operation; "
    "it depends on the library and the CPU, so it is not predicted. On a GPU it is part of the activations",
}
CACHE, CONTEXT, OTHERS = "cache", "context, libraries", "other processes"
# Other parts of a GPU's memory, as differences of torch's reserved, NVML's process and NVML's device.
BESIDES = {
    CACHE: "memory that torch's allocator holds and no tensor uses",
    CONTEXT: "the process outside torch's allocator: CUDA context, kernels, NCCL, cuDNN",
    OTHERS: "other processes on the device",
}
SOON_NS = 50_000  # tolerance between two clocks, within which no memory is allocated, freed and allocated again


class Event(NamedTuple):
    """Memory that is allocated, or freed with bytes below 0. moment: in nanoseconds since 1970. workspace: allocated
    and freed within one operation."""

    address: int
    size: int
    moment: int
    workspace: bool = False


class Note(NamedTuple):
    kind: str
    address: int
    moment: int


class Trace(NamedTuple):
    """The allocations of a step on one device, each at a place: its address, and the number of earlier ones there.

    events: (place, bytes) in order; bytes below 0: freed. after: place -> bytes at the end. kinds: place -> kind, if
    known. noted: the same for temporary tensors.
    """

    events: list[tuple[Hashable, int]]
    after: dict[Hashable, int]
    kinds: dict[Hashable, str]
    noted: dict[Hashable, str]


def in_places(events: list[Event], after: dict[int, int], kinds: dict[int, str], notes: Iterable[Note]) -> Trace:
    """The trace of an observed step: a freed address is used again.

    A note of address 1 belongs to the tensor at that moment:

    >>> events = [Event(1, 8, 100_000), Event(1, -8, 200_000), Event(1, 6, 300_000), Event(1, -6, 400_000)]
    >>> trace = in_places(events, {}, {}, [Note("images", 1, 310_000)])
    >>> trace.events[1:3], trace.noted
    ([((1, 1), -8), ((1, 2), 6)], {(1, 2): 'images'})
    """
    births, placed, there = defaultdict(list), [], {}  # address -> times of allocations there; place -> bytes there
    for address, size, moment, _ in events:
        place = address, len(births[address])
        if size > 0:
            if place in there:  # it was freed unseen
                placed.append((place, -there.pop(place)))
            births[address].append(moment)
            place = address, len(births[address])
            there[place] = size
        else:
            there.pop(place, None)
        placed.append((place, size))

    def last(address: int) -> tuple[int, int]:
        return address, len(births[address])

    return Trace(
        placed,
        {last(address): size for address, size in after.items()},
        {last(address): kind for address, kind in kinds.items()},
        {(address, bisect_right(births[address], moment + SOON_NS)): kind for kind, address, moment in notes},
    )


def at_peak(trace: Trace) -> tuple[dict[str, int], int]:
    """Bytes by kind at the peak, and the number of events until then.

    The state before the step is the state after it, with the events undone from the last to the first. Memory that is
    freed before the step ends, and was not noted, is an activation or a temporary; unknown memory that stays is "kept".

    Weights of 8 bytes at place 1 stay; 6 bytes of activations are allocated at 2, and freed after 8 of gradients at 3:

    >>> trace = Trace([(2, 6), (3, 8), (2, -6)], {1: 8, 3: 8}, {1: "weights", 3: "gradients"}, noted={})
    >>> at_peak(trace)
    ({'weights': 8, 'gradients': 8, 'activations': 6}, 2)
    >>> at_peak(trace._replace(events=[(2, 6), (2, -6), (3, 8)]))
    ({'weights': 8, 'gradients': 8}, 3)
    """
    there = dict(trace.after)
    for place, size in reversed(trace.events):
        if size > 0:
            there.pop(place, None)
        elif size < 0:
            there[place] = -size
    before, now = dict(there), sum(there.values())
    most, when, staying = now, 0, {}
    for i, (place, size) in enumerate(trace.events, 1):
        now += size
        staying[place] = i  # its last event
        if now > most:
            most, when = now, i
    born = dict.fromkeys(before, 0)
    there = before
    for i, (place, size) in enumerate(trace.events[:when], 1):
        if size > 0:
            there[place], born[place] = size, i
        else:
            there.pop(place, None)
    found = {}
    for place, size in there.items():
        if place in trace.after and staying.get(place, 0) <= born[place]:
            kind = trace.kinds.get(place, "kept")
        else:
            kind = trace.noted.get(place, "activations")
        found[kind] = found.get(kind, 0) + size
    return {kind: found[kind] for kind in TENSORS if kind in found}, when


def of_snapshot(snapshot: dict, device: int) -> tuple[list[Event], dict[int, int]]:
    """(events, the blocks afterwards) of one GPU, from `torch.cuda.memory._snapshot()`, documented in
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html.

    Sizes are the requested ones; blocks are larger by up to 511 bytes. Memory counts as free as soon as its tensor is
    deleted, although a stream may still use it.

    >>> actions = ("segment_alloc", 2097152), ("alloc", 100), ("free_requested", 100), ("free_completed", 100)
    >>> trace = [{"action": action, "addr": 0, "size": size, "time_us": 7} for action, size in actions]
    >>> block = {"address": 512, "size": 512, "requested_size": 400, "state": "active_allocated"}
    >>> segments = [{"device": 0, "address": 0, "blocks": [{"address": 0, "size": 512, "state": "inactive"}, block]}]
    >>> events, after = of_snapshot({"device_traces": [trace], "segments": segments}, device=0)
    >>> [event[:3] for event in events], after
    ([(0, 100, 7000), (0, -100, 7000)], {512: 400})
    """
    signs = {"alloc": 1, "free_requested": -1}
    traces = snapshot["device_traces"]
    actions = traces[device] if device < len(traces) else []
    events = [
        Event(each["addr"], signs[each["action"]] * each["size"], 1000 * each["time_us"])
        for each in actions
        if each["action"] in signs
    ]
    after = {}
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                after[block.get("address", at)] = block.get("requested_size") or block["size"]
            at += block["size"]
    return events, after


def with_sizes(trace: Trace, kind: str, sizes: Iterable[int], complete: bool) -> Trace:
    """The trace with memory of a kind whose sizes only are known, such as a backend's buckets.

    complete: the trace has all persistent blocks. The profiler of a CPU does not show earlier blocks; then missing ones
    are added.

    >>> trace = Trace([], {1: 8, 2: 8}, {1: "weights"}, {})
    >>> [at_peak(with_sizes(trace, "buckets", [8, 5], complete))[0] for complete in (True, False)]
    [{'weights': 8, 'buckets': 8}, {'weights': 8, 'buckets': 13}]
    """
    after, kinds, own = dict(trace.after), dict(trace.kinds), 0
    for size in sizes:
        address = next((a for a, n in after.items() if n == size and a not in kinds), None)
        if address is None and complete:
            continue
        if address is None:
            own -= 1  # an address that no block has
            address = own
            after[address] = size
        kinds[address] = kind
    return trace._replace(after=after, kinds=kinds)


def of_gpu(
    tensors: dict[str, int], reserved: int | None, process: int | None, device: int | None
) -> tuple[dict[str, int], list[str]]:
    """All parts of a GPU's memory in bytes, which add up to NVML's value for the device; and notes.

    tensors: bytes by kind. reserved: by torch's allocator. process, device: NVML's values, or None: then that part is
    left out with a note. A value that is smaller than its parts gives a part of 0 and a note: the values were read at
    different moments.

    >>> of_gpu({"weights": 5, "activations": 3}, reserved=10, process=14, device=15)[0]
    {'weights': 5, 'activations': 3, 'cache': 2, 'context, libraries': 4, 'other processes': 1}
    >>> of_gpu({"weights": 5}, reserved=6, process=None, device=9)
    ({'weights': 5, 'cache': 1}, ['context, libraries and other processes: NVML reports no value for this process'])
    >>> of_gpu({"weights": 5}, reserved=4, process=6, device=None)[1]
    ['cache: below 0 by 1 bytes, and shown as 0', 'other processes: NVML reports no value for the device']
    """
    parts, notes, inside = dict(tensors), [], sum(tensors.values())
    for kind, figure in ((CACHE, reserved), (CONTEXT, process), (OTHERS, device)):
        if figure is None:
            missing = {CACHE: "cache: torch reports nothing", OTHERS: f"{OTHERS}: NVML reports no value for the device",
                       CONTEXT: f"{CONTEXT} and {OTHERS}: NVML reports no value for this process"}  # fmt: skip
            return parts, [*notes, missing[kind]]
        if figure < inside:
            notes.append(f"{kind}: below 0 by {inside - figure} bytes, and shown as 0")
        parts[kind], inside = max(0, figure - inside), max(figure, inside)
    return parts, notes


def surplus(first: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """How much larger one device's parts are than another's, the largest difference first; equal ones are left out.

    >>> surplus({"weights": 4, "images": 6, "activations": 9}, {"replicas": 4, "images": 3, "activations": 9})
    {'weights': 4, 'replicas': -4, 'images': 3}
    """
    more = {kind: first.get(kind, 0) - other.get(kind, 0) for kind in (*TENSORS, *BESIDES)}
    return {kind: more[kind] for kind in sorted(more, key=lambda kind: -abs(more[kind])) if more[kind]}
