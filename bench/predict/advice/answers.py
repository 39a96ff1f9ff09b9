"""The advice as headings with lines: what was measured first, what is predicted in lines that say so, and what could
not be known."""

from typing import NamedTuple

from bench import formulas
from bench.analysis import stats, style
from bench.predict.advice import choice, cluster, step
from bench.predict.advice.facts import DATA_WAIT, EXPOSED, SECONDS, Facts, Way
from bench.predict.step.result import PREDICTED, limits


class Answer(NamedTuple):
    """A question's heading, and its answer."""

    heading: str
    lines: list[str]


def advise(facts: Facts) -> list[Answer]:
    """Every question that can be answered, and what could not be known."""
    forecast = can_forecast(facts)
    found = [
        *of_measured(facts),
        Answer("Measured", choice.evidence_lines(facts)),
        Answer("Largest batch per device", batch_lines(facts)),
        Answer(f"On {facts.nodes} devices", cluster.cluster_lines(facts) if forecast and facts.nodes else []),
        Answer("How far it scales", cluster.efficiency_lines(facts) if forecast else []),
        Answer("Cost of an epoch", cost_lines(facts)),
        Answer("Not known", unknown_lines(facts)),
    ]
    return [answer for answer in found if answer.lines]


def of_measured(facts: Facts) -> list[Answer]:
    """What the measured rounds answer; where they recommend nothing, why."""
    if facts.withheld:
        return [Answer("No recommendation", [facts.withheld])]
    steps = [line for way in looked_into(facts) for line in step.step_lines(way, facts)]
    found = [
        Answer("Which mode", choice.mode_lines(facts) if choice.candidates(facts.ways) else []),
        Answer("Distribute at all", choice.distribution_lines(facts)),
        Answer("What holds the step back", steps),
    ]
    return [answer for answer in found if answer.lines]


def standing(facts: Facts) -> list[str]:
    """What the advice is about, where it was measured, and what must be known of the measurements."""
    return [line for line in (facts.what, facts.source, *facts.said) if line]


def can_forecast(facts: Facts) -> bool:
    """Whether there are a profile and a link."""
    return facts.profile is not None and facts.link is not None


def looked_into(facts: Facts) -> list[Way]:
    """The programs whose steps are taken apart: the one that is advised, and the fastest distributed one, of those of
    which it is known what communication adds where there are such."""
    ways = choice.candidates(facts.ways)
    if not ways:
        return []
    others = [way for way in ways if not way.alone]
    others = [way for way in others if EXPOSED in way.parts] or others
    found = [choice.choose(facts.ways, facts.looks).advised, *([choice.fastest(others)] if others else [])]
    return [way for way in dict.fromkeys(found) if way.parts]


def batch_lines(facts: Facts) -> list[str]:
    """The largest batch that fits, of each mode."""
    if not facts.batches:
        return []
    lines = [f"{PREDICTED}: {label}: {f'{batch} {facts.batched}' if batch else 'not even one'}"
             for label, batch in facts.batches.items()]  # fmt: skip
    return lines + list(facts.batches_said)


def cost_lines(facts: Facts) -> list[str]:
    """What an epoch costs with each program, the cheapest first; predicted, on devices that are not here."""
    if facts.price is None or facts.per_epoch is None or facts.withheld:
        return []
    ways = sorted(choice.candidates(facts.ways), key=lambda way: cost(way, facts)[0])
    lines = [f"{way.label}: {interval_words(*cost(way, facts))}, on {devices(way)}" for way in ways]
    if can_forecast(facts) and facts.nodes:
        lines.append(cluster.cost_line(facts))
    return lines


def cost(way: Way, facts: Facts) -> tuple[float, float | None, float | None]:
    """An epoch's cost with a program: geometric mean over the rounds, with its 95 % interval; None with one round."""
    each = [way.paid * facts.price * facts.per_epoch / speed / SECONDS for speed in way.throughputs]
    if len(each) < 2:
        return each[0], None, None
    return formulas.log_ratio_interval([1.0] * len(each), each, stats.t_quantile(len(each) - 1, 0.95))


def interval_words(middle: float, low: float | None, high: float | None) -> str:
    """A figure with its interval."""
    span = "one round: no interval" if low is None else f"{style.number(low)} to {style.number(high)}"
    return f"{style.number(middle)} [{span}]"


def devices(way: Way) -> str:
    """What is paid."""
    if way.config.device == "cuda":
        return f"{way.paid} GPU{'' if way.paid == 1 else 's'}"
    return f"{way.paid} machine{'' if way.paid == 1 else 's'}, for CPU workers share its cores"


def unknown_lines(facts: Facts) -> list[str]:
    """What was not known: what was told, and what follows from the facts."""
    lines = list(facts.unknown)
    for way in facts.ways:
        if not way.info.same_update:
            lines.append(f"whether {way.label} is worth its speed: its update is not that of one process; "
                         "`make accuracy` compares what is learnt")  # fmt: skip
    for way in looked_into(facts):
        if not way.alone and EXPOSED not in way.parts:
            hint = "" if way.info.one_process else " (`make breakdown`)"
            lines.append(f"how much of the step of {way.label} is exposed communication: no run of it without exchange "
                         f"is there{hint}")  # fmt: skip
        if DATA_WAIT not in way.parts:
            lines.append(f"how long {way.label} waits for data")
    if facts.ways and not choice.distribution(facts.ways, facts.looks):
        lines.append("whether to distribute: one process and a distributed mode were not measured in the same rounds "
                     "(`make advise GPUS=2`)")  # fmt: skip
    if not facts.batches:
        lines.append(f"the largest batch: {' '.join(facts.batches_said) or '`make memory` computes it'}")
    more = "what more devices would do"
    if facts.profile is None and not any(line.startswith(more) for line in lines):
        lines.append(f"{more}: no profile of one device (`make bench MODE=single PROFILE=1`)")
    elif facts.profile and facts.link is None:
        lines.append(f"{more}: no link (LINK=10gbit,50us, or RECORDS with what `make network` left)")
    elif facts.profile:
        lines += [f"predictions: {line}" for line in limits(len(facts.profile.factors), facts.link)]
    if facts.price is not None and facts.per_epoch is None:
        lines.append("the cost of an epoch: how many examples it has (EXAMPLES=…)")
    return lines
