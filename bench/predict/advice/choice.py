"""Which mode, and whether to distribute at all: from the rounds that were measured."""

import statistics
from typing import NamedTuple

from bench.analysis import stats
from bench.predict.advice.facts import Facts, Way

DIFFERENT = ("faster", "slower")  # verdicts that show a difference large enough to matter


class Choice(NamedTuple):
    """advised: the mode to use. best: the fastest by the mean over the rounds; another one where no difference between
    the two could be shown. against: each other program, with its comparison with ``best``."""

    advised: Way
    best: Way
    against: list[tuple[Way, "Compared"]]


class Compared(NamedTuple):
    """Two programs in the one direction in which their pair is stated everywhere: ``b`` against ``a``, which stands
    before it in the suite."""

    a: Way
    b: Way
    found: stats.Comparison

    @property
    def differs(self) -> bool:
        """Whether a difference that is large enough to matter was shown."""
        return self.found.verdict in DIFFERENT

    def sentence(self) -> str:
        """The verdict in words."""
        return self.found.sentence(self.a.label, self.b.label)


class Distribution(NamedTuple):
    """Whether to distribute. found: the best distributed program against one process."""

    pays: bool
    alone: Way
    best: Way
    pair: Compared


def compared(ways, one: Way, other: Way, looks: int = 1, disturbed: bool = False) -> Compared:
    """Two of ``ways``, paired by round."""
    a, b = sorted((one, other), key=list(ways).index)
    return Compared(a, b, stats.compare_rounds(a.throughputs, b.throughputs, looks=looks, disturbed=disturbed))


def fastest(ways: list[Way]) -> Way:
    """By the geometric mean over the rounds; of equal ones the simpler."""
    return min(ways, key=lambda way: (-statistics.geometric_mean(way.throughputs), way.rank))


def candidates(ways) -> list[Way]:
    """The programs that may be advised: each step of theirs is that of one process on the joined batch."""
    return [way for way in ways if way.info.same_update]


def choose(ways, looks: int = 1, disturbed: bool = False) -> Choice:
    """The fastest program, or the simplest of those from which no difference to it could be shown."""
    ways = candidates(ways)
    best, others = fastest(ways), sorted(ways, key=lambda way: way.rank)
    against = [(way, compared(ways, way, best, looks, disturbed)) for way in others if way is not best]
    near = [way for way, pair in against if not pair.differs]
    return Choice(min([best, *near], key=lambda way: way.rank), best, against)


def distribution(ways, looks: int = 1) -> Distribution | None:
    """The best distributed program against one process; None where one of the two was not measured."""
    ways = candidates(ways)
    alone, others = [way for way in ways if way.alone], [way for way in ways if not way.alone]
    if not alone or not others:
        return None
    first, best = alone[0], fastest(others)
    pair = compared(ways, first, best, looks)
    return Distribution(pair.found.verdict == ("faster" if pair.b is best else "slower"), first, best, pair)


# --- in words -----------------------------------------------------------------------------------------------------


def mode_lines(facts: Facts) -> list[str]:
    """The mode to use, and how sure that is."""
    found = choose(facts.ways, facts.looks)
    lines = [f"use {found.advised.label}: {found.advised.info.summary}"]
    if found.advised is not found.best:
        lines.append(f"{found.best.label} is not shown to be faster, and {found.advised.label} is simpler")
    return lines if found.against else [*lines, "nothing else was measured"]


def evidence_lines(facts: Facts) -> list[str]:
    """The comparisons that the choice rests on, each pair once."""
    if not candidates(facts.ways):
        return []
    return [pair.sentence() for _, pair in choose(facts.ways, facts.looks, facts.disturbed).against]


def distribution_lines(facts: Facts) -> list[str]:
    """Whether to distribute; empty where it cannot be said."""
    found = distribution(facts.ways, facts.looks)
    if not found:
        return []
    if found.pays:
        return [f"distribute: {found.best.label} on {found.best.config.num_devices} devices"]
    one = "one process on one GPU" if found.alone.config.device == "cuda" else "one process with all threads"
    why = "is slower" if found.pair.differs else "is not shown to be faster"
    return [f"{one}; do not distribute: {found.best.label}, the fastest distributed mode, {why}"]
