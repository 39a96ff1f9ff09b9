"""The forecast of each mode on each number of devices: the step, its interval, and where its time goes; tables, words.

A step ends when its slowest rank has ended. Each rank draws its length from the timed steps of the profile, so on N
ranks the mean is over the slowest of N draws (``formulas.slowest_shares``).
"""

import dataclasses
import statistics
from dataclasses import dataclass

from bench import formulas
from bench.analysis import stats, style
from bench.analysis.tables import Grid
from bench.config.options import RunConfig
from bench.predict.step.engines import BUFFERS, COMPUTED, ENGINES, GATHERED, GRADIENTS, WEIGHTS, Step
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile

PREDICTED = "predicted"
SLOWEST = "waiting for the slowest rank"
TERMS = (*COMPUTED, BUFFERS, GATHERED, GRADIENTS, WEIGHTS, SLOWEST)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Forecast:
    """A mode, as its config has it, on ranks devices. step_s: the mean step; low_s, high_s: with what is known of the
    profile's mean step and of the link at the ends of their intervals, None where neither has one. terms: the step by
    what it is for. alone_s: one device's mean step; spread: half of its interval, over it."""

    config: RunConfig
    ranks: int
    step_s: float
    low_s: float | None
    high_s: float | None
    terms: dict[str, float]
    units: int
    alone_s: float
    spread: float

    @property
    def mode(self) -> str:
        """Its name."""
        return self.config.mode

    @property
    def throughput(self) -> float:
        """Units per second over all devices."""
        return self.ranks * self.units / self.step_s

    @property
    def efficiency(self) -> float:
        """Of as many devices that need nothing of each other."""
        return formulas.scaling_efficiency(self.throughput, self.units / self.alone_s, self.ranks)

    @property
    def efficiency_ends(self) -> tuple[float, float] | None:
        """The efficiency with all at the fast or all at the slow end, the lower one first; None without an interval."""
        if self.low_s is None:
            return None
        low, high = sorted([(1 - self.spread) / self.low_s, (1 + self.spread) / self.high_s])
        return self.alone_s * low, self.alone_s * high

    @property
    def exposed_s(self) -> float:
        """By how much communication makes the step longer."""
        return sum(seconds for name, seconds in self.terms.items() if name not in (*COMPUTED, SLOWEST))


def forecast(profile: Profile, config: RunConfig, ranks: int, link: Link) -> Forecast:
    """A mode's step on so many devices."""
    steps = steps_of(profile, config, ranks, link)
    usual = {name: statistics.fmean(step.terms.get(name, 0.0) for step in steps) for name in TERMS}
    alone = sum(usual.values())
    step_s = mean([step.seconds for step in steps], ranks)
    width = spread(profile)
    low, high = ends(profile, config, ranks, link, width)
    waited = step_s - alone if step_s - alone > 1e-9 * step_s else 0.0  # what is less is rounding
    terms = {name: seconds for name, seconds in usual.items() if seconds} | {SLOWEST: waited}
    return Forecast(config, ranks, step_s, low, high, terms, profile.units, profile.mean_step_s, width)


def alone(profile: Profile, config: RunConfig, link: Link) -> Forecast:
    """One device without a link to others, by a config of such a mode: DDP on one device, which sends nothing."""
    return dataclasses.replace(forecast(profile, RunConfig(mode="ddp"), 1, link), config=config)


def steps_of(profile: Profile, config: RunConfig, ranks: int, link: Link) -> list[Step]:
    """A rank's step for each of the profile's timed steps, in rising order."""
    return [ENGINES[config.mode](profile.slower(factor), config, ranks, link) for factor in profile.factors]


def efficiency(profile: Profile, config: RunConfig, ranks: int, link: Link) -> float:
    """That of the forecast, without the rest of it."""
    steps = steps_of(profile, config, ranks, link)
    return profile.mean_step_s / mean([step.seconds for step in steps], ranks)


