"""One step of DDP, Horovod, ZeRO-1 or FSDP, simulated event by event: when messages are sent, and what waits for them.

All ranks do the same at the same time, so one rank is simulated. Times are seconds from the beginning of the step.
``ENGINES``: mode -> function (profile, config, ranks, link) -> Step. Times of messages are by bench/formulas.py. Not
modelled: sums and copies of bytes, PowerSGD's matrix products, cores that communication takes from computation.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench import formulas
from bench.config.options import RunConfig
from bench.config.sections import Exchange, Fsdp
from bench.predict.step.link import AT_ONCE, Link
from bench.predict.step.profile import Profile, Tensor

MIB = 2**20
FIRST_BUCKET_MIB, BUCKET_MIB = 1, 25  # DDP's defaults
FUSION_MIB, CYCLE_MS = 128, 1.0  # Horovod 0.28.1's
PIECE = MIB  # the largest of Gloo's all-reduce (gloo/allreduce.h)
POWER_SGD_PARTS = 3  # all-reduces of a bucket: uncompressed tensors, and two matrices

# The terms of a step.
REST, FORWARD, BACKWARD, OPTIMIZER = COMPUTED = ("rest of the step", "forward", "backward", "optimizer")
BUFFERS, GRADIENTS = "buffers sent", "gradients exchanged, not hidden"
WEIGHTS, GATHERED = "weights sent", "weights gathered, not hidden"
SYNCHRONIZE = "synchronize"  # a phase between backward and optimizer, in which nothing is computed


@dataclass
class Step:
    """terms: seconds by name, which add up to the step. sent: (name, begin, end, bytes before compression) of each
    message. computed: (term, begin, end) of computation. waits_in: the phase in which the rank waits for gradients."""

    terms: dict[str, float] = field(default_factory=dict)
    sent: list[tuple[str, float, float, int]] = field(default_factory=list)
    computed: list[tuple[str, float, float]] = field(default_factory=list)
    waits_in: str = BACKWARD

    def add(self, name: str, seconds: float) -> None:
        begin = self.seconds
        self.terms[name] = self.terms.get(name, 0.0) + seconds
        if name in COMPUTED:
            self.computed.append((name, begin, begin + seconds))

    @property
    def seconds(self) -> float:
        return sum(self.terms.values())

    @property
    def exposed_s(self) -> float:
        return sum(seconds for name, seconds in self.terms.items() if name not in COMPUTED)


@dataclass(eq=False)
class Message:
    """It can be sent at ready_s, and takes latency_s, then wire_s on an otherwise idle link."""

    name: str
    ready_s: float
    latency_s: float
    wire_s: float
    nbytes: int
    begin_s: float = 0.0
    end_s: float = 0.0


def message_times(messages: Iterable[Message], at_once: int) -> list[tuple[str, float, float, int]]:
    """(name, begin, end, bytes) of messages sent in order, at most ``at_once`` at a time, which share the link.

    >>> two = [Message("a", 0.0, 0.0, 2.0, 1), Message("b", 1.0, 0.0, 2.0, 1)]
    >>> message_times(two, at_once=1)
    [('a', 0.0, 2.0, 1), ('b', 2.0, 4.0, 1)]
    >>> message_times(two, at_once=2)  # from 1 on each has half: a needs 1 more, so 2 s
    [('a', 0.0, 3.0, 1), ('b', 1.0, 4.0, 1)]
    """
    messages = [dataclasses.replace(message) for message in messages]  # their times count down to 0
    waiting, active, now = messages[::-1], [], 0.0
    while waiting or active:
        while waiting and len(active) < at_once and waiting[-1].ready_s <= now:
            active.append(waiting.pop())
            active[-1].begin_s = now
        if not active:
            now = waiting[-1].ready_s
            continue
        sharing = sum(not each.latency_s for each in active)
        left = [each.latency_s or each.wire_s * sharing for each in active]  # until the latency or the message ends
        seconds = min(left)
        if waiting and len(active) < at_once:
            seconds = min(seconds, waiting[-1].ready_s - now)
        now += seconds
        for each, left_s in zip(active, left, strict=True):
            ends = left_s <= seconds
            if each.latency_s:
                each.latency_s = 0.0 if ends else each.latency_s - seconds
            else:
                each.wire_s = 0.0 if ends else each.wire_s - seconds / sharing
            each.end_s = now
        active = [each for each in active if each.latency_s + each.wire_s > 0]
    return [(each.name, each.begin_s, each.end_s, each.nbytes) for each in messages]


def ddp(profile: Profile, config: RunConfig, ranks: int, link: Link) -> Step:
    """In backward a bucket is sent when its last gradient is ready, behind the buckets before it."""
    step = Step()
    step.add(REST, profile.other_s)
    if config.broadcast_buffers and ranks > 1:  # a message per dtype, before forward
        step.add(BUFFERS, sum(broadcast_s(nbytes, ranks, link) for _, nbytes in profile.buffers))
    step.add(FORWARD, profile.forward_s)
    step.add(BACKWARD, profile.backward_s)
    begin = step.seconds - profile.backward_s
    buckets = buckets_of(profile, config.bucket_cap_mb)
    ready = [begin + max(tensor.ready_s for tensor in bucket) for bucket in buckets]
    if not config.overlap:
        ready = [step.seconds] * len(buckets)
    messages = [of_bucket(number, bucket, at, config, ranks, link)
                for number, (bucket, at) in enumerate(zip(buckets, ready, strict=True))]  # fmt: skip
    if config.overlap and config.compression == "powersgd" and link.carrier == "gloo":
        step.sent, late = one_by_one(messages)  # its hook blocks backward (bench/modes/ddp.py)
        moments = [begin, *(moment for _, *moments, _ in step.sent for moment in moments), step.seconds + late]
        step.computed[-1:] = [(BACKWARD, *ends) for ends in zip(moments[::2], moments[1::2], strict=True)]
        step.add(GRADIENTS, late)
    else:
        step.sent = message_times(messages, AT_ONCE[link.carrier] if config.overlap else 1)
        step.add(GRADIENTS, max(0.0, max(end for _, _, end, _ in step.sent) - step.seconds))
    step.add(OPTIMIZER, profile.optimizer_s)
    return step


def buckets_of(profile: Profile, cap_mib: float | None) -> list[list[Tensor]]:
    """The gradients by bucket, in the order in which they are ready, as DDP has them from the second step on. A bucket
    with the cap or more is full (``compute_bucket_assignment_by_size`` of torch/csrc/distributed/c10d/reducer.cpp)."""
    caps = [FIRST_BUCKET_MIB, BUCKET_MIB] if cap_mib is None else [cap_mib]
    buckets, filled = [[]], 0
    for tensor in in_ready_order(profile):
        if filled >= caps[min(len(buckets), len(caps)) - 1] * MIB:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += tensor.nbytes
    return buckets


def in_ready_order(profile: Profile) -> list[Tensor]:
    return sorted(profile.tensors, key=lambda tensor: tensor.ready_s)


def of_bucket(number: int, bucket: list[Tensor], ready_s: float, config: Exchange, ranks: int, link: Link) -> Message:
    whole = sum(tensor.nbytes for tensor in bucket)
    compressed = config.compression if config.overlap else "none"
    parts = POWER_SGD_PARTS if compressed == "powersgd" else 1
    nbytes = {
        "fp16": whole / 2, "bf16": whole / 2,
        "powersgd": sum(formulas.power_sgd_bytes(tensor.shape) for tensor in bucket),
    }.get(compressed, whole)  # fmt: skip
    latency_s = parts * all_reduce_s(0, ranks, link) + idle_s(nbytes, ranks, link)
    wire_s = formulas.ring_all_reduce_s(nbytes, ranks, 0.0, link.of_ring(ranks).beta_s)
    return Message(f"bucket {number}", ready_s, latency_s, wire_s, whole)


def one_by_one(messages: list[Message]) -> tuple[list[tuple[str, float, float, int]], float]:
    """Messages each of which delays everything after it, and the delay of all."""
    sent, late = [], 0.0
    for message in messages:
        begin = message.ready_s + late
        late += message.latency_s + message.wire_s
        sent.append((message.name, begin, message.ready_s + late, message.nbytes))
    return sent, late


def all_reduce_s(nbytes: float, ranks: int, link: Link) -> float:
    ring = link.of_ring(ranks)
    return formulas.ring_all_reduce_s(nbytes, ranks, ring.alpha_s, ring.beta_s) + idle_s(nbytes, ranks, link)


def gather_s(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds of an all-gather. A beta measured by an all-reduce contains its idle time; half of it is replaced by the
    gather's own, whose pieces are larger."""
    link = link.gather or link
    ring = link.of_ring(ranks)
    seconds = formulas.ring_gather_s(nbytes, ranks, ring.alpha_s, ring.beta_s)
    if link.carrier != "gloo":
        return seconds
    measured = formulas.gloo_idle_s(nbytes, ranks, ring.beta_s, PIECE) / 2 if link.idle_in_beta else 0.0
    return seconds - measured + formulas.gloo_idle_s(nbytes, ranks, ring.beta_s)


