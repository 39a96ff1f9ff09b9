"""Gradients: a rank's own, before any exchange, and the ones that its optimizer gets."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bench.observe.listening import BEGINS, ENDS
from bench.observe.probe import Probe, held_by
from bench.observe.together import columns, finite
from bench.observe.weights import Weights
from bench.observe.zeroed import nonzero

SAMPLED_GRADIENTS = 200_000  # numbers of a gradient that are compared, 0.8 MB per rank
LOOKED_AT = 2  # steps of an optimizer: a clipped gradient may be any part of the mean by chance in one
TRIES = 20  # steps in which these are looked for: a GradScaler skips some, and in others nothing is finite
SYNC_STEPS = 20  # in which it is looked at whether the last pass was exchanged


class GradientProbe:
    """A rank's own gradient of one step, and the one that its optimizer gets.

    A hook on a parameter sees what backward gives it, before any exchange. Over several backward passes (accumulation)
    the own gradients are summed up, as the parameters do; where these were zeroed the sum starts again. Of each
    parameter the first numbers are kept, equally for all, SAMPLED_GRADIENTS at the most. heard: called with each
    gradient.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        guarded: Callable = lambda call: call,
        heard: Callable[[], None] = lambda: None,
    ):
        self.heard = heard
        self.parameters = [p for p in parameters if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        self.share = min(1.0, SAMPLED_GRADIENTS / max(1, total))
        self.own = [None] * len(self.parameters)
        self.final, self.passes, self.counts = None, 0, [0] * len(self.parameters)
        self.hooks = [p.register_hook(guarded(self.adder(number))) for number, p in enumerate(self.parameters)]

    def adder(self, number: int) -> Callable[[torch.Tensor], None]:
        """A hook that adds to a parameter's own gradient, and returns nothing: the gradient stays as it is."""

        def add(gradient: torch.Tensor) -> None:
            self.heard()
            if gradient.is_sparse:
                return
            some, own, held = self.some(gradient), self.own[number], nonzero(self.parameters[number].grad)
            if held is None:  # what came before has been zeroed
                own, self.counts[number] = None, 0
            self.counts[number] += 1
            self.passes = max(self.passes, self.counts[number])
            self.own[number] = some if own is None else torch.where(held, own, 0) + some

        return add

    def some(self, gradient: torch.Tensor) -> torch.Tensor:
        """The first numbers of a gradient, copied."""
        flat = gradient.detach().reshape(-1)
        return flat[: max(1, int(self.share * flat.numel()))].float().clone()

    def look(self, held: set[int] | None = None) -> None:
        """The gradients are final, as far as is known: the last look before ``close`` counts. held: ids of the
        parameters that are stepped with; None: all."""
        grads = [p.grad if held is None or id(p) in held else None for p in self.parameters]
        self.final = [None if grad is None or grad.is_sparse else self.some(grad) for grad in grads]

    def forget(self, held: set[int]) -> None:
        """These parameters have been stepped with: what they had is over. The others still wait for their step."""
        for number, p in enumerate(self.parameters):
            if id(p) in held:
                self.own[number], self.counts[number] = None, 0
        self.final = None

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def result(self, scale: float = 1.0) -> dict[int, tuple[np.ndarray, np.ndarray]] | None:
        """Own and final gradient of each parameter that has both, by its number, as flat arrays; None where there is
        none, or a number that is not finite. scale: what the own gradients are multiplied by."""
        if self.final is None:
            return None
        pairs = enumerate(zip(self.own, self.final, strict=True))
        known = [(number, own, final) for number, (own, final) in pairs if own is not None and final is not None]
        if not known:
            return None
        own, final = (torch.cat([pair[side] for pair in known]).cpu().numpy() for side in (1, 2))
        own = own / np.float32(scale)
        if not (np.isfinite(own).all() and np.isfinite(final).all()):
            return None
        ends = np.cumsum([len(pair[1]) for pair in known])[:-1]
        pieces = zip(known, np.split(own, ends), np.split(final, ends), strict=True)
        return {number: (mine, exchanged) for (number, _, _), mine, exchanged in pieces}


def ratio_of(own: list[np.ndarray], final: list[np.ndarray]) -> dict | None:
    """One step: the exchanged gradient G compared with m, the mean of the ranks' own: <G, m> / <m, m>, 1 for G = m.

    own, final: by rank, [n]. over_mean: of rank 0. same_on_all_ranks: whether all have the same G. exchanged: False
    where every rank's G is its own gradient, or a multiple of it, and no other's. None where that is no number.
    """
    mean = np.mean(own, axis=0, dtype=np.float64)
    with np.errstate(all="ignore"):
        ratio = finite(final[0].astype(np.float64) @ mean / (mean @ mean))
    if ratio is None:
        return None
    same = all(np.array_equal(each, final[0], equal_nan=True) for each in final)
    alone = not same and all(parallel(a, b) for a, b in zip(own, final, strict=True))
    return {"over_mean": ratio, "same_on_all_ranks": same, "exchanged": not alone}


def parallel(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two gradients are multiples of each other, but for rounding."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(all="ignore"):
        cosine = (a @ b) / np.sqrt((a @ a) * (b @ b))
    return bool(cosine > 1 - 1e-6)


def gradient_of(parts: list[dict]) -> dict | None:
    """The steps that all ranks looked at. Of several the ratio is the one that is nearest to 1: what is wrong is wrong
    in all of them. steady: whether it is the same in all, as it is not where gradients are clipped.

    A part: looks, own and final gradient by the number of the parameter, or by its name where the model does not hold
    it; of a Watch also outside, the names of all of these that are trained.
    """
    steps = list(zip(*(part["looks"] for part in parts), strict=False))
    common = [(looks, set.intersection(*map(set, looks))) for looks in steps]
    each = [(name, found) for looks, names in common for name in names if (found := compared(looks, [name]))]
    alone = {name for name, found in each if not found["exchanged"]}
    numbers = {name for name, _ in each if isinstance(name, int)}
    numbers = numbers - alone or numbers
    steps = [found for looks, names in common if (found := compared(looks, sorted(numbers & names)))]
    if not steps:
        return None
    ratios = [step["over_mean"] for step in steps]
    nearest = min(steps, key=lambda step: abs(np.log(abs(step["over_mean"]) or 1e-30)))
    found = {
        "over_mean": nearest["over_mean"],
        "same_on_all_ranks": all(step["same_on_all_ranks"] for step in steps),
        "exchanged": any(step["exchanged"] for step in steps),
        "steady": max(ratios) - min(ratios) <= 0.02 * abs(nearest["over_mean"]),
        "passes": max(part["passes"] for part in parts),
        "kind": parts[0]["kind"],
    }
    return found | in_parts(found, alone, {name for name, _ in each}, parts) if "outside" in parts[0] else found


def compared(looks: tuple[dict, ...], names: list) -> dict | None:
    """``ratio_of`` of some parameters. looks: one step's, by rank. None where the ranks' differ in length."""
    if not names:
        return None
    own, final = ([np.concatenate([look[name][side] for name in names]) for look in looks] for side in (0, 1))
    return ratio_of(own, final) if len({len(each) for each in (*own, *final)}) == 1 else None


def in_parts(found: dict, alone: set, known: set, parts: list[dict]) -> dict:
    """What is not the same for all parameters. own: those outside the model that each rank steps with its own gradient
    of. Where this is so of some of the model's, or not known of some outside, "exchanged" is not known."""
    own = sorted(name for name in alone if isinstance(name, str))
    more = {"own": own, "gathers": any(part["gathers"] for part in parts)}
    if found["exchanged"] and len(alone) > len(own):
        why = f"each rank steps {len(alone)} parameters with its own gradient, and the others are exchanged"
    elif found["exchanged"] and not own and any(set(part["outside"]) - known for part in parts):
        why = "the gradients of some parameters outside the model were not seen"
    else:
        return more
    return more | {"exchanged": None, "unheard": {"exchanged": why}}


def scale_of(scaler: torch.amp.GradScaler | None, optimizer) -> float:
    """What the hooks' gradients are multiplied by, and those in this optimizer's step are not."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    with contextlib.suppress(Exception):  # torch's names for it are its own
        state = scaler._per_optimizer_states[id(optimizer)]
        if "UNSCALED" not in str(state["stage"]) and getattr(optimizer, "grad_scale", None) is not None:
            return 1.0  # a fused optimizer divides for itself
    return float(scaler.get_scale())


class Gradients(Probe):
    """The gradients of the first steps of each optimizer that follow a backward pass of the model.

    In a step only the gradients of its optimizer are final. Those of another optimizer are compared in its own step:
    Horovod exchanges them there, a GradScaler divides them, and those that a generator's loss leaves in a discriminator
    are zeroed before it.

    gathers: whether the ranks speak to each other between a forward of the wrapped model and its backward pass, as
    where a layer is cut over them.
    """

    joins: ClassVar = {"gradient": gradient_of}
    silent: ClassVar = {"gradient": "no step of the optimizer was seen whole"}
    probe = None
    in_step = False  # whether a step has called a closure: its gradients are of several passes

    def follow(self, model, optimizer) -> None:
        self.close()
        self.looks, self.tries, self.passes = [], 0, 0
        self.looked, self.done = Counter(), set()  # looks by optimizer; ids of parameters that have had enough of them
        self.begin_step()
        self.scaler = None
        self.listen(torch.amp.GradScaler, "scale", self.scaled)
        self.listen(torch.amp.GradScaler, "update", self.updated)
        self.sent, self.gathers = None, False
        self.listen(nn.parallel.DistributedDataParallel, BEGINS, self.forward)
        self.listen(nn.parallel.DistributedDataParallel, ENDS, self.passed)

    def begin_step(self) -> None:
        if self.probe:
            self.probe.close()
        model = [p for p in self.watch.model.parameters() if p.requires_grad]
        outside = {name: p for name, p in self.watch.outside().items() if p.requires_grad}
        self.names = [*range(len(model)), *outside]
        self.probe = GradientProbe([*model, *outside.values()], self.guarded, self.backward)

    def forward(self, arguments: tuple, options: dict) -> None:
        self.backward()  # the pass that begins speaks to the other ranks itself

    def passed(self, arguments: tuple, options: dict) -> Callable:
        return self.guarded(lambda result: setattr(self, "sent", sequence()))

    def scaled(self, arguments: tuple, options: dict) -> None:
        self.scaler = arguments[0]

    def backward(self) -> None:
        """A forward of the wrapped model has ended before: has anything been sent since then?"""
        self.in_step |= self.watch.stepping > 0
        self.gathers |= self.sent is not None and sequence() != self.sent
        self.sent = None

    def updated(self, arguments: tuple, options: dict) -> None:
        """A GradScaler is through with its step. Where the optimizer was not called the gradients have gone."""
        if self.probe.hooks and any(own is not None for own in self.probe.own):
            self.tried()
            if self.probe.hooks:
                self.begin_step()

    def tried(self) -> None:
        """One step more was looked at: are there enough of each optimizer?"""
        self.tries += 1
        if self.tries == TRIES or not any(self.done.isdisjoint(held_by(each)) for each in self.watch.optimizers):
            self.close()

    def before_step(self, optimizer) -> None:
        if self.probe.hooks and self.mine(optimizer):  # Horovod steps twice: the inner has final gradients
            self.scale = scale_of(self.scaler, optimizer)
            self.probe.look(held_by(optimizer))

    def after_step(self, optimizer) -> None:
        in_step, self.in_step = self.in_step, False
        if not self.probe.hooks or not self.mine(optimizer) or not (self.probe.final or in_step):
            return
        held, at = held_by(optimizer), self.looked[id(optimizer)]
        if not in_step and at < LOOKED_AT and (look := self.probe.result(self.scale)):
            self.looks += [{}] if at == len(self.looks) else []
            self.looks[at] |= {self.names[number]: pair for number, pair in look.items()}
            self.passes = max(self.passes, self.probe.passes)
            self.looked[id(optimizer)] += 1
            self.done |= held if at + 1 == LOOKED_AT else set()
        self.probe.forget(held)
        self.tried()
        if self.probe.hooks and not any(map(self.mine, self.watch.optimizers)):
            self.begin_step()

    def mine(self, optimizer) -> bool:
        """Whether it steps with parameters that have a gradient of a backward pass."""
        held = held_by(optimizer)
        return any(
            own is not None and id(p) in held for own, p in zip(self.probe.own, self.probe.parameters, strict=True)
        )

    def close(self) -> None:
        super().close()
        if self.probe:
            self.probe.close()

    def part(self) -> dict:
        if self.watch.model is None or not self.looks:
            return {}
        kind = kind_of(self.watch.model, self.watch.optimizers)
        return {"gradient": {"looks": self.looks, "passes": self.passes, "kind": kind, "gathers": self.gathers,
                             "outside": self.watch.probe(Weights).moved}}  # fmt: skip


def is_horovod(optimizer) -> bool:
    return hasattr(optimizer, "_allreduce_grad_async")


def sequence() -> int | None:
    """How many collectives this process has started; None where that is not known."""
    with contextlib.suppress(Exception):  # torch's names for it are its own
        return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    return None


def kind_of(model: nn.Module, optimizers) -> str:
    """How gradients are exchanged: "mean" but for what is known to be none."""
    horovod = sys.modules.get("horovod.torch")
    for optimizer in optimizers:
        if horovod and (getattr(optimizer, "op", None) is horovod.Adasum or hasattr(optimizer, "_starting_models")):
            return "Adasum"
    hooks = [hook for each in model.modules() for hook, _ in getattr(each, "_comm_hooks", [])]  # DDP's
    names = [getattr(hook, "__name__", "").lower() for hook in hooks]
    return (
        "PowerSGD"
        if any("power" in name for name in names)
        else "local SGD"
        if any("localsgd" in name.replace("_", "") for name in names)
        else "mean"
    )


class Passes(Probe):
    """The forwards of the wrapped model that broadcast buffers, and whether the last one before a step is exchanged."""

    joins: ClassVar = {"passes": lambda parts: max(parts, key=lambda part: part["unsynced"]), "forwards": columns}
    silent: ClassVar = {"passes": "no DistributedDataParallel", "forwards": "no DistributedDataParallel"}
    steps = unsynced = trains = evaluates = 0

    def follow(self, model, optimizer) -> None:
        self.close()
        self.synced = {}  # wrapped model -> whether its last pass is exchanged
        self.listen(nn.parallel.DistributedDataParallel, BEGINS, self.forward)

    def forward(self, arguments: tuple, options: dict) -> None:
        model = arguments[0]
        if not any(model is each for each in self.watch.ddp_models):
            return
        if torch.is_grad_enabled() and model.training:
            self.trains += broadcasts(model)
            self.synced[model] = model.require_backward_grad_sync
        else:
            self.evaluates += broadcasts(model)

    def after_step(self, optimizer) -> None:
        if not self.synced or self.steps == SYNC_STEPS:
            return
        held = held_by(optimizer)
        stepped = [model for model in self.synced if any(id(p) in held for p in model.parameters())]
        if stepped:
            self.steps += 1
            self.unsynced += not all(self.synced.pop(model) for model in stepped)

    def part(self) -> dict:
        models = self.watch.ddp_models
        if not models:
            return {}
        return {
            "passes": {"steps": self.steps, "unsynced": self.unsynced} if self.steps else None,
            "forwards": {"trains": self.trains, "evaluates": self.evaluates, "buffers": any(map(broadcasts, models))},
        }


def broadcasts(model: nn.parallel.DistributedDataParallel) -> bool:
    """Whether a forward of the wrapped model broadcasts buffers, so that every rank must call it."""
    return bool(model.broadcast_buffers and model.modules_buffers)
