"""The advice, as headings with lines: first from measured rounds, then from forecasts, and last the open questions."""

import statistics
from typing import NamedTuple

from bench import formulas
from bench.analysis import stats, style, words
from bench.config.options import RunConfig, to_dict, unchecked
from bench.predict.advice import cluster
from bench.predict.advice.facts import COMPUTATION, DATA_WAIT, EXPOSED, FP16, HOUR, IMBALANCE, LEAST, REST, Facts, Way
from bench.predict.step import result
from bench.predict.step.engines import ENGINES
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile
from bench.predict.step.result import PREDICTED


class Answer(NamedTuple):
    heading: str
    lines: list[str]


def advise(facts: Facts) -> list[Answer]:
    forecast = can_forecast(facts)
    found = [
        *of_measured(facts),
        Answer("Measured", evidence_lines(facts)),
        Answer("Largest batch per device", batch_lines(facts)),
        Answer(f"On {facts.nodes} devices", cluster.cluster_lines(facts) if forecast and facts.nodes else []),
        Answer("How far it scales", cluster.efficiency_lines(facts) if forecast else []),
        Answer("Cost of an epoch", cost_lines(facts)),
        Answer("Unknown", unknown_lines(facts)),
    ]
    return [answer for answer in found if answer.lines]


def of_measured(facts: Facts) -> list[Answer]:
    """The answers from measured rounds, or why nothing is recommended."""
    if facts.withheld:
        return [Answer("No recommendation", [facts.withheld])]
    steps = [line for way in ways_to_explain(facts) for line in step_lines(way, facts)]
    found = [
        Answer("Which mode", mode_lines(facts) if candidates(facts.ways) else []),
        Answer("Whether to distribute", distribution_lines(facts)),
        Answer("What limits the step time", steps),
    ]
    return [answer for answer in found if answer.lines]


def provenance_lines(facts: Facts) -> list[str]:
    return [line for line in (facts.what, facts.source, *facts.said) if line]


def can_forecast(facts: Facts) -> bool:
    return facts.profile is not None and facts.link is not None


# --- which mode, and whether to distribute: from measured rounds --------------------------------------------------


class Compared(NamedTuple):
    """``b`` against ``a``, which comes first in the suite, as everywhere."""

    a: Way
    b: Way
    found: stats.Comparison

    @property
    def differs(self) -> bool:
        """Whether a difference large enough to matter was found."""
        return self.found.verdict in ("faster", "slower")

    def shows_faster(self, way: Way) -> bool:
        return self.found.verdict == ("faster" if way is self.b else "slower")


class Choice(NamedTuple):
    """best: the fastest by its mean. advised: the simplest without a difference found from it. pairs: of each other way
    with ``best``."""

    advised: Way
    best: Way
    pairs: list[Compared]


def compared(ways, one: Way, other: Way, looks: int = 1, disturbed: bool = False) -> Compared:
    """Two of ``ways``, paired by round."""
    a, b = sorted((one, other), key=list(ways).index)
    return Compared(a, b, stats.compare_rounds(a.throughputs, b.throughputs, looks=looks, disturbed=disturbed))


def fastest(ways: list[Way]) -> Way:
    return min(ways, key=lambda way: (-statistics.geometric_mean(way.throughputs), way.rank))


def candidates(ways) -> list[Way]:
    """Only ways whose update is that of one process on the whole batch are advised."""
    return [way for way in ways if way.info.same_update]


def choose(ways, looks: int = 1, disturbed: bool = False) -> Choice:
    ways = candidates(ways)
    best, others = fastest(ways), sorted(ways, key=lambda way: way.rank)
    pairs = [compared(ways, way, best, looks, disturbed) for way in others if way is not best]
    near = [way for pair in pairs if not pair.differs for way in (pair.a, pair.b)]
    return Choice(min([best, *near], key=lambda way: way.rank), best, pairs)


def distribution(ways, looks: int = 1) -> tuple[Way, Way, Compared] | None:
    """One process, the best distributed way, and the comparison of both; None where one of them was not measured."""
    ways = candidates(ways)
    alone, others = [way for way in ways if way.uses_one_device], [way for way in ways if not way.uses_one_device]
    if not alone or not others:
        return None
    first, best = alone[0], fastest(others)
    return first, best, compared(ways, first, best, looks)


def mode_lines(facts: Facts) -> list[str]:
    found = choose(facts.ways, facts.looks)
    lines = [f"use {found.advised.label}: {found.advised.info.summary}"]
    if found.advised is not found.best:
        lines.append(f"{found.best.label} is not shown to be faster, and {found.advised.label} is simpler")
    return lines if found.pairs else [*lines, "nothing else was measured"]


