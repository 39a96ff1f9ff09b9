"""A model and an optimizer that sleep as long as a device computed, and have gradients of the real sizes.

The model is a chain with a link for each parameter, in the reverse of the order in which gradients were ready. A link's
forward waits until the next one was needed; its backward waits until its gradient was ready, and returns a constant
one. For DDP, Horovod and FSDP it is an ordinary module, so what they hook, gather and reduce is real.
"""

import itertools
import time

import torch
from torch import nn

from bench.predict.step.profile import Profile, Tensor

FILL = 1e-3  # of every gradient: a matrix of it has rank 1, which PowerSGD can take


class Pace:
    """The waits of this process. waited: (begin, end) of each wait of this step."""

    def __init__(self):
        self.step(1.0)

    def step(self, scale: float) -> None:
        """A step begins. scale: seconds per second of the profile."""
        self.scale, self.late, self.waited = scale, 0.0, []

    def wait(self, began: float, seconds: float) -> None:
        """Sleep until this many seconds of the profile after ``began``, minus the excess of earlier sleeps."""
        end = began + seconds * self.scale - self.late
        if (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        now = time.perf_counter()
        self.late = now - end
        self.waited.append((began, now))


PACE = Pace()  # of this process


class Waits(torch.autograd.Function):
    """x [1] -> x, with a wait in forward and in backward; the weight's gradient is constant, None without a weight."""

    @staticmethod
    def forward(ctx, x, weight, forward_s: float, backward_s: float):
        began = time.perf_counter()
        ctx.shape, ctx.backward_s = None if weight is None else weight.shape, backward_s
        PACE.wait(began, forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        began = time.perf_counter()
        of_weight = None if ctx.shape is None else torch.full(ctx.shape, FILL)
        PACE.wait(began, ctx.backward_s)
        return gradient, of_weight, None, None


class Chain(nn.Module):
    """spans: (seconds of forward, of backward) of each tensor."""

    def __init__(self, tensors: list[Tensor], spans: list[tuple[float, float]]):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(tensor.shape)) for tensor in tensors])
        self.spans = spans

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, (forward_s, backward_s) in zip(self.weights, self.spans, strict=True):
            x = Waits.apply(x, weight, forward_s, backward_s)
        return x


class StandIn(nn.Module):
    """The model of a profile. forward(x [1], which requires a gradient) -> [1]."""

    def __init__(self, profile: Profile):
        super().__init__()
        self.blocks, self.order = nn.ModuleList(), []  # FSDP shards a ModuleList's members (bench.structure.blocks_of)
        self.others = nn.Module()  # not in a block: not a list, so FSDP shards it with the root
        tensors = chain_of(profile)
        spans = dict(zip(tensors, spans_of(profile, tensors), strict=True))
        for _, same in itertools.groupby(tensors, key=lambda tensor: tensor.block):
            part = list(same)
            chain = Chain(part, [spans[tensor] for tensor in part])
            if part[0].block:
                self.blocks.append(chain)
            else:
                self.others.add_module(str(len(self.order)), chain)
            self.order.append(chain)
        # Before the first use of a parameter, and in backward after the last gradient.
        self.head = min(tensor.needed_s for tensor in tensors), profile.backward_s - tensors[0].ready_s
        for number, (dtype, nbytes) in enumerate(profile.buffers):
            kind = getattr(torch, dtype)
            self.register_buffer(f"buffer{number}", torch.zeros(nbytes // kind.itemsize, dtype=kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Waits.apply(x, None, *self.head)
        for part in self.order:
            x = part(x)
        return x


def chain_of(profile: Profile) -> list[Tensor]:
    """The parameters in the order of a forward pass, each block together; the last gradient's comes first."""
    last = {}
    for tensor in profile.tensors:
        key = tensor.block or tensor.name
        last[key] = max(last.get(key, 0.0), tensor.ready_s)
    return sorted(profile.tensors, key=lambda tensor: (-last[tensor.block or tensor.name], tensor.block,
                                                       -tensor.ready_s))  # fmt: skip


def spans_of(profile: Profile, tensors: list[Tensor]) -> list[tuple[float, float]]:
    """(seconds of forward, of backward) of each link. Forward: from its first use to the next link's, 0 where that was
    earlier. Backward goes through the chain from its end: from the gradient before."""
    forward, now = [], min(tensor.needed_s for tensor in tensors)
    for end in [tensor.needed_s for tensor in tensors[1:]] + [profile.forward_s]:
        forward.append(max(0.0, end - now))
        now = max(now, end)
    backward, now = [], 0.0
    for tensor in reversed(tensors):
        backward.append(max(0.0, tensor.ready_s - now))
        now = max(now, tensor.ready_s)
    return list(zip(forward, reversed(backward), strict=True))


class WaitingOptimizer(torch.optim.Optimizer):
    """Its step waits ``seconds_per_byte`` of the parameters that this rank has."""

    def __init__(self, params, seconds_per_byte: float = 0.0):
        super().__init__(params, {"seconds_per_byte": seconds_per_byte})

    def step(self, closure=None) -> None:
        began, seconds = time.perf_counter(), 0.0
        for group in self.param_groups:
            held = [p.to_local() if hasattr(p, "to_local") else p for p in group["params"]]  # FSDP's are sharded
            seconds += group["seconds_per_byte"] * sum(p.nbytes for p in held)
        PACE.wait(began, seconds)
