"""A training that is resumed under Horovod: what sending the optimizer's state does to the weights."""

import sys
from collections.abc import Callable
from typing import ClassVar

from bench.observe.probe import Probe
from bench.observe.together import columns
from bench.observe.weights import Weights, checksums, hashes
from bench.structure import parameters_of


class Restored(Probe):
    """Calls of ``broadcast_optimizer_state``, and the optimizer's state before the first step."""

    joins: ClassVar = {"restored": lambda parts: columns(parts) | {"weights": hashes(parts, "weights")}}
    silent: ClassVar = {"restored": "no epoch was seen: for batch in watch(loader)"}
    sent = False  # whether an optimizer of Horovod's that decays weights has a state before the first step

    def __init__(self, watch):
        super().__init__(watch)
        self.moved = []
        if horovod := sys.modules.get("horovod.torch"):
            self.listen(horovod, "broadcast_optimizer_state", self.sending)

    def sending(self, arguments: tuple, options: dict) -> Callable:
        held = parameters_of(options.get("optimizer", arguments[0] if arguments else None))
        before = checksums(held)
        return self.guarded(lambda result: self.moved.append((checksums(held) != before).any()))

    def start(self) -> None:
        optimizers = self.watch.optimizers if "horovod.torch" in sys.modules else []
        self.sent = any(
            each.state and any(group.get("weight_decay") for group in each.param_groups)
            for each in optimizers
            if type(each).__module__.startswith("horovod")
        )

    def part(self) -> dict:
        begun = self.watch.probe(Weights).begun
        if begun is None:
            return {}
        return {"restored": {
            "weights": begun[0].cpu().numpy(), "sent": self.sent, "moved": any(moved.item() for moved in self.moved),
        }}  # fmt: skip
