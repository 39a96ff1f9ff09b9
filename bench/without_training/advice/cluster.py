"""Devices that are not here: what the forecast says of them. Every line is predicted, and says so."""

from collections.abc import Callable

from bench.analysis import style
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.without_training.advice import step
from bench.without_training.advice.facts import SECONDS, Facts, Way
from bench.without_training.forecast import result
from bench.without_training.forecast.engines import ENGINES

LOW = 0.8  # of as many devices that need nothing of each other
MOST = 512
TIE = 0.02  # steps that are nearer than this count as equal, as in a comparison


def config_of(mode: str) -> RunConfig:
    """What is forecast of a mode: its engine's defaults."""
    return RunConfig(mode=mode, num_devices=2)


def forecasts(facts: Facts, ranks: int) -> list[result.Forecast]:
    """The step of each mode that can be forecast, the fastest first."""
    found = [result.forecast(facts.profile, config_of(mode), ranks, facts.link) for mode in ENGINES]
    return sorted(found, key=lambda each: each.step_s)


def advised(found: list[result.Forecast]) -> result.Forecast:
    """Of the fastest and those whose step is as long within TIE, the simplest. All rest on one profile and one link: at
    the same end of their intervals they are compared."""
    best = found[0]
    near = [each for each in found if near_at_an_end(best, each)]
    return min(near, key=lambda each: Way(each.mode, config_of(each.mode), []).rank)


def near_at_an_end(best: result.Forecast, other: result.Forecast) -> bool:
    """Whether two steps are as long, within TIE, at the fast or at the slow end, or in the middle."""
    steps = ((each.low_s, each.step_s, each.high_s) for each in (best, other))
    return any(mine is not None and theirs <= mine * (1 + TIE) for mine, theirs in zip(*steps, strict=True))


def below(efficiency: Callable[[int], float], low: float = LOW, most: int = MOST) -> int | None:
    """The least number of devices, from 2 to ``most``, with an efficiency below ``low``; None where there is none.
    Powers of two are tried, and then between the last two.

    >>> below(lambda ranks: 1 - ranks / 100), below(lambda ranks: 0.5), below(lambda ranks: 0.9)
    (21, 2, None)
    """
    good, bad = 1, 2
    while efficiency(bad) >= low:
        if bad == most:
            return None
        good, bad = bad, min(2 * bad, most)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if efficiency(middle) >= low else (good, middle)
    return bad


# --- in words -----------------------------------------------------------------------------------------------------


def cluster_lines(facts: Facts) -> list[str]:
    """The mode to use on ``nodes`` devices, what holds its step back, and what half the bytes would save."""
    found = forecasts(facts, facts.nodes)
    use, best = advised(found), found[0]
    where = f"{facts.nodes} devices, {facts.link.words}"
    lines = [f"predicted for {where}: use {use.mode}: {MODES[use.mode].summary}"]
    if use is not best:
        lines.append(f"predicted: no difference from the fastest, {best.mode}, can be told, and {use.mode} is simpler")
    lines += [f"predicted: {each.mode}: {result.step_cell(each)} ms per step, × {each.ranks * each.efficiency:.2f} of "
              f"one device, efficiency {100 * each.efficiency:.0f} %, exposed communication "
              f"{100 * each.exposed_s / each.step_s:.1f} % of the step{waited(each)}" for each in found]  # fmt: skip
    if use.ranks * use.efficiency <= 1:
        lines.append("predicted: no faster than one device: do not distribute")
    way = Way(use.mode, config_of(use.mode), [])
    if use.exposed_s / use.step_s >= step.LEAST and step.can_halve(way):
        gain = step.saved(facts.profile, way.config, facts.nodes, facts.link)
        lines.append(f"predicted: {use.mode} with COMPRESSION=fp16 saves {100 * gain:.1f} % of its step")
    return lines


def waited(each: result.Forecast) -> str:
    """What of a step is waiting for the slowest rank, where it is worth a word."""
    share = each.terms[result.SLOWEST] / each.step_s
    return f", {result.SLOWEST} {100 * share:.1f} %" if share >= step.LEAST else ""


def efficiency_lines(facts: Facts) -> list[str]:
    """From how many devices on each mode's efficiency is low, with the slow and the fast end of the link's interval."""
    link, lines = facts.link, [f"predicted, {facts.link.words}: the efficiency falls below {100 * LOW:.0f} %"]
    measured = None not in (*link.alpha_ends, *link.beta_ends)
    for mode in ENGINES:
        config = config_of(mode)
        found, *ends = (
            below(lambda ranks, config=config, link=each: result.efficiency(facts.profile, config, ranks, link))
            for each in [link, *([link.at_end(1), link.at_end(0)] if measured else [])]
        )
        at = f"not up to {MOST} devices" if found is None else f"from {found} devices on"
        lines.append(f"predicted: {mode}: {at}" + (f" [{' to '.join(map(number, ends))}]" if ends else ""))
    return lines if measured else [*lines, "no interval: the link is given, not measured"]


def number(devices: int | None) -> str:
    """A number of devices; what was not found is beyond the most."""
    return f"over {MOST}" if devices is None else str(devices)


def cost_line(facts: Facts) -> str:
    """An epoch on ``nodes`` devices, each of which makes ``units`` per step."""
    use = advised(forecasts(facts, facts.nodes))
    cost, low, high = (
        None if step_s is None else facts.price * facts.per_epoch * step_s / use.units / SECONDS
        for step_s in (use.step_s, use.low_s, use.high_s)
    )
    interval = "" if low is None else f" [{style.number(low)} to {style.number(high)}]"
    return f"predicted: {use.mode} on {use.ranks} devices: {style.number(cost)}{interval}"
