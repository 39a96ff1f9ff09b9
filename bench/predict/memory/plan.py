"""What a step will need of each device's memory, by what it is for: predicted, before anything is trained.

There is no rule of thumb in it. A step is simulated (step.py), so its peak is found where it is: after the
forward pass with many images, in the optimizer's step with few. What a mode adds is arithmetic: ``of_devices``.

Not in it: cuDNN's workspaces, what an allocator keeps, and on a CPU the data set, what Gloo takes besides copies of
FSDP's pieces, and loader workers.
"""

from collections.abc import Callable
from typing import NamedTuple

from bench.config.data_sets import data_kind
from bench.config.modes import MODES
from bench.config.options import RunConfig, to_dict, unchecked
from bench.measure.memory_parts import TENSORS, Trace, at_peak
from bench.predict.memory.shards import in_blocks, owned
from bench.predict.memory.step import STEPPED, STEPPING, Step, between, simulate
from bench.workload.images.synthetic import POOL

MIB = 2**20
FUSION_MIB = 128  # Horovod's own HOROVOD_FUSION_THRESHOLD
PHASES = {**dict.fromkeys(("optimizer step", STEPPING, STEPPED), "optimizer"), "synchronize": "end of backward"}


class Device(NamedTuple):
    """What one device needs: bytes by kind at its peak, and when that is."""

    parts: dict[str, int]
    moment: str

    @property
    def total(self) -> int:
        return sum(self.parts.values())


# --- what a mode makes of it ----------------------------------------------------------------------------------------


