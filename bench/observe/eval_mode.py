"""Validations: do batch norms and dropouts compute in evaluation mode, as after ``model.eval()``?"""

from collections import Counter
from typing import ClassVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from bench.observe.probe import Probe, Unheard


class EvalMode(Probe):
    """The layers that depend on the mode, in epochs whose batches are asked for without gradients: a validation, unless
    an optimizer steps in it. Their classes' ``forward`` is heard in such an epoch alone."""

    joins: ClassVar = {"eval_mode": lambda parts: max(parts, key=lambda part: part["in_training_mode"])}
    silent: ClassVar = {"eval_mode": "no validation was seen: batches of watch(loader) under torch.no_grad()"}

    def __init__(self, watch):
        super().__init__(watch)
        self.now, self.layers = None, []
        self.trains, self.seen = Counter(), []  # of this epoch, the layers in training mode; of each validation

    def layers_of(self, model: nn.Module) -> list[nn.Module]:
        """Batch norms that keep statistics, and dropouts."""
        return [m for m in model.modules() if (isinstance(m, _BatchNorm) and m.track_running_stats)
                or (isinstance(m, _DropoutNd) and m.p > 0)]  # fmt: skip

    def fetched(self, epoch, batch) -> None:
        if self.now is not None or self.watch.model is None or torch.is_grad_enabled():
            return
        if self.compiled():
            return  # to stand in for a compiled layer's forward would compile it again
        self.now, self.trains, self.calls = epoch, Counter(), 0
        self.layers = {id(layer) for layer in self.layers_of(self.watch.model)}
        kinds = {type(m) for m in self.watch.model.modules() if id(m) in self.layers}
        for kind in kinds:
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
            return {"eval_mode": Unheard("the model is compiled")} if self.compiled() else {}
        wrong = [layers for layers in self.seen if layers]
        layers = dict(wrong[0]) if wrong else {}
        return {"eval_mode": {"validations": len(self.seen), "in_training_mode": len(wrong), "layers": layers}}

    def compiled(self) -> bool:
        model = self.watch.model
        return model is not None and any(
            getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in model.modules()
        )
