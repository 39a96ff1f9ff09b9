"""Validations: whether the ranks evaluate the same model, in evaluation mode, and combine their results."""

import contextlib
import sys
from collections import Counter
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import dataloader

from bench.observe.gradients import sequence
from bench.observe.probe import BEGINS, ENDS, NotObserved, Probe
from bench.observe.weights import checksums

LOOKS = 16  # observed evaluations
UNSEEN = "no evaluation was observed: model.eval(), then batches of a DataLoader, or a forward of the wrapped model"
HOROVODS = ("_allreduce_async", "_grouped_allreduce_async", "_allgather_async", "_broadcast_async", "_alltoall_async")


def evaluations_of(parts: list[dict]) -> dict:
    """The first evaluation in which buffers differ by rank, in optimizer steps, and these buffers. A part: looks,
    steps -> [buffers, 2] checksums; names. Ranks that did not evaluate then are left out."""
    if any(part["names"] != parts[0]["names"] for part in parts):
        raise NotObserved("the ranks' models have different buffers")
    steps = sorted({step for part in parts for step in part["looks"]})
    if not steps:
        raise NotObserved(UNSEEN)
    found = {"looked_at": steps, "apart_at": None, "buffers": [], "ranks": 0}
    for step in steps:
        looks = [part["looks"][step] for part in parts if step in part["looks"]]
        differ = (np.stack(looks) != looks[0]).any(axis=(0, 2))
        if differ.any():
            names = [name for name, other in zip(parts[0]["names"], differ, strict=True) if other]
            return found | {"apart_at": step, "buffers": names, "ranks": len(looks)}
    return found


class Evaluations(Probe):
    """Checksums of the buffers, such as batch norm's statistics, at the end of each evaluation: at ``model.train()`` or
    at the end of the training. Several models are compared if none of them is in training mode.

    A rank that calls ``model.eval()`` and only waits for another one evaluates nothing. An evaluation needs batches of
    any DataLoader meanwhile, or a forward of the wrapped model.
    """

    joins: ClassVar = {"evaluation": evaluations_of}
    silent: ClassVar = {"evaluation": UNSEEN}

    def setup(self) -> None:
        self.evaluates, self.looks, self.plain = False, {}, None

    def follow(self, model, optimizer) -> None:
        self.close()
        layers = self.watch.models
        self.models = [module for each in layers for module in each]
        self.plain = nn.ModuleList(each[-1] for each in layers) if len(layers) > 1 else layers[0][-1]
        self.listen(nn.Module, "train", self.switches)
        self.listen(DistributedDataParallel, BEGINS, self.called)
        self.listen(dataloader._BaseDataLoaderIter, "_next_index", self.fetches)

    def fetches(self, arguments: tuple, options: dict) -> None:
        self.evaluates = self.evaluates or not self.watch.training

    def called(self, arguments: tuple, options: dict) -> None:
        if any(arguments[0] is model for model in self.watch.ddp_models):
            self.fetches(arguments, options)

    def switches(self, arguments: tuple, options: dict) -> None:
        """model.train(mode) or model.eval() is called; the mode of the models inside changes afterwards."""
        mode = options.get("mode", arguments[1] if len(arguments) > 1 else True)
        if mode and any(arguments[0] is model for model in self.models):
            self.evaluated()

    def evaluated(self) -> None:
        if self.evaluates and not self.watch.training and len(self.looks) < LOOKS:
            self.looks[self.watch.counts.optimizer_steps] = checksums(self.buffers().values())
        self.evaluates = False

    def buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer for name, buffer in self.plain.named_buffers() if buffer.is_floating_point()}

    def part(self) -> dict:
        if self.plain is None:
            return {}
        self.evaluated()
        looks = {step: sums.cpu().numpy() for step, sums in self.looks.items()}
        return {"evaluation": {"names": list(self.buffers()), "looks": looks}}


