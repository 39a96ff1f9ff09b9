"""What a step will need of each device's memory, by what it is for: predicted, before anything is trained.

There is no rule of thumb in it. The project's own step (``Trainer.take_step``, with its model, precision, frozen
parameters and optimizer) is taken with tensors that have shapes and no numbers (torch's FakeTensorMode), and each one
that comes or goes is noted, in the forward pass, the backward pass and the optimizer's step. So the peak is found where
it is: after the forward pass with many images, in the optimizer's step with few. What a mode adds is arithmetic:
``of_devices``.

Not in it: cuDNN's workspaces, what an allocator keeps, and on a CPU the data set, what Gloo takes besides copies of
FSDP's pieces, and loader workers.
"""

import functools
import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bench.config.data_sets import data_kind, info_of
from bench.config.modes import MODES
from bench.config.options import KNOBS, UNSET, RunConfig, to_dict, unchecked
from bench.measure.memory_parts import TENSORS, Trace, at_peak
from bench.modes import base, dp
from bench.training.holdings import holdings
from bench.training.loop import Trainer, build_optimizer
from bench.training.memory_shards import Share, dealt, in_blocks, owned
from bench.training.script import Script
from bench.workload import load_workload
from bench.workload.batch import each, tensors
from bench.workload.images.synthetic import POOL

MIB = 2**20
FUSION_MIB = 128  # Horovod's own HOROVOD_FUSION_THRESHOLD
# What changes no memory of a step, or is counted by itself, and needs what a step without numbers has not.
LEFT_OUT = {"epochs": 0, "ema": None, "swa": None, "loss_guard": None, "fault": None, "pretrained": None,
            "profile": False, "memory": False, "compile": False, "mistake": "none", "share_gpu": False,
            "gpu_ids": None, "mode": "single", "num_devices": 1, "launcher": "in-process", "cudnn_benchmark": False,
            **{name: UNSET[name] for name in KNOBS}}  # fmt: skip
STEPPING, STEPPED = "optimizer.step", "after optimizer.step"
PHASES = {**dict.fromkeys(("optimizer step", STEPPING, STEPPED), "optimizer"), "synchronize": "end of backward"}


class Block(NamedTuple):
    """A block of the model that is sharded as one. begin, end: how many allocations came before its forward pass and
    before the end of that. weights: bytes. gradients: their places."""

    begin: int
    end: int
    weights: int
    gradients: set[int]


class Step(NamedTuple):
    """A simulated step. trace: its allocations. phases: (how many of them came before it, name). output: bytes of the
    model's output. blocks: in their order, where the mode shards weights. shares: of each rank, where it shards the
    optimizer's state alone."""

    trace: Trace
    phases: list[tuple[int, str]]
    output: int
    blocks: tuple[Block, ...] = ()
    shares: tuple[Share, ...] = ()

    def begin(self, phase: str) -> int:
        """How many allocations came before a phase."""
        return next(index for index, name in self.phases if name == phase)


class Device(NamedTuple):
    """What one device needs: bytes by kind at its peak, and when that is."""

    parts: dict[str, int]
    moment: str

    @property
    def total(self) -> int:
        return sum(self.parts.values())


# --- one step, simulated --------------------------------------------------------------------------------------------


