"""A training that is resumed under Horovod: what sending the optimizer's state does to the weights."""

import sys
from collections.abc import Callable
from typing import ClassVar

import torch

from bench.observe.listening import listen
from bench.observe.probe import Probe
from bench.observe.weights import Weights, checksums, hashes


def restored_of(parts: list[dict]) -> dict:
    """The ranks' weights before the first step as hashes, and what each rank says of itself."""
    said = {key: [part[key] for part in parts] for key in ("sent", "moved")}
    return {"weights": hashes(parts, "weights")} | said


class Restored(Probe):
    """Calls of ``broadcast_optimizer_state``, and the optimizer's state before the first step."""

    joins: ClassVar = {"restored": restored_of}
    silent: ClassVar = {"restored": "no epoch was seen: for batch in watch(loader)"}
    sent = False  # whether an optimizer of Horovod's that decays weights has a state before the first step

    def __init__(self, watch):
        super().__init__(watch)
        self.moved, self.end = [], lambda: None
        if horovod := sys.modules.get("horovod.torch"):
            self.end = listen(horovod, "broadcast_optimizer_state", watch.guarded(self, self.sending))

    def sending(self, arguments: tuple, options: dict) -> Callable:
        """broadcast_optimizer_state is called."""
        optimizer = options.get("optimizer", arguments[0] if arguments else None)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        before = checksums(held)
        return self.watch.guarded(self, lambda result: self.moved.append((checksums(held) != before).any()))

    def start(self) -> None:
        optimizers = self.watch.optimizers if "horovod.torch" in sys.modules else []
        self.sent = any(
            each.state and decays(each) for each in optimizers if type(each).__module__.startswith("horovod")
        )

    def close(self) -> None:
        self.end()

    def part(self) -> dict:
        begun = self.watch.probe(Weights).begun
        if begun is None:
            return {}
        return {"restored": {
            "weights": begun[0].cpu().numpy(), "sent": self.sent, "moved": any(moved.item() for moved in self.moved),
        }}  # fmt: skip


def decays(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it makes any weights smaller by itself."""
    return any(group.get("weight_decay") for group in optimizer.param_groups)
