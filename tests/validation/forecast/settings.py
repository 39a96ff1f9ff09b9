"""The settings on which the forecast is compared with emulation: drawn by a rule with a seed, so that nobody chooses.

From all combinations of models, engines, numbers of nodes and rates, those are left out that this machine could not
emulate in time or in memory (``why_not``). Of what is left each engine gets, for each number of nodes, as many as DRAWN
says. Every third of them, in the order of the drawing, is one with which the model was made; the others only judge it.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.predict.step.profile import Profile

SEED = 20261123
MODELS = ("resnet18", "resnet50", "vgg16", "gpt")
DRAWN = {2: 3, 4: 3, 8: 2, 16: 1}  # nodes -> settings of each engine
RATES_MBIT = (250, 500, 1000)  # of the links that are emulated
WARMUP, STEPS = 2, 3  # in the first step DDP finds its buckets, after two PowerSGD begins
LEAST_DILATE = 4  # what the engines do on the cores counts for a quarter at most
LEAST_STEP_S = 3.0  # of a step on this machine's clock
CORES, OWN_SHARE = 2, 0.03  # of this machine; of a step, what an engine computes itself
CARRIED_MBIT = 600  # over all nodes, on the links that carry: more takes the cores from the ranks
START_S = 8.0  # of a node, until it has joined
MOST_S, MOST_BYTES = 80.0, 8e9  # of a setting's steps on this machine's clock; of its nodes' memory
COPIES = 4  # of the parameters on a node: weights, gradients, buckets, what is being sent


@dataclass(frozen=True)
class Engine:
    """A mode with an option. share: bytes that a rank sends over those of a plain all-reduce, for the time limit.
    own_s: what it computes itself, which is not slowed, in seconds per byte of the gradients: PowerSGD goes over them
    eleven times, at some 5 GB/s. emulations: of a setting, whose mean counts: which gradients Horovod's thread finds
    ready in its first cycles, and so sends together, is another in each run."""

    name: str
    mode: str
    share: float
    options: dict[str, str] = field(default_factory=dict)
    own_s: float = 0.0
    emulations: int = 1


ENGINES = (
    Engine("ddp", "ddp", 1.0),
    Engine("ddp, fp16", "ddp", 0.5, {"compression": "fp16"}),
    Engine("ddp, PowerSGD", "ddp", 0.05, {"compression": "powersgd"}, own_s=2.2e-9),
    Engine("horovod", "horovod", 1.0, emulations=3),
    Engine("horovod, fp16", "horovod", 0.5, {"compression": "fp16"}, emulations=3),
    Engine("zero1", "zero1", 2.0),
    Engine("fsdp", "fsdp", 2.0),
)


@dataclass(frozen=True)
class Setting:
    """What is emulated. made_with: whether the model was made with it; without it, it only judges."""

    model: str
    engine: Engine
    nodes: int
    rate_mbit: int
    made_with: bool = False

    @property
    def name(self) -> str:
        """In the file, and for people."""
        return f"{self.model}, {self.engine.name}, {self.nodes} nodes, {self.rate_mbit} Mbit/s"

    def step_s(self, profile: Profile) -> float:
        """Seconds of an emulated step, roughly: nothing hidden."""
        bits = 8 * 2 * (self.nodes - 1) / self.nodes * profile.nbytes * self.engine.share
        return profile.step_s + bits / (1e6 * self.rate_mbit)

    def dilate(self, profile: Profile) -> int:
        """By how much all is slowed: until this machine can carry the links, a step is long, and what the engine of
        each node computes on the cores, which they share, is little beside it."""
        own_s = self.nodes / CORES * self.engine.own_s * profile.nbytes
        step_s = self.step_s(profile)
        return math.ceil(max(LEAST_DILATE, self.nodes * self.rate_mbit / CARRIED_MBIT, LEAST_STEP_S / step_s,
                             own_s / (OWN_SHARE * step_s)))  # fmt: skip

    def clock_s(self, profile: Profile) -> float:
        """Seconds of all its steps on this machine's clock, roughly."""
        return (WARMUP + STEPS) * self.dilate(profile) * self.step_s(profile)

    def before_s(self, profile: Profile) -> float:
        """Seconds before the steps, roughly: weights from rank 0 to all, down a tree. In the first two steps PowerSGD
        sends whole gradients."""
        sent = math.ceil(math.log2(self.nodes)) + (WARMUP * 2 if self.engine.own_s else 0)
        return sent * 8 * profile.nbytes / (1e6 * self.rate_mbit / self.dilate(profile))

    def needs_s(self, profile: Profile) -> float:
        """Seconds of the whole setting on this machine's clock, roughly: of each emulation its nodes' start, what is
        sent before the steps, the steps."""
        return self.engine.emulations * (START_S * self.nodes + self.before_s(profile) + self.clock_s(profile))

    def why_not(self, profile: Profile) -> str:
        """Why it is left out; "" where it is not."""
        if COPIES * self.nodes * profile.nbytes > MOST_BYTES:
            return f"its nodes need more than {MOST_BYTES / 1e9:g} GB"
        return f"its steps would take more than {MOST_S:g} s" if self.clock_s(profile) > MOST_S else ""


def everything() -> Iterator[Setting]:
    """All combinations."""
    for model, engine, nodes, rate in itertools.product(MODELS, ENGINES, DRAWN, RATES_MBIT):
        yield Setting(model, engine, nodes, rate)


def drawn(profiles: dict[str, Profile]) -> list[Setting]:
    """The settings, in the order in which they are emulated: the shortest first."""
    draw = random.Random(SEED)
    possible = [setting for setting in everything() if not setting.why_not(profiles[setting.model])]
    found = []
    for engine, (nodes, count) in itertools.product(ENGINES, DRAWN.items()):
        there = [setting for setting in possible if (setting.engine, setting.nodes) == (engine, nodes)]
        found += draw.sample(there, min(count, len(there)))
    draw.shuffle(found)
    found = [dataclasses.replace(each, made_with=place % 3 == 0) for place, each in enumerate(found)]
    return sorted(found, key=lambda each: each.needs_s(profiles[each.model]))