def scatter_s(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds of a reduce-scatter. With Gloo torch does it by an all-reduce (``reduce_scatter_tensor_coalesced`` of
    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp)."""
    if link.carrier == "gloo":
        return all_reduce_s(nbytes, ranks, link.scatter or link)
    ring = (link.scatter or link).of_ring(ranks)
    return formulas.ring_gather_s(nbytes, ranks, ring.alpha_s, ring.beta_s)


def idle_s(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds of an all-reduce in which the link is idle, unless beta contains them."""
    if link.carrier != "gloo" or link.idle_in_beta:
        return 0.0
    return formulas.gloo_idle_s(nbytes, ranks, link.of_ring(ranks).beta_s, PIECE)


def broadcast_s(nbytes: float, ranks: int, link: Link) -> float:
    seconds = formulas.tree_broadcast_s(nbytes, math.ceil(ranks / link.per_node), link.alpha_s, link.beta_s)
    if link.inside:
        inside = min(ranks, link.per_node)
        seconds += formulas.tree_broadcast_s(nbytes, inside, link.inside.alpha_s, link.inside.beta_s)
    return seconds


def horovod(profile: Profile, config: RunConfig, ranks: int, link: Link) -> Step:
    """In each cycle a thread agrees with the other ranks on the ready gradients, packs them and sends them. With Gloo
    it waits for the reduction before the next cycle; NCCL's are asynchronous."""
    step = Step(waits_in=SYNCHRONIZE)
    for name, seconds in ((REST, profile.other_s), (FORWARD, profile.forward_s), (BACKWARD, profile.backward_s)):
        step.add(name, seconds)
    end = step.seconds
    begin, cycle_s = end - profile.backward_s, (config.cycle_time_ms or CYCLE_MS) / 1000
    most = (config.fusion_mb or FUSION_MIB) * MIB
    waiting = [(begin + tensor.ready_s if config.overlap else end, tensor) for tensor in in_ready_order(profile)]
    agree_s = all_reduce_s(0, ranks, link)  # a bit for each tensor
    woken, free = begin, begin  # the last cycle began; the link is free
    now = begin
    each_s = max(cycle_s, agree_s)  # a cycle with nothing ready
    while waiting:
        woken = max(now, woken + cycle_s)
        now = woken = woken + each_s * max(0, math.ceil((waiting[0][0] - woken) / each_s))
        there = [tensor for ready_s, tensor in waiting if ready_s <= woken]
        waiting = [entry for entry in waiting if entry[0] > woken]
        now += agree_s
        for fused in fusions(there, most):
            nbytes = sum(tensor.nbytes for tensor in fused)
            sent = nbytes / 2 if config.compression == "fp16" and config.overlap else nbytes
            start = max(now, free)
            free = start + all_reduce_s(sent, ranks, link)
            step.sent.append((f"fusion {len(step.sent)}", start, free, nbytes))
            now = free if link.carrier == "gloo" else now
    step.add(GRADIENTS, max(0.0, free - end))
    step.add(OPTIMIZER, profile.optimizer_s)
    return step


def fusions(tensors: list[Tensor], most: float) -> list[list[Tensor]]:
    """Tensors that are sent together, in order: as many as the fusion buffer holds."""
    found, filled = [], most
    for tensor in tensors:
        if filled + tensor.nbytes > most:
            found.append([])
            filled = 0
        found[-1].append(tensor)
        filled += tensor.nbytes
    return found


def zero1(profile: Profile, config: RunConfig, ranks: int, link: Link) -> Step:
    """DDP with ``ZeroRedundancyOptimizer``: the optimizer's step of the rank that owns most, then every parameter is
    broadcast by its owner."""
    step = ddp(profile, config, ranks, link)
    owned = owners(profile.tensors, min(ranks, len(profile.tensors)), lambda tensor: tensor.nbytes)
    step.computed.pop()
    seconds = step.terms.pop(OPTIMIZER)
    step.add(OPTIMIZER, seconds * max(sum(tensor.nbytes for tensor in own) for own in owned) / profile.nbytes)
    latency_s, sizes = broadcast_s(0, ranks, link), [tensor.nbytes for own in owned for tensor in own]
    messages = [Message(WEIGHTS, step.seconds, latency_s, broadcast_s(nbytes, ranks, link) - latency_s, nbytes)
                for nbytes in sizes]  # fmt: skip
    sent = message_times(messages, AT_ONCE[link.carrier])
    step.add(WEIGHTS, max(end for _, _, end, _ in sent) - step.seconds)
    step.sent += sent
    return step


def owners(tensors: Iterable, ranks: int, size: Callable[[object], int]) -> list[list]:
    """The parameters of each rank: the largest first, each to the rank with the least so far (``_partition_parameters``
    of torch/distributed/optim/zero_redundancy_optimizer.py)."""
    owned, sizes = [[] for _ in range(ranks)], [0] * ranks
    for tensor in sorted(tensors, key=size, reverse=True):
        least = sizes.index(min(sizes))
        owned[least].append(tensor)
        sizes[least] += size(tensor)
    return owned


def fsdp(profile: Profile, config: Fsdp, ranks: int, link: Link) -> Step:
    """One step of ``fully_shard``: a block's weights are gathered before it computes, forward and backward, and its
    gradients scattered. Parameters outside of blocks are gathered first, kept, and scattered last. On GPUs collectives
    overlap with computation, and the next block's weights are prefetched; over Gloo each collective blocks."""
    step, line = Step(), Line(link, ranks, ahead=0 if link.carrier == "gloo" else config.prefetch or 1)
    step.add(REST, profile.other_s)
    line.now = line.free = profile.other_s
    sizes = Counter()
    for tensor in profile.tensors:
        sizes[tensor.block] += tensor.nbytes
    forward, backward = passes_of(profile)
    rest = sizes.pop("", 0)
    if rest:
        line.gather("the rest", rest)
        line.wait("the rest")
    line.computes(FORWARD, forward, sizes, gathers=True)
    line.computes(BACKWARD, backward, sizes, gathers=config.reshard, scatters=True)
    if rest:
        line.scatter("the rest", rest)
    line.now = max(line.now, line.free)
    step.add(FORWARD, profile.forward_s)
    step.add(BACKWARD, profile.backward_s)
    step.add(GATHERED, line.waited)
    step.add(GRADIENTS, line.now - step.seconds)
    step.computed = [*step.computed[:1], *line.computed]
    step.add(OPTIMIZER, profile.optimizer_s / ranks)
    step.sent = line.sent
    return step


def passes_of(profile: Profile) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """(block, seconds) of computation in order, forward and backward; "" is outside of blocks. In forward a parameter's
    time is from its first use to that of the next; in backward it ends with its gradient."""
    uses, ready = sorted(profile.tensors, key=lambda tensor: tensor.needed_s), in_ready_order(profile)
    begins = [0.0, *(tensor.needed_s for tensor in uses[1:]), profile.forward_s]
    ends = [0.0, *(tensor.ready_s for tensor in ready), profile.backward_s]
    forward = [tensor.block for tensor in uses], begins
    backward = [*(tensor.block for tensor in ready), ready[-1].block], ends
    found = []
    for blocks, moments in (forward, backward):
        lengths = [end - begin for begin, end in itertools.pairwise(moments)]
        same = itertools.groupby(zip(blocks, lengths, strict=True), key=lambda entry: entry[0])
        found.append([(block, sum(seconds for _, seconds in entries)) for block, entries in same])
    return tuple(found)


class Line:
    """A rank under FSDP and its link. ahead: number of blocks to prefetch; 0: each collective blocks."""

    def __init__(self, link: Link, ranks: int, ahead: int):
        self.link, self.ranks, self.ahead = link, ranks, ahead
        self.now = self.free = self.waited = 0.0  # waited: for weights
        self.there = {}  # block -> when its weights have arrived
        self.sent, self.computed = [], []

    def collective(self, name: str, nbytes: int, seconds: float) -> float:
        begin = max(self.now, self.free)
        self.free = begin + seconds
        self.sent.append((name, begin, self.free, nbytes))
        return self.free

    def gather(self, block: str, nbytes: int) -> None:
        self.there[block] = self.collective(f"gather {block}", nbytes, gather_s(nbytes, self.ranks, self.link))

    def wait(self, block: str) -> None:
        self.waited += max(0.0, self.there[block] - self.now)
        self.now = max(self.now, self.there[block])

    def scatter(self, block: str, nbytes: int) -> None:
        """Send a block's gradients."""
        end = self.collective(f"scatter {block}", nbytes, scatter_s(nbytes, self.ranks, self.link))
        if not self.ahead:
            self.now = end

    def computes(self, name: str, passes: list[tuple[str, float]], sizes: dict, gathers: bool,
                 scatters: bool = False) -> None:  # fmt: skip
        """A forward or backward pass over the blocks. A block's gradients are sent after its last computation."""
        turns = list(dict.fromkeys(block for block, _ in passes if block))
        last = {block: place for place, (block, _) in enumerate(passes)}
        if gathers:
            self.there = {block: at for block, at in self.there.items() if block not in sizes}
        for place, (block, seconds) in enumerate(passes):
            if block:
                turn = turns.index(block)
                for each in turns[turn : turn + 1 + self.ahead]:
                    if each not in self.there:
                        self.gather(each, sizes[each])
                self.wait(block)
            self.computed.append((name, self.now, self.now + seconds))
            self.now += seconds
            if scatters and block and last[block] == place:
                self.scatter(block, sizes[block])


ENGINES = {engine.__name__: engine for engine in (ddp, horovod, zero1, fsdp)}
