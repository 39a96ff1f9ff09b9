"""Gradients: a rank's own before the exchange, those that its optimizer gets, and whether they are zeroed."""

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.observe.probe import BEGINS, ENDS, Probe, columns, finite, held_by
from bench.observe.weights import Weights

SAMPLED_GRADIENTS = 200_000  # numbers of a gradient that are compared, 0.8 MB per rank
LOOKED_AT = 2  # steps of an optimizer: in one, a clipped gradient may match any fraction of the mean by chance
TRIES = 20  # steps to find these in: a GradScaler skips some, and others are not finite
SYNC_STEPS = 20  # in which the exchange of the last pass is checked
ZEROED_STEPS = 4  # of each optimizer, in which the zeroing of gradients is checked


def nonzero(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Whether a gradient has a nonzero element, as a tensor on its device, without a wait."""
    if gradient is None:
        return None
    return (gradient._values() if gradient.is_sparse else gradient.detach()).any()


class GradientProbe:
    """A rank's own gradient of one step, and the one that its optimizer gets.

    A hook on a parameter gets its gradient from backward, before any exchange. Over several backward passes
    (accumulation) these are summed as in the parameters' ``grad``; the sum restarts if those were zeroed. The first
    elements of each parameter are kept, equally many, at most SAMPLED_GRADIENTS.
    on_gradient: called with each gradient.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        guarded: Callable = lambda call: call,
        on_gradient: Callable[[], None] = lambda: None,
    ):
        self.on_gradient = on_gradient
        self.parameters = [p for p in parameters if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        self.share = min(1.0, SAMPLED_GRADIENTS / max(1, total))
        self.own = [None] * len(self.parameters)
        self.final, self.passes, self.counts = None, 0, [0] * len(self.parameters)
        adders = (functools.partial(self.add, number) for number in range(len(self.parameters)))
        self.hooks = [p.register_hook(guarded(add)) for p, add in zip(self.parameters, adders, strict=True)]

    def add(self, number: int, gradient: torch.Tensor) -> None:
        """The hook of a parameter. It returns None, so the gradient is unchanged."""
        self.on_gradient()
        if gradient.is_sparse:
            return
        some, own, held = self.some(gradient), self.own[number], nonzero(self.parameters[number].grad)
        if held is None:  # the earlier gradients have been zeroed
            own, self.counts[number] = None, 0
        self.counts[number] += 1
        self.passes = max(self.passes, self.counts[number])
        self.own[number] = some if own is None else torch.where(held, own, 0) + some

    def some(self, gradient: torch.Tensor) -> torch.Tensor:
        flat = gradient.detach().reshape(-1)
        return flat[: max(1, int(self.share * flat.numel()))].float().clone()

    def look(self, held: set[int] | None = None) -> None:
        """The gradients should be final now. held: ids of the parameters in this step; None: all."""
        grads = [p.grad if held is None or id(p) in held else None for p in self.parameters]
        self.final = [None if grad is None or grad.is_sparse else self.some(grad) for grad in grads]

    def forget(self, held: set[int]) -> None:
        """Drop the gradients of parameters that were stepped. The others still wait for their step."""
        for number, p in enumerate(self.parameters):
            if id(p) in held:
                self.own[number], self.counts[number] = None, 0
        self.final = None

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def result(self, scale: float = 1.0) -> dict[int, tuple[np.ndarray, np.ndarray]] | None:
        """Own and final gradient of each parameter that has both, by its number, as flat arrays; None if there is none,
        or a number that is not finite. scale: the factor in the own gradients."""
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
    if every rank's G is its own gradient or a multiple of it. None if the ratio is not a number.
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
    a, b = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(all="ignore"):
        cosine = (a @ b) / np.sqrt((a @ a) * (b @ b))
    return bool(cosine > 1 - 1e-6)


def gradient_of(parts: list[dict]) -> dict | None:
    """The steps that all ranks observed. The ratio nearest to 1 counts, because a mistake shows in all of them. steady:
    whether it is the same in all; it is not if gradients are clipped.

    A part: looks, own and final gradient by the number of the parameter, or by its name if it is outside the model;
    from a Watch also outside, the names of all trained parameters outside the model.
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
    nearest = min(ratios, key=lambda ratio: abs(np.log(abs(ratio) or 1e-30)))
    found = {
        "over_mean": nearest,
        "same_on_all_ranks": all(step["same_on_all_ranks"] for step in steps),
        "exchanged": any(step["exchanged"] for step in steps),
        "steady": max(ratios) - min(ratios) <= 0.02 * abs(nearest),
        "passes": max(part["passes"] for part in parts),
        "kind": parts[0]["kind"],
    }
    return found | in_parts(found, alone, {name for name, _ in each}, parts) if "outside" in parts[0] else found


def compared(looks: tuple[dict, ...], names: list) -> dict | None:
    """``ratio_of`` for some parameters. looks: one step's, by rank. None if the ranks' lengths differ."""
    if not names:
        return None
    own, final = ([np.concatenate([look[name][side] for name in names]) for look in looks] for side in (0, 1))
    return ratio_of(own, final) if len({len(each) for each in (*own, *final)}) == 1 else None


def in_parts(found: dict, alone: set, known: set, parts: list[dict]) -> dict:
    """Add the results per parameter. own: parameters outside the model that each rank steps with its own gradient."""
    own = sorted(name for name in alone if isinstance(name, str))
    more = {"own": own, "gathers": any(part["gathers"] for part in parts)}
    if found["exchanged"] and len(alone) > len(own):
        why = f"each rank steps {len(alone)} parameters with its own gradient, but the others are exchanged"
    elif found["exchanged"] and not own and any(set(part["outside"]) - known for part in parts):
        why = "the gradients of some parameters outside the model were not observed"
    else:
        return more
    return more | {"exchanged": None, "unheard": {"exchanged": why}}


def scale_of(scaler: torch.amp.GradScaler | None, optimizer) -> float:
    """The loss scale in the hooks' gradients, which this optimizer's step does not have."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    with contextlib.suppress(Exception):  # private names of torch's
        state = scaler._per_optimizer_states[id(optimizer)]
        if "UNSCALED" not in str(state["stage"]) and getattr(optimizer, "grad_scale", None) is not None:
            return 1.0  # a fused optimizer unscales by itself
    return float(scaler.get_scale())


class Gradients(Probe):
    """The gradients of each optimizer's first steps after a backward pass of the model.

    In a step only the gradients of its optimizer are final. Those of another optimizer are compared in its own step:
    Horovod exchanges them there, a GradScaler unscales them, and gradients that a generator's loss leaves in a
    discriminator are zeroed before it.

    gathers: whether the ranks communicate between a forward of the wrapped model and its backward pass, as for a layer
    sharded over them.
    """

    joins: ClassVar = {"gradient": gradient_of}
    silent: ClassVar = {"gradient": "no complete optimizer step was observed"}
    probe = None
    in_step = False  # whether a step has called a closure: its gradients come from several passes

    def follow(self, model, optimizer) -> None:
        self.close()
        self.looks, self.tries, self.passes = [], 0, 0
        self.looked, self.done = Counter(), set()  # looks by optimizer; ids of parameters with enough of them
        self.begin_step()
        self.scaler = None
        self.listen(torch.amp.GradScaler, "scale", lambda arguments, options: setattr(self, "scaler", arguments[0]))
        self.listen(torch.amp.GradScaler, "update", self.updated)
        self.sent, self.gathers = None, False
        self.listen(DistributedDataParallel, BEGINS, lambda arguments, options: self.backward())  # it communicates
        self.listen(DistributedDataParallel, ENDS, self.passed)

    def begin_step(self) -> None:
        if self.probe:
            self.probe.close()
        model = [p for p in self.watch.model.parameters() if p.requires_grad]
        outside = {name: p for name, p in self.watch.outside().items() if p.requires_grad}
        self.names = [*range(len(model)), *outside]
        self.probe = GradientProbe([*model, *outside.values()], self.guarded, self.backward)

    def passed(self, arguments: tuple, options: dict) -> Callable:
        return self.guarded(lambda result: setattr(self, "sent", sequence()))

    def backward(self) -> None:
        """Check whether anything was sent since the last forward of the wrapped model."""
        self.in_step |= self.watch.stepping > 0
        self.gathers |= self.sent is not None and sequence() != self.sent
        self.sent = None

    def updated(self, arguments: tuple, options: dict) -> None:
        """A GradScaler has finished its step. If it skipped the optimizer, the gradients are dropped."""
        if self.probe.hooks and any(own is not None for own in self.probe.own):
            self.count_attempt()
            if self.probe.hooks:
                self.begin_step()

    def count_attempt(self) -> None:
        self.tries += 1
        if self.tries == TRIES or not any(self.done.isdisjoint(held_by(each)) for each in self.watch.optimizers):
            self.close()

    def before_step(self, optimizer) -> None:
        # Horovod steps twice: the inner step has final gradients.
        if self.probe.hooks and self.trains_observed(optimizer):
            self.scale = scale_of(self.scaler, optimizer)
            self.probe.look(held_by(optimizer))

    def after_step(self, optimizer) -> None:
        in_step, self.in_step = self.in_step, False
        if not self.probe.hooks or not self.trains_observed(optimizer) or not (self.probe.final or in_step):
            return
        held, at = held_by(optimizer), self.looked[id(optimizer)]
        if not in_step and at < LOOKED_AT and (look := self.probe.result(self.scale)):
            self.looks += [{}] if at == len(self.looks) else []
            self.looks[at] |= {self.names[number]: pair for number, pair in look.items()}
            self.passes = max(self.passes, self.probe.passes)
            self.looked[id(optimizer)] += 1
            self.done |= held if at + 1 == LOOKED_AT else set()
        self.probe.forget(held)
        self.count_attempt()
        if self.probe.hooks and not any(map(self.trains_observed, self.watch.optimizers)):
            self.begin_step()

    def trains_observed(self, optimizer) -> bool:
        held, pairs = held_by(optimizer), zip(self.probe.own, self.probe.parameters, strict=True)
        return any(own is not None and id(p) in held for own, p in pairs)

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
    """The number of collectives that this process has started; None if unknown."""
    with contextlib.suppress(Exception):  # private names of torch's
        return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    return None


def kind_of(model: nn.Module, optimizers) -> str:
    horovod = sys.modules.get("horovod.torch")
    for optimizer in optimizers:
        if horovod and (getattr(optimizer, "op", None) is horovod.Adasum or hasattr(optimizer, "_starting_models")):
            return "Adasum"
    hooks = [hook for each in model.modules() for hook, _ in getattr(each, "_comm_hooks", [])]  # DDP's
    names = [getattr(hook, "__name__", "").lower() for hook in hooks]
    if any("power" in name for name in names):
        return "PowerSGD"
    return "local SGD" if any("localsgd" in name.replace("_", "") for name in names) else "mean"


class Passes(Probe):
    """The forwards of the wrapped model that broadcast buffers, and whether the last one before a step is exchanged."""

    joins: ClassVar = {"passes": lambda parts: max(parts, key=lambda part: part["unsynced"]), "forwards": columns}
    silent: ClassVar = {"passes": "no DistributedDataParallel", "forwards": "no DistributedDataParallel"}
    steps = unsynced = trains = evaluates = 0

    def follow(self, model, optimizer) -> None:
        self.close()
        self.synced = {}  # wrapped model -> whether its last pass is exchanged
        self.listen(DistributedDataParallel, BEGINS, self.forward)

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


def broadcasts(model: DistributedDataParallel) -> bool:
    """Whether a forward of the wrapped model broadcasts buffers, so that every rank must call it."""
    return bool(model.broadcast_buffers and model.modules_buffers)


class Gradient:
    """The state of one parameter's gradient between two steps of its optimizer.

    left: whether it still contains the last step's gradient; None once it was zeroed. came: whether a backward pass has
    added to it since then.
    """

    def __init__(self, name: str):
        self.name, self.left, self.came, self.accumulated = name, None, None, False

    def adds(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        if self.left is not None:
            left = nonzero(parameter.grad)
            self.left = None if left is None else self.left & left
        came = nonzero(gradient)
        self.came = came if self.came is None else self.came | came

    def added(self, parameter: nn.Parameter) -> None:
        self.accumulated = True


class ZeroGrads(Probe):
    """Whether gradients are zeroed between two steps, and not between a backward pass and the step.

    A hook reads a parameter's gradient before a backward pass adds to it: it must be zero or None at least once
    between two steps. Results of ``torch.autograd.grad`` are not added to it and do not count.
    """

    joins: ClassVar = {"zero_grad": lambda parts: max(parts, key=lambda part: (len(part["kept"]), part["lost"]))}
    silent: ClassVar = {"zero_grad": "no optimizer took two steps after backward passes"}

    def setup(self) -> None:
        self.gradients: dict[int, Gradient] = {}
        self.steps = Counter()
        self.kept: list[tuple[str, torch.Tensor]] = []
        self.lost: list[torch.Tensor] = []  # for each step: whether all new gradients were lost

    def start(self) -> None:
        named = dict(self.watch.model.named_parameters()) | self.watch.outside()
        for name, p in named.items():
            if p.requires_grad and p.is_leaf:
                known = self.gradients[id(p)] = Gradient(name)
                self.listening.append(p.register_hook(self.guarded(functools.partial(known.adds, p))).remove)
                self.listening.append(p.register_post_accumulate_grad_hook(self.guarded(known.added)).remove)

    def held(self, optimizer) -> list[tuple[nn.Parameter, Gradient]]:
        if self.steps[id(optimizer)] >= ZEROED_STEPS:
            return []
        held = [p for group in optimizer.param_groups for p in group["params"]]
        return [(p, self.gradients[id(p)]) for p in held if id(p) in self.gradients]

    def before_step(self, optimizer) -> None:
        if self.watch.stepping > 1:
            return
        lost = []
        for p, known in self.held(optimizer):
            if known.accumulated:
                if known.left is not None:
                    self.kept.append((known.name, known.left))
                has = nonzero(p.grad)
                lost.append(known.came if has is None else known.came & ~has)
        if lost:
            self.lost.append(torch.stack([each.to(lost[0].device) for each in lost]).all())

    def after_step(self, optimizer) -> None:
        if self.watch.stepping:
            return
        for p, known in self.held(optimizer):
            known.left, known.came, known.accumulated = nonzero(p.grad), None, False
        self.steps[id(optimizer)] += 1
        if all(self.steps[id(each)] >= ZEROED_STEPS for each in self.watch.optimizers):
            self.close()

    def part(self) -> dict:
        if len(self.lost) < 2:
            return {}
        kept = list(dict.fromkeys(name for name, left in self.kept if left.item()))
        lost = sum(bool(step.item()) for step in self.lost)
        return {"zero_grad": {"steps": len(self.lost), "kept": kept, "lost": lost}}
