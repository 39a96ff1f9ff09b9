"""Which mode, and whether to distribute at all: from the rounds that were measured."""

from typing import NamedTuple

from bench.analysis import stats
from bench.without_training.advice.facts import Facts, Way

DIFFERENT = ("faster", "slower")  # verdicts that show a difference large enough to matter


class Choice(NamedTuple):
    """advised: the mode to use. best: the fastest by the mean over the rounds; another one where no difference between
    the two could be shown. against: each other program, with the comparison of ``best`` against it."""

    advised: Way
    best: Way
    against: list[tuple[Way, stats.Comparison]]


class Distribution(NamedTuple):
    """Whether to distribute. found: the best distributed program against one process."""

    pays: bool
    alone: Way
    best: Way
    found: stats.Comparison


def compared(a: Way, b: Way, looks: int = 1) -> stats.Comparison:
    """b against a, paired by round."""
    return stats.compare_rounds(a.throughputs, b.throughputs, looks=looks)


def fastest(ways: list[Way]) -> Way:
    """By the geometric mean over the rounds; of equal ones the simpler."""
    first = ways[0]
    return min(ways, key=lambda way: (-compared(first, way).ratio, way.rank))


def candidates(ways) -> list[Way]:
    """The programs that may be advised: each step of theirs is that of one process on the joined batch."""
    return [way for way in ways if way.info.same_update]


def choose(ways, looks: int = 1) -> Choice:
    """The fastest program, or the simplest of those from which no difference to it could be shown."""
    ways = candidates(ways)
    best = fastest(ways)
    against = [(way, compared(way, best, looks)) for way in sorted(ways, key=lambda way: way.rank) if way is not best]
    near = [way for way, found in against if found.verdict not in DIFFERENT]
    return Choice(min([best, *near], key=lambda way: way.rank), best, against)


def distribution(ways, looks: int = 1) -> Distribution | None:
    """The best distributed program against one process; None where one of the two was not measured."""
    ways = candidates(ways)
    alone, others = [way for way in ways if way.alone], [way for way in ways if not way.alone]
    if not alone or not others:
        return None
    first, best = alone[0], fastest(others)
    found = compared(first, best, looks)
    return Distribution(found.verdict == "faster", first, best, found)


# --- in words -----------------------------------------------------------------------------------------------------


def mode_lines(facts: Facts) -> list[str]:
    """The mode to use, and how sure that is."""
    found = choose(facts.ways, facts.looks)
    lines = [f"use {found.advised.label}: {found.advised.info.summary}"]
    near = [(way, each) for way, each in found.against if each.verdict not in DIFFERENT]
    if found.advised is not found.best:
        (each,) = (each for way, each in found.against if way is found.advised)
        lines.append(f"no difference from the fastest, {found.best.label}, could be shown, and {found.advised.label} "
                     f"is simpler: {each.sentence(found.advised.label, found.best.label)}")  # fmt: skip
    for way, each in found.against:
        if way is found.advised:
            continue
        if (way, each) in near:
            lines.append(f"no difference could be shown: {each.sentence(way.label, found.best.label)}")
        else:
            lines.append(each.sentence(way.label, found.best.label))
    return lines if found.against else [*lines, "it alone was measured: nothing to compare"]


def distribution_lines(facts: Facts) -> list[str]:
    """Whether to distribute, and how sure that is; empty where it cannot be said."""
    found = distribution(facts.ways, facts.looks)
    if not found:
        return []
    sentence = found.found.sentence(found.alone.label, found.best.label)
    gpus = found.alone.config.device == "cuda"
    if found.pays:
        return [f"distribute: {found.best.label} on {found.best.config.num_devices} devices; {sentence}"]
    one = "one process on one GPU" if gpus else "one process with all threads"
    shown = found.found.verdict == "slower"
    why = sentence if shown else f"no gain of the best distributed mode could be shown: {sentence}"
    return [f"{one}; do not distribute: {why}"]