def of_devices(config: RunConfig, num_outputs: int, simulate: Callable = simulate) -> list[Device]:
    """What each device needs at its peak; on a CPU, what each process needs. simulate: gives the step of one device.

    - single, independent: the simulated step.
    - ddp: besides, buckets: a second copy of the gradients, there from the first step on. With GRADIENT_AS_BUCKET_VIEW
      a gradient is a view of its bucket: there is one copy, and it is there all the time.
    - horovod: besides, its fusion buffer of FUSION_MB, once there are two ranks; on a CPU no more of it than gradients
      fill, for untouched memory takes no pages.
    - zero1: as ddp, but each rank has the state of its own parameters and steps these alone, the largest first.
    - fsdp: of weights, gradients and the optimizer's state one part of as many as there are ranks; besides, whole, the
      block that computes, what was gathered of the next one, and the gradients that are being scattered.
    - a compression sends copies of half the size; PowerSGD keeps what it left out, as large as the gradients.
    - dp on GPUs: device 0 has the originals, all images, all gathered outputs, and when the backward pass ends its own
      gradients beside those summed from all devices; each other device has copies of weights and buffers, and their
      gradients until they are summed. No optimizer's state is there.
    - dp on a CPU: one process with all replicas, simulated as they are.

    The pool of DATA=synthetic lies on each process's device, under dp on device 0 alone.
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
    """What the engine of a mode keeps of gradients besides the gradients."""
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
    """With averages of the weights, and with the data that lie on the device."""
    parts = dict(device.parts)
    copies = bool(config.ema) + bool(config.swa)
    if copies:
        parts["averages"] = copies * (parts.get("weights", 0) + parts.get("buffers", 0))
    if data_kind(config.data)[0] == "synthetic":
        parts["data"] = POOL * (4 * 3 * config.image_size**2 + 8)
    return Device({kind: parts[kind] for kind in TENSORS if kind in parts}, device.moment)


def peak_of(step: Step) -> Device:
    """The peak of a step on one device."""
    parts, when = at_peak(step.trace)
    phase = [name for index, name in step.phases if index <= max(when - 1, step.phases[0][0])][-1]
    forward = step.phases[0][0] <= when <= step.begin("backward")
    return Device(parts, PHASES.get(phase, "forward" if forward else "backward"))


def as_views(step: Step) -> Step:
    """The step when gradients are views of buckets: the buckets were there before it, and what backward computes comes
    besides, is copied into them, and goes."""
    trace = step.trace
    places = {place for place in trace.after if trace.kinds.get(place) == "gradients"}
    own = {-10 - place: trace.after[place] for place in places}  # places of their own: no tensor has them
    after = {place: size for place, size in trace.after.items() if place not in places} | own
    events, moved = [], []
    for place, size in trace.events:
        moved.append(len(events))  # where this event is now
        events += [(place, size)] + ([(place, -size)] if place in places and size > 0 else [])
    phases = [([*moved, len(events)][index], name) for index, name in step.phases]
    kinds = trace.kinds | dict.fromkeys(own, "gradients")
    return step._replace(trace=Trace(events, after, kinds, trace.noted), phases=phases)


def cut(trace: Trace, index: int) -> Trace:
    """The trace up to its event of this number."""
    after = dict(trace.after)
    for place, size in reversed(trace.events[index:]):
        if size > 0:
            after.pop(place, None)
        else:
            after[place] = -size
    return trace._replace(events=trace.events[:index], after=after)


def replica_of_dp(step: Step) -> Device:
    """A device of nn.DataParallel that is not the first."""
    trace = cut(step.trace, step.begin("synchronize"))
    after = {place: size for place, size in trace.after.items() if trace.kinds.get(place) != "optimizer state"}
    copied = {place: "replicas" if kind in ("weights", "buffers") else kind for place, kind in trace.kinds.items()}
    return peak_of(step._replace(trace=trace._replace(after=after, kinds=copied)))


def main_of_dp(step: Step, num_devices: int) -> Device:
    """Device 0 of nn.DataParallel. All gradients are summed at once, and for a moment they are there twice."""
    trace, end = step.trace, step.begin("synchronize")
    after, kinds = dict(trace.after), dict(trace.kinds)
    gradients = sum(size for place, size in after.items() if kinds.get(place) == "gradients")
    images = sum(size for place, size in after.items() if kinds.get(place) == "images")
    sums, others, outputs = -1, -2, -3  # places that no tensor has
    events = [*trace.events[:end], (sums, gradients), (sums, -gradients), *trace.events[end:]]
    summing = [name for _, name in step.phases].index("synchronize")
    phases = [(index + 2 * (n > summing), name) for n, (index, name) in enumerate(step.phases)]
    after |= {others: (num_devices - 1) * images, outputs: 2 * num_devices * step.output}
    kinds |= {others: "images", outputs: "outputs"}
    noted = trace.noted | {sums: "gradients"}
    return peak_of(step._replace(trace=Trace(events, after, kinds, noted), phases=phases))


# --- what fits ------------------------------------------------------------------------------------------------------


def largest_batch(config: RunConfig, num_outputs: int, limit: int, most: int) -> int:
    """The largest batch per device, up to ``most``, whose fullest device needs at most ``limit`` bytes; 0 without.

    Two batches are simulated, BATCH and twice that; all others lie on lines through these: each tensor of the step, or
    where the two steps have different tensors, as where a loss loops over its examples, the sum.
    """
    batches = config.per_device_batch, 2 * config.per_device_batch

    def of_batch(asked: RunConfig, batch: int) -> RunConfig:
        return unchecked(to_dict(asked) | {"per_device_batch": batch})  # more than a data set has, perhaps

    def step(asked: RunConfig, outputs: int, replicas: int = 1) -> Step | None:
        ends = [simulate(of_batch(asked, batch), outputs, replicas) for batch in batches]
        found = between(*ends, batches, asked.per_device_batch)
        if found is None:
            raise Unlike
        return found

    def fullest(batch: int, simulate: Callable) -> int:
        return max(device.total for device in of_devices(of_batch(config, batch), num_outputs, simulate))

    try:
        return last_that(lambda batch: fullest(batch, step) <= limit, most)
    except Unlike:
        small, large = (fullest(batch, simulate) for batch in batches)
        per_example = max(0, large - small) / (batches[1] - batches[0])
        return last_that(lambda batch: small + (batch - batches[0]) * per_example <= limit, most)


class Unlike(Exception):
    """Two simulated steps that have different tensors."""


def last_that(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to ``most`` that fits, where each smaller one does too; 0 where 1 does not.

    >>> last_that(lambda batch: batch <= 37, 1000), last_that(lambda batch: False, 9), last_that(lambda batch: True, 9)
    (37, 0, 9)
    """
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
