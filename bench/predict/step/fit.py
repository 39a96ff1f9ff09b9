"""What a profile of one device cannot show, fitted to measured steps on several devices.

A step on N devices is the forecast's, with four unknowns:

- the rate that a link reaches, a share of its nominal rate (``Link.reached``);
- interference: computation under a message takes longer;
- a loss for each doubling of the devices in a node, and of the nodes, which no overlap hides;
- the spread between ranks, of which a step waits for the slowest.

Each has a range (``RANGES``), the same for every forecast. Within its range every value is equally likely, on a
logarithmic scale except for interference. ``DRAWS`` combinations are drawn, and each counts by how likely it makes the
measured points. If hardly any explains them, the likelihood is flattened, which widens the interval.

A forecast starts from the largest measured point that is not larger. It is the median of the draws. Its interval holds
95 % of them, with the noise of one more measurement. Points within one node tell nothing of the link between nodes:
there its range remains, and the interval is wide.
"""

import dataclasses
import math
import operator
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bench import formulas
from bench.analysis.tables import Grid
from bench.config.options import RunConfig
from bench.predict.step.engines import ENGINES, Step
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile

DRAWS, ENOUGH = 2000, 100
RANGES = {
    "interference": (0.0, 0.4),  # "an average computational slowdown of 18.9 %, with a maximum of 40.0 %" (2507.03114)
    "in_node": (0.001, 0.1),  # of one device's step
    "nodes": (0.001, 0.05),  # nodes share less than the devices in a node do
    "spread": (0.001, 0.05),  # standard deviation, of one device's step
    "noise": (0.003, 0.05),  # standard deviation of a measured step
}
WORDS = {
    "inside": "rate inside a node, of the nominal",
    "between": "rate between nodes, of the nominal",
    "interference": "computation under a message takes longer by",
    "in_node": "loss per doubling of the devices in a node",
    "nodes": "loss per doubling of the nodes",
    "spread": "spread between ranks",
    "noise": "noise of a measurement",
}
LINEAR = ("interference",)
ENDS = (0.025, 0.5, 0.975)
RATES = 7  # at which an engine is simulated; costs between them are interpolated
ROUNDING_S = 1e-9


@dataclass(frozen=True)
class Point:
    """The measured steps on a number of devices: one of each run, in seconds."""

    ranks: int
    steps: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return statistics.fmean(self.steps)


class Draw(NamedTuple):
    """A combination of the unknowns. weight: how much it counts. more: the losses beyond the measured points, over
    their means, in a node and between nodes. error: of one more measurement, in standard deviations."""

    weight: float
    inside: float
    between: float
    interference: float
    in_node: float
    nodes: float
    spread: float
    noise: float
    more: tuple[float, float]
    error: float


@dataclass(frozen=True)
class Costs:
    """Of a number of devices. steps: the seconds of a step, and of the communication hidden in it, at each of these
    rates. waited_s: for the slowest rank, by the profile; slowest_s: by each standard deviation between ranks. rate: of
    a draw."""

    rates: list[float]
    steps: list[tuple[float, float]]
    waited_s: float
    slowest_s: float
    rate: Callable[[Draw], float]

    def step_s(self, draw: Draw) -> float:
        """The step that a combination predicts without a loss, interpolated between the rates."""
        place, share = place_in(self.rates, self.rate(draw))
        (low_s, low_hidden_s), (high_s, high_hidden_s) = self.steps[place : place + 2]
        step_s, under_s = (1 - share) * low_s + share * high_s, (1 - share) * low_hidden_s + share * high_hidden_s
        return step_s + draw.interference * under_s + self.waited_s + draw.spread * self.slowest_s