def mean(values: list[float], ranks: int) -> float:
    """Of values in rising order, each as often as it is the slowest of ranks draws."""
    shares = formulas.slowest_shares(len(values), ranks)
    return sum(share * value for share, value in zip(shares, values, strict=True))


def spread(profile: Profile) -> float:
    """Half of the interval of the mean of a profile's steps, over it; 0 with one step, which has none."""
    if (count := len(profile.factors)) < 2:
        return 0.0
    middle, low, _ = formulas.mean_interval(list(profile.factors), stats.t_quantile(count - 1, CONFIDENCE))
    return (middle - low) / middle


def ends(
    profile: Profile, config: RunConfig, ranks: int, link: Link, width: float
) -> tuple[float | None, float | None]:
    """The step with the mean of the profile's steps, ``width`` off, and the link at the fast and at the slow end of
    their intervals."""
    if len(profile.factors) < 2 and None in (*link.alpha_ends, *link.beta_ends):
        return None, None
    found = []
    for end, factor in enumerate((max(0.0, 1 - width), 1 + width)):
        steps = [ENGINES[config.mode](profile.slower(each * factor), config, ranks, link.at_end(end)).seconds
                 for each in profile.factors]  # fmt: skip
        found.append(mean(steps, ranks))
    return tuple(found)


# --- in tables and in words ---------------------------------------------------------------------------------------


def grid(found: list[Forecast], unit: str) -> Grid:
    """A row for each mode and number of devices."""
    head = [("mode", False), ("devices", True), ("step ms [95 %]", True), (f"{unit}/s", True), ("efficiency", True),
            ("exposed\ncommunication ms", True)]  # fmt: skip
    rows = [
        [each.mode, str(each.ranks), step_cell(each), style.number(each.throughput), f"{100 * each.efficiency:.0f} %",
         style.number(1e3 * each.exposed_s)]
        for each in found
    ]  # fmt: skip
    return Grid(head, rows, f"{PREDICTED}, not measured")


def step_cell(each: Forecast) -> str:
    """The step with its interval."""
    if each.low_s is None:
        return style.number(1e3 * each.step_s)
    return " ".join([style.number(1e3 * each.step_s),
                     f"[{style.number(1e3 * each.low_s)}–{style.number(1e3 * each.high_s)}]"])  # fmt: skip


def explained(found: list[Forecast]) -> Grid:
    """Where the time goes: milliseconds of each step by what they are for."""
    used = [name for name in TERMS if any(each.terms.get(name) for each in found)]
    head = [("mode", False), ("devices", True), *((name, True) for name in used), ("step", True)]
    rows = [
        [each.mode, str(each.ranks), *(style.number(1e3 * each.terms.get(name, 0.0)) for name in used),
         style.number(1e3 * each.step_s)]
        for each in found
    ]  # fmt: skip
    return Grid(head, rows, f"Where the step goes, ms, {PREDICTED}: each row adds up to its step")


def standing(profile: Profile, link: Link) -> list[str]:
    """What a forecast rests on."""
    count = len(profile.factors)
    return [
        f"{PREDICTED}, nothing was run: {profile.what}",
        f"profile of one device: {profile.source}, {count} timed step{'' if count == 1 else 's'}, "
        f"{style.number(1e3 * profile.step_s)} ms at the median; {profile.machine}",
        f"link: {link.words}; collectives as {'Gloo' if link.carrier == 'gloo' else 'NCCL'} has them",
    ]


def limits(steps: int, link: Link) -> list[str]:
    """What must be known of the figures. steps: how many were timed for the profile."""
    known = ["the profile's mean step"] * (steps > 1) + ["the measured link"] * (None not in link.beta_ends)
    interval = f"the interval is that of {' and '.join(known)}" if known else "no interval: nothing was measured"
    model = "how far the model itself is off is in no interval; tutorials/manual/forecast.md compares it with emulation"
    own = f"each node of {link.per_node} devices" if link.inside else "each device"
    return [interval, model, f"each device is taken to have its own cores, and {own} one link of its own to all others"]