class EvalMode(Probe):
    """Layers that depend on the mode, in epochs without gradients: validations, unless an optimizer steps in them."""

    joins: ClassVar = {"eval_mode": lambda parts: max(parts, key=lambda part: part["in_training_mode"])}
    silent: ClassVar = {"eval_mode": "no validation was observed: batches of watch(loader) under torch.no_grad()"}

    def setup(self) -> None:
        self.now, self.layers = None, set()
        self.trains, self.seen = Counter(), []  # of this epoch, the layers in training mode; of each validation

    def fetched(self, epoch, batch) -> None:
        if self.now is not None or self.watch.model is None or torch.is_grad_enabled():
            return
        if self.compiled():
            return  # replacing a compiled layer's forward would compile it again
        layers = [m for m in self.watch.model.modules() if (isinstance(m, _BatchNorm) and m.track_running_stats)
                  or (isinstance(m, _DropoutNd) and m.p > 0)]  # fmt: skip
        self.now, self.trains, self.calls, self.layers = epoch, Counter(), 0, set(map(id, layers))
        for kind in set(map(type, layers)):
            self.listen(kind, "forward", self.called)

    def called(self, arguments: tuple, options: dict) -> None:
        layer = arguments[0]
        if id(layer) in self.layers and not torch.is_grad_enabled():
            self.calls += 1
            self.trains[layer] += layer.training

    def epoch_ended(self, epoch) -> None:
        if epoch is not self.now:
            return
        self.close()
        if not epoch.optimizer_steps and (self.calls or not self.layers):
            self.seen.append(Counter(type(layer).__name__ for layer, times in self.trains.items() if times))
        self.now = None

    def part(self) -> dict:
        if not self.seen:
            return {"eval_mode": NotObserved("the model is compiled")} if self.compiled() else {}
        wrong = [layers for layers in self.seen if layers]
        layers = dict(wrong[0]) if wrong else {}
        return {"eval_mode": {"validations": len(self.seen), "in_training_mode": len(wrong), "layers": layers}}

    def compiled(self) -> bool:
        modules = self.watch.model.modules() if self.watch.model is not None else ()
        return any(getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in modules)


class AfterValidation(Probe):
    """Whether the ranks communicate between the first batch of a validation and the next training epoch, or the end.
    Buffers that a DistributedDataParallel broadcasts in its forward do not count."""

    joins: ClassVar = {"validated": lambda parts: {key: min(part[key] for part in parts) for key in parts[0]}}
    silent: ClassVar = {"validated": "no epoch without training was observed to its end"}

    def setup(self) -> None:
        self.last = None
        self.pending, self.sent, self.until_now = False, False, False
        self.verdicts = []  # of each validation, whether something was sent

    def follow(self, model, optimizer) -> None:
        self.close()
        self.listen(DistributedDataParallel, BEGINS, lambda arguments, options: self.look())  # a pass sends by itself
        self.listen(DistributedDataParallel, ENDS, self.passed)
        operations = sys.modules.get("horovod.torch.mpi_ops")
        for name in HOROVODS if operations else ():
            with contextlib.suppress(AttributeError):
                self.listen(operations, name, lambda arguments, options: setattr(self, "sent", True))

    def passed(self, arguments: tuple, options: dict):
        return self.guarded(lambda result: setattr(self, "last", sequence()))

    def look(self) -> None:
        now = sequence()
        self.sent |= now != self.last
        self.last = now

    def before_iter(self, epoch) -> None:
        self.look()
        self.until_now = self.sent  # later communication may belong to the training
        if not self.pending:
            self.sent = False

    def fetched(self, epoch, batch) -> None:
        if self.pending:
            self.look()
            self.until_now = self.sent

    def epoch_ended(self, epoch) -> None:
        if epoch.whole and not epoch.optimizer_steps:
            self.pending = True

    def after_step(self, optimizer) -> None:
        if self.pending and not self.watch.stepping:
            self.verdicts.append(self.until_now)
            self.pending = False

    def part(self) -> dict:
        if self.pending and not self.watch.cut:
            self.look()
            self.verdicts.append(self.sent)
        known = sequence() is not None or "horovod.torch" in sys.modules
        if not self.verdicts or not known:
            return {}
        return {"validated": {"times": len(self.verdicts), "silent": self.verdicts.count(False)}}