@dataclass
class Fit:
    """points: by rising number of devices, the first of one device. config: of the mode that they measured."""

    profile: Profile
    config: RunConfig
    link: Link
    points: list[Point]
    ranges: dict[str, tuple[float, float]] = field(default_factory=lambda: RANGES)
    draws: list[Draw] = field(default_factory=list)
    costs: dict = field(default_factory=dict)

    def __post_init__(self):
        self.points = sorted(self.points, key=lambda point: point.ranks)
        self.ranges = {"inside": (self.link.inside or self.link).reached, "between": self.link.reached} | self.ranges
        rng, drawn = random.Random(0), []
        for _ in range(DRAWS):
            values = {name: between(*ends, rng.random(), name in LINEAR) for name, ends in self.ranges.items()}
            more = rng.expovariate(1.0), rng.expovariate(1.0)
            drawn.append(Draw(0.0, **values, more=more, error=rng.gauss(0.0, 1.0)))
        given = [(point, self.costs_of(self.config, point.ranks)) for point in self.points]
        weights = flattened([self.log_likelihood(draw, given) for draw in drawn])
        self.draws = [draw._replace(weight=weight) for draw, weight in zip(drawn, weights, strict=True)]

    @property
    def alone_s(self) -> float:
        return self.points[0].step_s

    def log_likelihood(self, draw: Draw, given: list[tuple[Point, Costs]]) -> float:
        """Of the points: what each loses beyond the point before it."""
        total, before = 0.0, None
        for point, costs in given:
            own = draw.noise * point.step_s
            repeats = [(seconds - point.step_s) / own for seconds in point.steps] if len(point.steps) > 1 else []
            total -= sum(each * each / 2 for each in repeats) + max(0, len(repeats) - 1) * math.log(draw.noise)
            lost, error = point.step_s - costs.step_s(draw), own / len(point.steps) ** 0.5
            if before:
                mean, sd = self.mean_loss(draw, before[0], point.ranks), math.hypot(error, before[2])
                total += formulas.delayed_log_density((lost - before[1]) / self.alone_s, mean, sd / self.alone_s)
            before = point.ranks, lost, error
        return total

    def mean_loss(self, draw: Draw, fewer: int, more: int) -> float:
        in_node, nodes = self.doublings(fewer, more)
        return draw.in_node * in_node + draw.nodes * nodes

    def doublings(self, fewer: int, more: int) -> tuple[float, float]:
        """Of the devices in a node, and of the nodes."""
        (devices, nodes), (more_devices, more_nodes) = (
            (min(ranks, self.link.per_node), math.ceil(ranks / self.link.per_node)) for ranks in (fewer, more)
        )
        return max(0.0, math.log2(more_devices / devices)), max(0.0, math.log2(more_nodes / nodes))

    def rate(self, ranks: int, inside: float, between: float) -> float:
        """The share of its nominal rate that the slowest link of a ring reaches. Of several nodes it is that of the
        link between them, also where the one inside holds it back."""
        link = self.link
        if not link.inside:
            return between
        return inside if ranks <= link.per_node else min(between, inside * link.beta_s / link.inside.beta_s)

    def costs_of(self, config: RunConfig, ranks: int) -> Costs:
        """Each rank draws one of the profile's timed steps."""
        if (config, ranks) in self.costs:
            return self.costs[config, ranks]
        link, inside, profile = self.link, self.link.inside, self.profile
        shares = formulas.slowest_shares(len(profile.factors), ranks)
        waited_s = profile.step_s * (sum(map(operator.mul, shares, profile.factors)) - 1)
        ends = zip((inside or link).reached, link.reached, strict=True)
        low, high = (self.rate(ranks, *end) for end in ends)
        rates = [between(low, high, place / (RATES - 1)) for place in range(RATES)]
        if ranks == 1:
            steps = [(profile.step_s, 0.0)] * RATES
        else:
            own = bool(inside) and ranks <= link.per_node
            links = [dataclasses.replace(link, inside=slower(inside, rate)) if own else slower(link, rate)
                     for rate in rates]  # fmt: skip
            simulated = [ENGINES[config.mode](profile, config, ranks, each) for each in links]
            steps = [(step.seconds, hidden_s(step)) for step in simulated]
        slowest_s = formulas.largest_normal(ranks) * self.alone_s
        found = Costs(rates, steps, waited_s, slowest_s, lambda draw: self.rate(ranks, draw.inside, draw.between))
        return self.costs.setdefault((config, ranks), found)

    def step(self, config: RunConfig, ranks: int) -> tuple[float, float, float]:
        """Low end, median and high end of the step on that many devices."""
        start = max((point for point in self.points if point.ranks <= ranks), key=lambda point: point.ranks)
        in_node, nodes = self.doublings(start.ranks, ranks)
        there, here, found = self.costs_of(config, ranks), self.costs_of(self.config, start.ranks), []
        for draw in self.draws:
            known_s = there.step_s(draw) - here.step_s(draw)
            lost = draw.in_node * in_node * draw.more[0] + draw.nodes * nodes * draw.more[1]
            noise = draw.noise * math.hypot(1.0, len(start.steps) ** -0.5)
            found.append(((start.step_s + known_s + lost * self.alone_s) * math.exp(noise * draw.error), draw.weight))
        return tuple(weighted_quantiles(found, ENDS))

    def is_fitted(self, name: str) -> bool:
        """Whether the points depend on an unknown."""
        most = self.points[-1].ranks
        needs = {"inside": self.link.inside and most > 1, "in_node": min(most, self.link.per_node) > 1,
                 "between": most > self.link.per_node, "nodes": most > self.link.per_node}  # fmt: skip
        return bool(needs.get(name, most > 1))

    def rows(self) -> list[list[str]]:
        counts = ", ".join(f"{point.ranks} (n = {len(point.steps)})" for point in self.points)
        found = []
        for name, words in WORDS.items():
            if name in ("inside", "in_node") and not self.link.inside:
                continue
            least, most = map(percent, self.ranges[name])
            low, middle, high = map(percent, weighted_quantiles([(getattr(draw, name), draw.weight)
                                                                 for draw in self.draws], ENDS))  # fmt: skip
            source = f"devices: {counts}" if self.is_fitted(name) else "the assumption only"
            found.append([self.config.mode, words, f"{least}–{most} %", f"{middle} % [{low}–{high}]", source])
        return found


