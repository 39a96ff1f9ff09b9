"""Advice for devices that are not available, from forecasts only: every line says that it is predicted."""

import functools
from collections.abc import Callable

from bench.analysis import style
from bench.config.modes import MODES
from bench.config.options import RunConfig, to_dict, unchecked
from bench.predict.advice.facts import ALONE, FP16, HOUR, LEAST, Facts, Way
from bench.predict.step import result
from bench.predict.step.engines import ENGINES

LOW = 0.8  # efficiency
MOST = 512
TIE = 0.02  # steps closer than this count as equal, as in a comparison


def candidates(plain: list[RunConfig] | None = None) -> list[RunConfig]:
    """The configs that may be advised: each mode, or ``plain``, also with float16 gradients. Not for sharded modes,
    which send more and are for memory."""
    plain = plain or [RunConfig(mode=mode, num_devices=2) for mode in ENGINES]
    halved = [config for config in plain if way_of(config).can_halve and not MODES[config.mode].shards]
    return [*plain, *(unchecked(to_dict(config) | FP16) for config in halved)]


def forecasts(facts: Facts, ranks: int) -> list[result.Forecast]:
    """Each candidate on N devices, and one device; the highest throughput first."""
    plain = [RunConfig(mode=mode, num_devices=2) for mode in facts.forecast_modes]
    found = [result.forecast(facts.profile, config, ranks, facts.link, facts.fits.get(config.mode))
             for config in candidates(plain)]  # fmt: skip
    found.append(result.forecast_one_device(facts.profile, RunConfig(mode=ALONE), facts.link))
    return sorted(found, key=lambda each: -each.throughput)


def advised(found: list[result.Forecast]) -> result.Forecast:
    """The simplest of the fastest and those within TIE of it. All depend on one profile and one link, so they are
    compared at the same end of the intervals."""
    best = max(found, key=lambda each: each.throughput)
    near = [each for each in found if near_at_an_end(best, each)]
    return min(near, key=lambda each: way_of(each.config).rank)


def near_at_an_end(best: result.Forecast, other: result.Forecast) -> bool:
    steps = ((each.low_s or each.step_s, each.step_s, each.high_s or each.step_s) for each in (best, other))
    more = best.ranks / other.ranks
    return any(theirs * more <= mine * (1 + TIE) for mine, theirs in zip(*steps, strict=True))


def way_of(config: RunConfig) -> Way:
    rounded = config.compression != "none"
    return Way(f"{config.mode} with COMPRESSION={config.compression}" if rounded else config.mode, config, [])


def below(efficiency: Callable[[int], float], low: float = LOW, most: int = MOST) -> int | None:
    """The least number of devices, from 2 to ``most``, with an efficiency below ``low``; None if there is none. It
    doubles the number, and then bisects."""
    good, bad = 1, 2
    while efficiency(bad) >= low:
        if bad == most:
            return None
        good, bad = bad, min(2 * bad, most)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if efficiency(middle) >= low else (good, middle)
    return bad


def cluster_lines(facts: Facts) -> list[str]:
    """The mode to use on ``nodes`` devices, the step of each mode, and the price of full precision."""
    found = forecasts(facts, facts.nodes)
    use, best = advised(found), found[0]
    name, where = way_of(use.config).label, f"{facts.nodes} devices, {facts.link.words}"
    lines = [f"predicted for {where}: use {name}: {MODES[use.mode].summary}"]
    if use.ranks == 1:
        why = "none is faster than one device" if use is best else "no gain over one device was found"
        lines.append(f"predicted: do not distribute: {why}")
    elif use is not best:
        lines.append(f"predicted: no difference from the fastest, {way_of(best.config).label}, was found, and {name} "
                     "is simpler")  # fmt: skip
    lines += [f"predicted: {forecast_line(each)}" for each in found]
    if use.config.compression != "none":
        exact = advised([each for each in found if each.config.compression == "none"])
        lines.append(f"predicted: float16 rounds gradients in transit; without it use {way_of(exact.config).label}, "
                     f"which takes {use.throughput / exact.throughput:.2f} times as long for as many "
                     f"{facts.profile.unit}")  # fmt: skip
    return lines


def forecast_line(each: result.Forecast) -> str:
    takes = f"{way_of(each.config).label}: {result.step_cell(each)} ms per step"
    if each.ranks == 1:
        return f"{takes} on one device"
    waited = each.terms[result.SLOWEST] / each.step_s
    return (f"{takes}, × {each.ranks * each.efficiency:.2f} of one device, efficiency {100 * each.efficiency:.0f} %, "
            f"exposed communication {100 * each.exposed_s / each.step_s:.1f} % of the step"
            + (f", {result.SLOWEST} {100 * waited:.1f} %" if waited >= LEAST else ""))  # fmt: skip


def efficiency_lines(facts: Facts) -> list[str]:
    """The number of devices from which each mode's efficiency is low, also at both ends of the link's interval."""
    link, lines = facts.link, [f"predicted, {facts.link.words}: the efficiency falls below {100 * LOW:.0f} %"]
    measured = None not in (*link.alpha_ends, *link.beta_ends) or bool(facts.fits)
    for mode in facts.forecast_modes:
        config = RunConfig(mode=mode, num_devices=2)
        found, *ends = (
            fitted_limits(facts, config)
            if mode in facts.fits
            else (
                below(lambda ranks, config=config, link=each: result.efficiency(facts.profile, config, ranks, link))
                for each in [link, *([link.at_end(1), link.at_end(0)] if measured else [])]
            )
        )
        at = f"not up to {MOST} devices" if found is None else f"from {found} devices on"
        interval = " to ".join(f"over {MOST}" if end is None else str(end) for end in ends)
        lines.append(f"predicted: {mode}: {at}" + (f" [{interval}]" if ends else ""))
    return lines if measured else [*lines, "predicted: without intervals, because the link is given, not measured"]


def fitted_limits(facts: Facts, config: RunConfig) -> list[int | None]:
    """``below`` of the fitted efficiency, and of the lower and upper end of its interval."""

    @functools.cache
    def at(ranks: int) -> tuple[float, ...]:
        found = result.forecast(facts.profile, config, ranks, facts.link, facts.fits[config.mode])
        return found.efficiency, *found.efficiency_ends

    return [below(lambda ranks, end=end: at(ranks)[end]) for end in range(3)]


def fitted_words(facts: Facts) -> str:
    """The modes, and the numbers of devices on which each was measured."""
    return ", ".join(f"{mode} on {' and '.join(str(point.ranks) for point in fit.points[1:])} devices"
                     for mode, fit in facts.fits.items())  # fmt: skip


def cost_line(facts: Facts) -> str:
    use = advised(forecasts(facts, facts.nodes))
    cost, low, high = (
        None if step_s is None else facts.price * facts.per_epoch * step_s / use.units / HOUR
        for step_s in (use.step_s, use.low_s, use.high_s)
    )
    interval = "" if low is None else f" [{style.number(low)} to {style.number(high)}]"
    on = "one device" if use.ranks == 1 else f"{use.ranks} devices"
    return f"predicted: {way_of(use.config).label} on {on}: {style.number(cost)}{interval}"