class Coming(TorchDispatchMode):
    """Notes the memory of every tensor that an operation returns, and when it goes.

    events: (number, bytes). Memory is numbered in the order of its coming: two steps that do the same have the same
    numbers. on_cpu: oneDNN computes the gradient of a convolution's weight in a layout of its own, and copies it.
    """

    def __init__(self, on_cpu: bool):
        super().__init__()
        self.on_cpu = on_cpu
        self.events, self.numbers, self.there = [], itertools.count(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        own = None
        if self.on_cpu and func is torch.ops.aten.convolution_backward.default and out[1] is not None:
            own = next(self.numbers), out[1].nbytes
            self.events.append(own)
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.there:
                storage, number = tensor.untyped_storage(), next(self.numbers)
                self.there[storage._cdata] = number, storage.nbytes()
                self.events.append((number, storage.nbytes()))
                weakref.finalize(storage, self.gone, storage._cdata)
        if own:
            self.events.append((own[0], -own[1]))
        return out

    def gone(self, key: int) -> None:
        number, size = self.there.pop(key)
        self.events.append((number, -size))

    def place_of(self, tensor: torch.Tensor) -> int:
        """The number of the memory that a tensor shares with its views."""
        return self.there[tensor.untyped_storage()._cdata][0]


class Planned(base.Mode):
    """One process; with replicas, copies of the model besides the original, the CPU's DataParallel."""

    def __init__(self, config: RunConfig, replicas: list):
        self.config, self.replicas = config, replicas
        self.topology = base.Topology(0, 0, 1, 1, torch.device("cpu"))

    def wrap_model(self, model):
        if not self.replicas:
            return model
        wrapped = dp.CpuDataParallel(model, 1, threads=1)
        wrapped.num_replicas, wrapped.shells = 1 + len(self.replicas), tuple(self.replicas)
        return wrapped.in_turn()

    def unwrap(self, model):
        return model.module if self.replicas else model


def simulate(config: RunConfig, num_outputs: int, replicas: int = 1) -> Step:
    """The second of two steps on one device, when the optimizer has its state.

    config: resolved; of its mode only this is asked: what it shards. replicas: of the CPU's DataParallel, on a batch
    for each. Raises UserError as the model's building does: an unknown model, a size that it cannot take.
    """
    norm = "batch" if config.norm == "sync" else config.norm  # which keeps as much
    shards = MODES[config.mode].shards
    owners = config.num_devices if shards == ("optimizer state",) else 0
    planned = unchecked(to_dict(config) | LEFT_OUT | {"norm": norm})
    return simulated(planned, num_outputs, replicas, "weights" in shards, owners)


@functools.lru_cache(maxsize=64)  # modes share their steps
def simulated(config: RunConfig, num_outputs: int, replicas: int, blocks: bool = False, owners: int = 0) -> Step:
    """The same for a config without what makes no difference. blocks: note those of the model. owners: ranks over which
    the optimizer's state is dealt; each one's step is simulated."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    on_gpu, info = config.device == "cuda", info_of(config.data)
    as_it_is = info.numbers or info.workload != "images"
    planned = unchecked(to_dict(config) | {"device": "cpu"})
    phases, coming = [], Coming(on_cpu=not on_gpu)

    def begin(name: str) -> None:
        phases.append((len(coming.events), name))

    workload = load_workload(planned, torch.device("cpu"))
    shapes = batch_shapes(workload, config.per_device_batch * config.accumulate * replicas)
    with FakeTensorMode(), coming:
        workload.num_outputs = num_outputs
        models = [workload.model(planned, 0, lambda sentence: None) for _ in range(replicas)]
        mode = Planned(planned, models[1:])
        model = mode.wrap_model(models[0])
        plain = mode.unwrap(model)
        optimizer = optimizer_of(planned, plain, workload.groups(plain), on_gpu)
        optimizer.register_step_pre_hook(lambda *_: begin(STEPPING))
        optimizer.register_step_post_hook(lambda *_: begin(STEPPED))
        script, status = Script(planned, mode, workload), SimpleNamespace(phase=begin)
        trainer = Trainer(planned, mode, model, optimizer, lambda images: 0.1, status, None, script)
        trainer.scaler = torch.amp.GradScaler("cpu", enabled=False)  # it asks for numbers
        outputs = []
        parts = blocks_in(models[0]) if blocks else []
        marks = [[] for _ in parts]  # of each block, how many allocations came before its forward passes and their ends
        for part, moments in zip(parts, marks, strict=True):
            part.register_forward_pre_hook(lambda *_, moments=moments: moments.append(len(coming.events)))
            part.register_forward_hook(lambda *_, moments=moments: moments.append(len(coming.events)))
        hook = models[0].register_forward_hook(
            lambda *seen: outputs.append(sum(tensor.untyped_storage().nbytes() for tensor in tensors(seen[2])))
        )
        raw, targets = (each(lambda shape: torch.zeros(shape.shape, dtype=shape.dtype), item) for item in shapes)
        for _ in range(2):
            older = {coming.place_of(tensor) for kind, tensor in holdings(trainer) if kind == "gradients"}
            coming.events.clear(), phases.clear(), [moments.clear() for moments in marks]
            batch = prepared(config, raw, as_it_is)
            trainer.take_step(batch, targets)
            noted = {coming.place_of(tensor): "images" for tensor in tensors((raw, batch, targets))}
        known = {coming.place_of(tensor): kind for kind, tensor in reversed(list(holdings(trainer)))}
        after, seen = dict(coming.there.values()), list(coming.events)
        shares = []
        for rank in range(owners):
            own = [dict(group, params=dealt(group["params"], owners)[rank]) for group in optimizer.param_groups]
            own = [group for group in own if group["params"]]
            shares.append(share_of(optimizer_of(planned, plain, own, on_gpu), coming) if own else Share([], {}))
        hook.remove()
        sizes = [sum(p.nbytes for p in part.parameters()) for part in parts]
        places = [{coming.place_of(p.grad) for p in part.parameters() if p.grad is not None} for part in parts]
    if on_gpu and not as_it_is:
        after.pop(coming.place_of(raw), None)  # bytes are sent, and gone when they are numbers
    # The gradients of the step before go first: no peak is there, and with views of buckets nothing goes.
    going = [i for i, (place, size) in enumerate(seen) if place in older and size < 0][: len(older)]
    events = [event for i, event in enumerate(seen) if i not in set(going)]

    def now(index: int) -> int:
        return index - sum(i < index for i in going)

    phases = [(now(index), name) for index, name in phases]
    found = [Block(now(begin), now(end), *rest) for (*_, begin, end), *rest in zip(marks, sizes, places, strict=True)]
    return Step(Trace(events, after, noted | known, noted), phases, outputs[-1], tuple(found), tuple(shares))


def optimizer_of(config: RunConfig, model, groups: list | None, on_gpu: bool) -> torch.optim.Optimizer:
    """The config's optimizer, as it goes about its step on that device."""
    optimizer = build_optimizer(config, model, groups)
    if on_gpu and not config.fused:  # torch's default there: all parameters in few kernels, with copies of them all
        for group in optimizer.param_groups:
            group["foreach"] = True
    return optimizer


def share_of(optimizer: torch.optim.Optimizer, coming: Coming) -> Share:
    """The second step of an optimizer that has some of the parameters, whose gradients are there."""
    optimizer.step()
    before = len(coming.events)
    optimizer.step()
    events = coming.events[before:]
    own = {place for place, size in events if size > 0}  # what else goes meanwhile is not the step's
    state = [value for of_one in optimizer.state.values() for value in of_one.values() if torch.is_tensor(value)]
    sizes = {coming.place_of(value): value.untyped_storage().nbytes() for value in state}
    return Share([event for event in events if event[0] in own], sizes)


def blocks_in(model) -> list:
    """What MODE=fsdp shards as one."""
    from bench.modes.fsdp import blocks_of  # torch's FSDP takes a while to import

    return [block for _, block in blocks_of(model)]


def between(first: Step, second: Step, batches: tuple[int, int], batch: int) -> Step | None:
    """The step of another batch, from two that were simulated: every tensor is as large as a line through both says.

    Exact, for a tensor has so many bytes an image, or none. None where the two steps did not do the same.
    """
    a, b = first.trace, second.trace
    if [(place, size > 0) for place, size in a.events] != [(place, size > 0) for place, size in b.events]:
        return None
    if a.after.keys() != b.after.keys() or a.kinds != b.kinds:
        return None

    def size(one: int, other: int) -> int:
        return one + (other - one) * (batch - batches[0]) // (batches[1] - batches[0])

    events = [(place, size(one, other)) for (place, one), (_, other) in zip(a.events, b.events, strict=True)]
    after = {place: size(one, b.after[place]) for place, one in a.after.items()}
    return first._replace(trace=a._replace(events=events, after=after), output=size(first.output, second.output))


def batch_shapes(workload, examples: int) -> list:
    """Inputs and targets of so many examples, without their memory. Raises UserError where the workload cannot say."""

    def shape(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_empty((examples, *tensor.shape[1:]), device="meta")

    return [each(shape, item) for item in workload.planned(1)]


def prepared(config: RunConfig, raw, as_it_is: bool):
    """A batch as the workload prepares it."""
    images = raw if as_it_is else raw.float()
    return images.contiguous(memory_format=torch.channels_last) if config.channels_last else images


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

    Two batches are simulated, BATCH and twice that; all others lie on lines through these.
    """
    batches = config.per_device_batch, 2 * config.per_device_batch

    def step(asked: RunConfig, outputs: int, replicas: int = 1) -> Step:
        ends = [
            simulate(unchecked(to_dict(asked) | {"per_device_batch": batch}), outputs, replicas) for batch in batches
        ]
        return between(*ends, batches, asked.per_device_batch) or simulate(asked, outputs, replicas)

    def fits(batch: int) -> bool:
        planned = unchecked(to_dict(config) | {"per_device_batch": batch})  # more than a data set has, perhaps
        return max(device.total for device in of_devices(planned, num_outputs, step)) <= limit

    return last_that(fits, most)


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
