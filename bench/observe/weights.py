"""Weights and buffers of the replicas: whether they are equal on all ranks at the start, in between and at the end,
which of them the optimizers hold, and the number of examples over which batch norms normalise."""

import hashlib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.observe.probe import NotObserved, Probe, columns, finite
from bench.record.observed import norm_of as described
from bench.structure import parameters_of

CLOSELY = 16  # first steps, after each of which the weights are compared: they may be averaged every few steps
GRADED_STEPS = 3  # first steps of each optimizer, before which gradients are checked
NO_EPOCH = "no epoch was observed: use `for batch in watch(loader)`"


def hash_of(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def tensors_hash(tensors: Iterable[torch.Tensor]) -> str:
    return hash_of(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def state_of(model: nn.Module, whole: dict[str, torch.Tensor] | None = None) -> dict[str, str]:
    """Hashes, equal for equal replicas. whole: name -> the complete tensor, if the model holds only a part of it."""
    whole = whole or {}
    parameters = (whole.get(name, tensor) for name, tensor in model.named_parameters())
    buffers = (whole.get(name, tensor) for name, tensor in model.named_buffers())
    return {"parameters": tensors_hash(parameters), "buffers": tensors_hash(buffers)}


def checksums(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """[tensors, 2] int64 on the first tensor's device: the sum of each tensor's raw bits and of their squares, which is
    exact in any order of summation. Does not wait for the device."""
    rows = []
    for tensor in tensors:
        bits = bits_of(tensor.detach())
        rows.append(torch.stack([bits.sum(dtype=torch.int64), (bits * bits).sum(dtype=torch.int64)]))
    return torch.stack([row.to(rows[0].device) for row in rows]) if rows else torch.zeros(0, 2, dtype=torch.int64)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if tensor.dtype == torch.bool:
        return tensor.to(torch.int64)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def hashes(parts: list[dict], key: str) -> list[str]:
    return [hash_of([np.ascontiguousarray(part[key]).tobytes()]) for part in parts]


def common_outside(parts: list[dict]) -> list[str]:
    """The parameters outside the model that the optimizers of all ranks train."""
    held = [part.get("outside", {}) for part in parts]
    return [name for name in held[0] if all(name in other for other in held)]


def check_all_compared(parts: list[dict], differ: bool) -> None:
    """Raises NotObserved if the compared parameters are equal, but some outside the model could not be compared."""
    if not differ and any(len(part.get("outside", {})) > len(common_outside(parts)) for part in parts):
        raise NotObserved("the optimizers of the ranks train different parameters outside the model")


def state_by_rank(parts: list[dict]) -> dict[str, list[str]]:
    """A hash of each rank's parameters, including those trained outside the model, and one of its buffers."""
    outside = common_outside(parts)
    found = [hash_of([part["parameters"].tobytes(), *(part["outside"][name].tobytes() for name in outside)])
             for part in parts]  # fmt: skip
    check_all_compared(parts, len(set(found)) > 1)
    return {"parameters": found, "buffers": hashes(parts, "buffers")}


def weights_of(parts: list[dict]) -> dict | None:
    """Whether the replicas diverge: the first step after which they differ, and in which layers.

    A part: looks, (epoch, steps taken in it) of each; steps, the total number at each; sums, [looks and the end,
    parameters, 2]; names; outside, name -> sums of a parameter that only an optimizer holds. Ranks with different
    numbers of steps are compared at their common looks. together_again: whether they were equal at a later look, as
    when the weights are averaged every few steps.
    """
    if any(part["names"] != parts[0]["names"] for part in parts):
        raise NotObserved("the ranks train different models")
    outside = common_outside(parts)
    names = [*parts[0]["names"], *outside]
    every = [np.concatenate([part["sums"], *(part["outside"][name][:, None] for name in outside)], axis=1)
             for part in parts]  # fmt: skip
    places = [{look: number for number, look in enumerate(part["looks"])} for part in parts]
    common = [look for look in parts[0]["looks"] if all(look in place for place in places)]
    rows = [[place[look] for look in common] + [-1] for place in places]  # and the end
    sums = np.stack([of_rank[row] for of_rank, row in zip(every, rows, strict=True)])
    steps = [parts[0]["steps"][row] for row in rows[0]]
    differ = (sums != sums[0]).any(axis=(0, 3))  # [looks, parameters]
    check_all_compared(parts, differ.any())
    found = {"looked_at": steps, "apart_at": None, "layers": [], "outside": outside, "together_again": False}
    if differ.any():
        first = int(differ.any(axis=1).argmax())
        layers = [name for name, other in zip(names, differ[first], strict=True) if other]
        again = not bool(differ[first:].any(axis=1).all())
        found |= {"apart_at": steps[first], "layers": layers, "together_again": again}
    return found


def looked_at(step: int) -> bool:
    """Whether the weights are compared after this step: each of the first CLOSELY, then 32, 64, 128, …"""
    return step <= CLOSELY or step & (step - 1) == 0


class Weights(Probe):
    """Checksums before, between and after the steps, of the model's parameters and of others that are trained."""

    joins: ClassVar = {"start": state_by_rank, "end": state_by_rank, "weights": weights_of}
    silent: ClassVar = dict.fromkeys(joins, NO_EPOCH)
    begun, moved, thread = None, (), None

    def start(self) -> None:
        self.named = dict(self.watch.model.named_parameters())
        self.begun = checksums(self.named.values()), checksums(self.watch.model.buffers())
        self.step, self.steps, self.looks = 0, [0], [self.begun[0]]
        self.outside, self.held = {}, 0  # name -> parameter; the watched optimizers' number of parameters
        self.epoch, self.within, self.places = 0, 0, [(0, 0)]
        self.look_outside()

    def look(self) -> torch.Tensor:
        return checksums([*self.named.values(), *self.outside.values()])

    def look_outside(self) -> None:
        """Add new parameters of the watched optimizers outside the model; unchanged before their first step."""
        held = sum(len(group["params"]) for each in self.watch.optimizers for group in each.param_groups)
        if held != self.held:
            self.held = held
            new = {name: p for name, p in self.watch.outside().items() if name not in self.outside}
            self.outside |= new
            self.looks[-1] = torch.cat([self.looks[-1], checksums(new.values()).to(self.looks[-1].device)])

    def before_step(self, optimizer) -> None:
        watched = any(optimizer is each for each in self.watch.optimizers)
        if watched and self.begun is not None and self.watch.stepping == 1:
            self.look_outside()

    def after_step(self, optimizer) -> None:
        if self.begun is None or self.watch.stepping or not self.watch.steps_model(optimizer):
            return
        self.thread = threading.get_ident()
        self.step += 1
        self.within += 1
        if looked_at(self.step):
            self.steps.append(self.step)
            self.looks.append(self.look())
            self.places.append((self.epoch, self.within))

    def epoch_ended(self, epoch) -> None:
        if epoch.optimizer_steps and threading.get_ident() == self.thread:  # not in a prefetching thread
            self.epoch, self.within = self.epoch + 1, 0

    def part(self) -> dict:
        if self.begun is None:
            return {}
        sums, outside = self.sums()
        self.moved = tuple(outside)
        start, end = ({"parameters": sums[when], "outside": {name: own[when] for name, own in outside.items()}}
                      for when in (0, -1))  # fmt: skip
        looks = {"looks": self.places, "steps": [*self.steps, self.step], "sums": sums}
        return {
            "start": start | {"buffers": self.begun[1].cpu().numpy()},
            "end": end | {"buffers": checksums(self.watch.model.buffers()).cpu().numpy()},
            "weights": looks | {"names": list(self.named), "outside": outside},
        }

    def sums(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The looks and the end, [looks + 1, parameters, 2], and by name those of each trained parameter outside the
        model. If no optimizer steps the model's own parameters, these replace them: copies, or this rank's share."""
        looks = [look.cpu().numpy() for look in (*self.looks, self.look())]
        for at in reversed(range(len(looks) - 1)):  # later additions have not changed before
            looks[at] = np.concatenate([looks[at], looks[at + 1][len(looks[at]) :]])
        every = np.stack(looks)
        model, others = every[:, : len(self.named)], every[:, len(self.named) :]
        trained = {name: others[:, i] for i, name in enumerate(self.outside) if (others[:, i] != others[0, i]).any()}
        return model, trained if self.step else {}

    def unchanged(self) -> list[str]:
        same = (checksums(self.named.values()) == self.begun[0]).all(dim=1).tolist()
        return [name for name, still in zip(self.named, same, strict=True) if still]


class Others(Probe):
    """Further modules that should be equal on all ranks: an average of the weights, a second model."""

    joins: ClassVar = {"others": lambda parts: {name: hashes(parts, name) for name in parts[0]}}
    silent: ClassVar = {"others": 'none was named: Watch(…, others={"ema": ema})'}

    def part(self) -> dict:
        sums = {name: checksums(tensors_of(other)).cpu().numpy() for name, other in self.watch.others.items()}
        return {"others": sums or None}


def tensors_of(other) -> list[torch.Tensor]:
    """The parameters of a module; for an object with a state dict, or a state dict itself, its float tensors."""
    if isinstance(other, nn.Module):
        return list(other.parameters())
    state = other if isinstance(other, dict) else other.state_dict()
    values = [value for _, value in sorted(state.items(), key=lambda item: str(item[0]))]
    nested = [tensors_of(value) for value in values if isinstance(value, dict)]
    floats = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return floats + [tensor for tensors in nested for tensor in tensors]


class Restored(Probe):
    joins: ClassVar = {"restored": lambda parts: columns(parts) | {"weights": hashes(parts, "weights")}}
    silent: ClassVar = {"restored": NO_EPOCH}
    sent = False  # whether a Horovod optimizer with weight decay has a state before the first step

    def setup(self) -> None:
        self.moved = []
        if horovod := sys.modules.get("horovod.torch"):
            self.listen(horovod, "broadcast_optimizer_state", self.sending)

    def sending(self, arguments: tuple, options: dict) -> Callable:
        held = parameters_of(options.get("optimizer", arguments[0] if arguments else None))
        before = checksums(held)
        return self.guarded(lambda result: self.moved.append((checksums(held) != before).any()))

    def start(self) -> None:
        if "horovod.torch" in sys.modules:
            self.sent = any(
                each.state and any(group.get("weight_decay") for group in each.param_groups)
                for each in self.watch.optimizers
                if type(each).__module__.startswith("horovod")
            )

    def part(self) -> dict:
        begun = self.watch.probe(Weights).begun
        if begun is None:
            return {}
        moved = any(moved.item() for moved in self.moved)
        return {"restored": {"weights": begun[0].cpu().numpy(), "sent": self.sent, "moved": moved}}


class Parameters(Probe):
    """Which parameters the optimizers hold, and which of the model's parameters are trained."""

    joins: ClassVar = {"parameters": lambda parts: max(parts, key=lambda part: part["stale"] + len(part["forgotten"]))}
    silent: ClassVar = {"parameters": "no optimizer step was observed"}

    def setup(self) -> None:
        self.held, self.graded, self.steps, self.known = {}, set(), Counter(), {}

    def follow(self, model, optimizer) -> None:
        for each in self.watch.optimizers:
            self.hold(each)

    def hold(self, optimizer) -> None:
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if self.known.get(id(optimizer)) != count:
            self.known[id(optimizer)] = count
            self.held |= {id(p): p for p in parameters_of(optimizer)}

    def before_step(self, optimizer) -> None:
        self.hold(optimizer)
        self.steps[id(optimizer)] += 1
        if self.steps[id(optimizer)] <= GRADED_STEPS:
            every = itertools.chain(self.watch.model.parameters(), parameters_of(optimizer))
            self.graded |= {id(p) for p in every if p.grad is not None}

    def part(self) -> dict:
        model = self.watch.model
        if model is None or not self.steps:
            return {}
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        own = {id(p) for p in model.parameters()}
        strangers = {id(p): p for p in parameters_of(*self.watch.optimizers) if id(p) not in own}
        missing = [(name, p) for name, p in named if id(p) not in self.held]
        trained = [p for key, p in strangers.items() if key in self.graded]
        if missing and sorted(tuple(p.shape) for p in trained) == sorted(tuple(p.shape) for _, p in missing):
            raise NotObserved("the optimizer holds copies of the parameters")
        held = [id(p) in self.held for _, p in named]
        still = set(self.watch.probe(Weights).unchanged() if self.watch.begun else ())
        return {"parameters": {
            "tensors": len(named),
            "steps": max(self.steps.values()),
            "forgotten": [name for name, p in missing if id(p) in self.graded],
            "head_alone": any(held) and held == sorted(held),  # all trained parameters come after the untrained ones
            "stale": len(strangers) - len(trained) if missing else 0,
            "missing": len(missing),
            "unchanged": [name for name, p in named if name in still and id(p) in self.held],
            "idle": [name for name, p in named if id(p) not in self.graded],
        }}  # fmt: skip


# --- batch norms --------------------------------------------------------------------------------------------------


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The batch norms that normalise with their batch: those in training mode. Frozen ones are in evaluation mode."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)]


def norm_of(norms: list[nn.Module], images: int) -> dict:
    """A description of ``batch_norms``. images: per layer and call. means, variances: [channels of all layers]."""
    kinds = Counter(type(norm).__name__ for norm in norms)
    kept = [norm for norm in norms if norm.running_mean is not None]
    statistics = {
        name: np.concatenate([getattr(norm, f"running_{kind}").float().cpu().numpy() for norm in kept] or [np.zeros(0)])
        for name, kind in (("means", "mean"), ("variances", "var"))
    }
    return described(", ".join(f"{kind} × {n}" for kind, n in sorted(kinds.items())), images) | statistics


def norms_of(parts: list[dict]) -> dict:
    """disagreement of the ranks' running means: the root mean square over all channels of the deviation over ranks,
    divided by the channel's mean running standard deviation."""
    norm = {name: value for name, value in parts[0].items() if name not in ("means", "variances")}
    means, variances = (np.stack([part[name] for part in parts]).astype(np.float64) for name in ("means", "variances"))
    if means.size:
        with np.errstate(all="ignore"):
            norm["disagreement"] = finite(np.sqrt((means.var(axis=0) / variances.mean(axis=0)).mean()))
    return norm


class Norms(Probe):
    joins: ClassVar = {"norm": norms_of}
    silent: ClassVar = {"norm": "no step was observed"}
    norms = None

    def trained(self, epoch) -> None:
        if self.norms is None and self.watch.model is not None:  # the model is in training mode now
            self.norms = batch_norms(self.watch.model)

    def part(self) -> dict:
        if self.norms is None or not self.watch.counts.images:
            return {}
        return {"norm": norm_of(self.norms, self.watch.counts.images // self.watch.devices)}