def evidence_lines(facts: Facts) -> list[str]:
    if not candidates(facts.ways):
        return []
    pairs = choose(facts.ways, facts.looks, facts.disturbed).pairs
    return [pair.found.sentence(pair.a.label, pair.b.label) for pair in pairs]


def distribution_lines(facts: Facts) -> list[str]:
    found = distribution(facts.ways, facts.looks)
    if not found:
        return []
    alone, best, pair = found
    if pair.shows_faster(best):
        return [f"distribute: {best.label} on {best.config.num_devices} devices"]
    one = "one process on one GPU" if alone.config.device == "cuda" else "one process with all threads"
    why = "is slower" if pair.differs else "is not shown to be faster"
    return [f"do not distribute: {best.label}, the fastest distributed mode, {why} than {one}"]


# --- what holds a step back, and what to try ----------------------------------------------------------------------


class Trial(NamedTuple):
    """gain: the largest share of the step that it may save; None where that is unknown."""

    gain: float | None
    words: str


def ways_to_explain(facts: Facts) -> list[Way]:
    """The ways whose parts are shown: the advised one and the fastest distributed one, with known communication where
    possible."""
    ways = candidates(facts.ways)
    if not ways:
        return []
    others = [way for way in ways if not way.uses_one_device]
    others = [way for way in others if EXPOSED in way.parts] or others
    found = [choose(facts.ways, facts.looks).advised, *([fastest(others)] if others else [])]
    return [way for way in dict.fromkeys(found) if way.parts]


def step_lines(way: Way, facts: Facts) -> list[str]:
    """The parts of a step, the largest first, and what to try."""
    order = sorted(way.parts, key=lambda part: -shown_share(way, part))
    parts = ", ".join(f"{part} {percent(way.share(part))}" for part in order)
    lines = [f"{way.label}: {style.number(statistics.fmean(way.steps_ms))} ms per step: {parts}"]
    if not shown_share(way, order[0]):
        lines.append(f"{way.label}: the parts of its step vary too much from round to round to be distinguished")
    elif order[0] in (COMPUTATION, REST):
        lines.append(f"{way.label}: the largest part of its step is {order[0]}")
    else:
        lines.append(f"{way.label}: {order[0]} limits its step")
    return lines + [f"{way.label}, try {n}: {trial.words}" for n, trial in enumerate(trials(way, facts), 1)]


def trials(way: Way, facts: Facts) -> list[Trial]:
    found = []
    if (share := shown_share(way, DATA_WAIT)) >= LEAST:
        found.append(Trial(share, f"more input workers: WORKERS=… (now {way.config.workers or 0} in all); gains at "
                           f"most the data wait, {percent(way.share(DATA_WAIT))} of the step"))  # fmt: skip
    found += fewer_bytes(way, facts)
    if (share := shown_share(way, IMBALANCE)) >= LEAST:
        found.append(Trial(share, "equal devices without other load (`bench doctor`), because all ranks wait "
                           f"for the slowest; gains at most {percent(way.share(IMBALANCE))} of the step"))  # fmt: skip
    gpus = f" GPUS={way.config.num_devices}" if way.config.num_devices > 1 else ""
    found.append(Trial(None, f"`make sweep MODE={way.config.mode}{gpus}` measures its settings: their gain is not "
                       "known in advance"))  # fmt: skip
    return sorted(found, key=lambda trial: -1.0 if trial.gain is None else trial.gain, reverse=True)


def fewer_bytes(way: Way, facts: Facts) -> list[Trial]:
    """Gradients sent as float16, where their exchange is exposed. The gain is the forecast's if the link between these
    devices was measured. Otherwise it is bounded by all that is exposed, not by half: what overlaps now still does."""
    share = shown_share(way, EXPOSED)
    if share < LEAST:
        return []
    exposed = percent(way.share(EXPOSED))
    if not way.config.overlap and "overlap" in way.info.knobs:
        return [Trial(share, "OVERLAP=1: gradients are sent during the backward pass; gains at most "
                      f"{exposed} of the step")]  # fmt: skip
    if not way.can_halve:
        return []
    bound = f"COMPRESSION=fp16: halves the bytes of the gradients; gains at most the exposed {exposed} of the step"
    if not (facts.profile and facts.own_link and way.config.mode in ENGINES):
        return [Trial(share, bound)]
    gain = saved(facts.profile, way.config, way.config.num_devices, facts.own_link)
    return [Trial(min(gain, share), f"{bound}; the forecast over the measured link predicts "
                  f"{100 * gain:.1f} % of its own step")]  # fmt: skip