def flattened(logs: list[float]) -> list[float]:
    """Weights of log likelihoods, flattened until ``ENOUGH`` draws count (by Kish's effective number)."""
    most = max(logs)
    while True:
        weights = [math.exp(log - most) for log in logs]
        if sum(weights) ** 2 >= ENOUGH * sum(weight * weight for weight in weights):
            return weights
        logs, most = [0.7 * log for log in logs], 0.7 * most


def between(low: float, high: float, share: float, linear: bool = False) -> float:
    return low + (high - low) * share if linear else low * (high / low) ** share


def slower(link: Link, rate: float) -> Link:
    halves = {name: getattr(link, name) and slower(getattr(link, name), rate) for name in ("gather", "scatter")}
    return dataclasses.replace(link, beta_s=link.beta_s / rate, **halves)


def place_in(values: list[float], value: float) -> tuple[int, float]:
    """The place before a value in a geometric series, and its share of the way to the next, by logarithm."""
    low, high = values[0], values[-1]
    exact = (len(values) - 1) * math.log(value / low) / math.log(high / low) if high > low else 0.0
    place = min(len(values) - 2, max(0, int(exact)))
    return place, exact - place


def hidden_s(step: Step) -> float:
    """Seconds of communication that are hidden behind computation."""
    computed = formulas.union([(begin, end) for _, begin, end in step.computed], gap=ROUNDING_S)
    sent = formulas.union([(begin, end) for _, begin, end, _ in step.sent])
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in sent for b in computed)


def weighted_quantiles(values: list[tuple[float, float]], shares: tuple[float, ...]) -> list[float]:
    """values: (value, weight).

    >>> weighted_quantiles([(3.0, 1.0), (1.0, 2.0), (2.0, 1.0)], (0.5, 0.75, 1.0))
    [1.0, 2.0, 3.0]
    """
    ordered, whole = sorted(values), math.fsum(weight for _, weight in values)
    found, reached = [], 0.0
    for value, weight in ordered:
        reached += weight
        while len(found) < len(shares) and reached >= shares[len(found)] * whole * (1 - 1e-12):
            found.append(value)
    return found


def percent(share: float) -> str:
    """
    >>> percent(0.00123), percent(0.0123), percent(0.998)
    ('0.12', '1.2', '100')
    """
    return f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:.0f}"


def grid(fits: list[Fit]) -> Grid:
    head = [("mode", False), ("fitted", False), ("assumed", True), ("median [95 %]", True), ("from", False)]
    return Grid(head, [row for fit in fits for row in fit.rows()], "What was fitted to the measured points")
