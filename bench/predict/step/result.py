"""The forecast of a mode on N devices: the step with its interval and terms, as tables and text.

A step ends with its slowest rank. Each rank draws one of the profile's timed steps, so the mean is over the slowest of
N draws (``formulas.slowest_shares``).
"""

import dataclasses
import statistics
from dataclasses import dataclass

from bench import formulas
from bench.analysis import stats, style
from bench.analysis.tables import Grid
from bench.config.options import RunConfig
from bench.predict.step.engines import BUFFERS, COMPUTED, ENGINES, GATHERED, GRADIENTS, WEIGHTS, Step
from bench.predict.step.fit import Fit
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile

PREDICTED = "predicted"
SLOWEST = "waiting for the slowest rank"
FITTED = "loss fitted to measured points"
TERMS = (*COMPUTED, BUFFERS, GATHERED, GRADIENTS, WEIGHTS, SLOWEST, FITTED)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Forecast:
    """step_s: the mean step; low_s, high_s: with the profile's mean step and the link at the ends of their intervals,
    None where neither has one. With a fit: its median and interval. terms: of the step. alone_s: one device's mean
    step; spread: half of its interval over it."""

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
        return self.config.mode

    @property
    def throughput(self) -> float:
        return self.ranks * self.units / self.step_s

    @property
    def efficiency(self) -> float:
        return formulas.scaling_efficiency(self.throughput, self.units / self.alone_s, self.ranks)

    @property
    def efficiency_ends(self) -> tuple[float, float] | None:
        """The lower and upper end; None without an interval."""
        if self.low_s is None:
            return None
        low, high = sorted([(1 - self.spread) / self.low_s, (1 + self.spread) / self.high_s])
        return self.alone_s * low, self.alone_s * high

    @property
    def exposed_s(self) -> float:
        return sum(seconds for name, seconds in self.terms.items() if name not in (*COMPUTED, SLOWEST, FITTED))


def forecast(profile: Profile, config: RunConfig, ranks: int, link: Link, fit: Fit | None = None) -> Forecast:
    """fit: of this profile and link to measured points of the mode; not on one device."""
    steps = steps_of(profile, config, ranks, link)
    usual = {name: statistics.fmean(step.terms.get(name, 0.0) for step in steps) for name in TERMS}
    alone = sum(usual.values())
    step_s = mean_s(steps, ranks)
    width = spread(profile)
    low, high = ends(profile, config, ranks, link, width)
    waited = step_s - alone if step_s - alone > 1e-9 * step_s else 0.0  # otherwise rounding
    terms = {name: seconds for name, seconds in usual.items() if seconds} | {SLOWEST: waited}
    if fit and ranks > 1:
        low, fitted_s, high = fit.step(config, ranks)
        terms[FITTED], step_s, width = fitted_s - step_s, fitted_s, 0.0
    return Forecast(config, ranks, step_s, low, high, terms, profile.units, profile.mean_step_s, width)


def forecast_one_device(profile: Profile, config: RunConfig, link: Link) -> Forecast:
    """One device, which sends nothing: DDP on one device, with the config of a mode of one device."""
    return dataclasses.replace(forecast(profile, RunConfig(mode="ddp"), 1, link), config=config)


def steps_of(profile: Profile, config: RunConfig, ranks: int, link: Link, slower: float = 1.0) -> list[Step]:
    """A rank's step for each of the profile's timed steps, in rising order."""
    return [ENGINES[config.mode](profile.slower(factor * slower), config, ranks, link) for factor in profile.factors]


def efficiency(profile: Profile, config: RunConfig, ranks: int, link: Link) -> float:
    return profile.mean_step_s / mean_s(steps_of(profile, config, ranks, link), ranks)


def mean_s(steps: list[Step], ranks: int) -> float:
    """The mean of the slowest of ``ranks`` draws from steps in rising order."""
    shares = formulas.slowest_shares(len(steps), ranks)
    return sum(share * step.seconds for share, step in zip(shares, steps, strict=True))


def mean_interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """The mean with its 95 % interval; None for both ends of one value."""
    if len(values) < 2:
        return values[0], None, None
    return formulas.mean_interval(values, stats.t_quantile(len(values) - 1, CONFIDENCE))


def spread(profile: Profile) -> float:
    """Half of the interval of the mean of a profile's steps, over the mean; 0 with one step."""
    middle, low, _ = mean_interval(list(profile.factors))
    return 0.0 if low is None else (middle - low) / middle


def ends(
    profile: Profile, config: RunConfig, ranks: int, link: Link, width: float
) -> tuple[float | None, float | None]:
    """The step with the profile's mean step (± ``width``) and the link at the fast and slow ends of their intervals."""
    if len(profile.factors) < 2 and None in (*link.alpha_ends, *link.beta_ends):
        return None, None
    factors = enumerate((max(0.0, 1 - width), 1 + width))
    return tuple(mean_s(steps_of(profile, config, ranks, link.at_end(end), each), ranks) for end, each in factors)


def grid(found: list[Forecast], unit: str) -> Grid:
    head = [("mode", False), ("devices", True), ("step ms [95 %]", True), (f"{unit}/s", True), ("efficiency", True),
            ("exposed\ncommunication ms", True)]  # fmt: skip
    rows = [
        [each.mode, str(each.ranks), step_cell(each), style.number(each.throughput), f"{100 * each.efficiency:.0f} %",
         style.number(1e3 * each.exposed_s)]
        for each in found
    ]  # fmt: skip
    return Grid(head, rows, f"{PREDICTED}, not measured")


def step_cell(each: Forecast) -> str:
    if each.low_s is None:
        return style.number(1e3 * each.step_s)
    step, low, high = (style.number(1e3 * seconds) for seconds in (each.step_s, each.low_s, each.high_s))
    return f"{step} [{low}–{high}]"


def explained(found: list[Forecast]) -> Grid:
    used = [name for name in TERMS if any(each.terms.get(name) for each in found)]
    head = [("mode", False), ("devices", True), *((name, True) for name in used), ("step", True)]
    rows = [
        [each.mode, str(each.ranks), *(style.number(1e3 * each.terms.get(name, 0.0)) for name in used),
         style.number(1e3 * each.step_s)]
        for each in found
    ]  # fmt: skip
    return Grid(head, rows, f"Step time by part, ms, {PREDICTED}: each row adds up to its step")


def provenance_lines(profile: Profile, link: Link) -> list[str]:
    count = len(profile.factors)
    return [
        f"{PREDICTED}, nothing was run: {profile.what}",
        f"profile of one device: {profile.source}, {count} timed step{'' if count == 1 else 's'}, "
        f"{style.number(1e3 * profile.step_s)} ms at the median; {profile.machine}",
        f"link: {link.words}; collective algorithms of {'Gloo' if link.carrier == 'gloo' else 'NCCL'}",
    ]


def limits(steps: int, link: Link, fitted: bool = False) -> list[str]:
    """Limitations. steps: number of the profile's timed steps."""
    own = f"each node of {link.per_node} devices" if link.inside else "each device"
    assumed = f"each device is assumed to have its own cores, and {own} its own link to all others"
    if fitted:
        return ["the interval holds 95 % of all combinations of the fitted values, with the noise of one more "
                "measurement: tutorials/manual/forecast_validation.md compares it with published tables",
                assumed]  # fmt: skip
    known = ["the profile's mean step"] * (steps > 1) + ["the measured link"] * (None not in link.beta_ends)
    interval = f"the interval covers only {' and '.join(known)}" if known else "no interval: nothing was measured"
    model = "no interval includes the error of the model; tutorials/manual/forecast.md compares it with emulation"
    return [interval, model, assumed]
