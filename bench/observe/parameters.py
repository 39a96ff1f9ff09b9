"""Which parameters the optimizers hold, and which of the model's are trained at all."""

import itertools
from typing import ClassVar

from bench.observe.probe import Probe, Unheard
from bench.observe.weights import Weights
from bench.structure import parameters_of

GRADED_STEPS = 3  # of each optimizer, before which it is looked at who has a gradient


class Parameters(Probe):
    """The model's parameters beside those of the optimizers: the ones that it was given, and all that step."""

    joins: ClassVar = {"parameters": lambda parts: max(parts, key=lambda part: part["stale"] + len(part["forgotten"]))}
    silent: ClassVar = {"parameters": "no step of an optimizer was seen"}

    def __init__(self, watch):
        super().__init__(watch)
        self.held, self.graded, self.steps, self.known = {}, set(), {}, {}

    def follow(self, model, optimizer) -> None:
        for each in self.watch.optimizers:
            self.hold(each)

    def hold(self, optimizer) -> None:
        """Remember the parameters of an optimizer; again when it has got more of them."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if self.known.get(id(optimizer)) != count:
            self.known[id(optimizer)] = count
            self.held |= {id(p): p for p in parameters_of(optimizer)}

    def before_step(self, optimizer) -> None:
        self.hold(optimizer)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
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
            raise Unheard("the optimizer holds copies of the parameters")
        held = [number for number, (_, p) in enumerate(named) if id(p) in self.held]
        last = max((number for number, (_, p) in enumerate(named) if id(p) not in self.held), default=-1)
        still = set(self.watch.probe(Weights).unchanged() if self.watch.begun else ())
        still = [name for name, p in named if name in still and id(p) in self.held]
        return {"parameters": {
            "tensors": len(named),
            "steps": max(self.steps.values()),
            "forgotten": [name for name, p in missing if id(p) in self.graded],
            "head_alone": bool(held) and last < held[0],  # what is trained follows all that is not
            "stale": len(strangers) - len(trained) if missing else 0,
            "missing": len(missing),
            "unchanged": still,
            "idle": [name for name, p in named if id(p) not in self.graded],
        }}  # fmt: skip