def saved(profile: Profile, config: RunConfig, ranks: int, link: Link) -> float:
    before, after = (
        result.forecast(profile, each, ranks, link).step_s for each in (config, unchecked(to_dict(config) | FP16))
    )
    return max(0.0, 1 - after / before)


def shown_share(way: Way, part: str) -> float:
    """The mean share of a part; 0 where it is unknown, or its interval is wider than itself."""
    shares = way.share(part) if part in way.parts else [0.0]
    return 0.0 if words.too_wide(*result.mean_interval(shares)) else statistics.fmean(shares)


def percent(shares: list[float]) -> str:
    """
    >>> percent([0.10, 0.12, 0.11]), percent([0.1])
    ('11.0 % [8.5 to 13.5]', '10.0 %')
    >>> percent([-4.9, 7.1, 1.1])
    'not shown'
    """
    mean, low, high = result.mean_interval(shares)
    if words.too_wide(mean, low, high):
        return "not shown"
    interval = "" if low is None else f" [{100 * low:.1f} to {100 * high:.1f}]"
    return f"{100 * mean:.1f} %{interval}".replace("-", "−")


# --- batch, cost, and what is not known ---------------------------------------------------------------------------


def batch_lines(facts: Facts) -> list[str]:
    if not facts.batches:
        return []
    lines = [f"{PREDICTED}: {label}: {f'{batch} {facts.batched}' if batch else 'not even one'}"
             for label, batch in facts.batches.items()]  # fmt: skip
    return lines + list(facts.batches_said)


def cost_lines(facts: Facts) -> list[str]:
    if facts.price is None or facts.per_epoch is None or facts.withheld:
        return []
    lines = []
    for way in sorted(candidates(facts.ways), key=lambda way: cost(way, facts)[0]):
        middle, low, high = cost(way, facts)
        span = "one round: no interval" if low is None else f"{style.number(low)} to {style.number(high)}"
        lines.append(f"{way.label}: {style.number(middle)} [{span}], on {devices(way)}")
    if can_forecast(facts) and facts.nodes:
        lines.append(cluster.cost_line(facts))
    return lines


def cost(way: Way, facts: Facts) -> tuple[float, float | None, float | None]:
    """An epoch's cost: geometric mean over the rounds with its 95 % interval; None with one round."""
    each = [way.paid * facts.price * facts.per_epoch / speed / HOUR for speed in way.throughputs]
    if len(each) < 2:
        return each[0], None, None
    return formulas.log_ratio_interval([1.0] * len(each), each, stats.t_quantile(len(each) - 1, 0.95))


def devices(way: Way) -> str:
    if way.config.device == "cuda":
        return f"{way.paid} GPU{'' if way.paid == 1 else 's'}"
    return f"{way.paid} machine{'' if way.paid == 1 else 's'}, because CPU processes share its cores"


def unknown_lines(facts: Facts) -> list[str]:
    lines = list(facts.unknown)
    for way in facts.ways:
        if not way.info.same_update:
            lines.append(f"the accuracy of {way.label}: its update is not that of one process; "
                         "`make compare accuracy` compares accuracies")  # fmt: skip
    for way in ways_to_explain(facts):
        if not way.uses_one_device and EXPOSED not in way.parts:
            hint = "" if way.info.one_process else " (`make profile`)"
            lines.append(f"the exposed communication of {way.label}: there is no run of it without "
                         f"exchange{hint}")  # fmt: skip
        if DATA_WAIT not in way.parts:
            lines.append(f"the data wait of {way.label}")
    if facts.ways and not distribution(facts.ways, facts.looks):
        lines.append("whether to distribute: one process and a distributed mode were not measured in the same rounds "
                     "(`make predict mode GPUS=2`)")  # fmt: skip
    if not facts.batches:
        lines.append(f"the largest batch: {' '.join(facts.batches_said) or '`make predict memory` computes it'}")
    more = "scaling to more devices"
    if facts.profile is None and not any(line.startswith(more) for line in lines):
        lines.append(f"{more}: no profile of one device (`make bench MODE=single PROFILE=1`)")
    elif facts.profile and facts.link is None:
        lines.append(f"{more}: no link (LINK=10gbit,50us, or RECORDS with the output of `make network`)")
    elif facts.profile:
        limits = result.limits(len(facts.profile.factors), facts.link, bool(facts.fits))
        lines += [f"predictions: {line}" for line in limits]
        if facts.fits:
            lines.append(f"predictions of modes that were not measured: only what is fitted to runs is predicted, "
                         f"{cluster.fitted_words(facts)}")  # fmt: skip
    if facts.price is not None and facts.per_epoch is None:
        lines.append("the cost of an epoch: its number of examples (EXAMPLES=…)")
    return lines
