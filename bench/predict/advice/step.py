"""What holds a step back, by its measured parts, and what to try first."""

import statistics
from typing import NamedTuple

from bench import formulas
from bench.analysis import stats, style, words
from bench.config.options import RunConfig, to_dict, unchecked
from bench.predict.advice.facts import COMPUTATION, DATA_WAIT, EXPOSED, IMBALANCE, REST, Facts, Way
from bench.predict.step import result
from bench.predict.step.engines import ENGINES
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile

LEAST = 0.01  # a part with less of the step is not worth a trial
FP16 = {"compression": "fp16"}


class Trial(NamedTuple):
    """Something to try. gain: what it is expected to save of the step, at most; None where that cannot be said
    beforehand."""

    gain: float | None
    words: str


def trials(way: Way, facts: Facts) -> list[Trial]:
    """What to try with a program, in the order of the expected gain; what has none that can be said, last."""
    found = [*workers(way), *fewer_bytes(way, facts), *balance(way), *settings(way)]
    return sorted(found, key=lambda trial: -1.0 if trial.gain is None else trial.gain, reverse=True)


def workers(way: Way) -> list[Trial]:
    """Input workers, where the step waits for data."""
    share = shown_share(way, DATA_WAIT)
    if share < LEAST:
        return []
    return [Trial(share, f"more input workers: WORKERS=… (now {way.config.workers or 0} in all); gains at most the "
                  f"data wait, {percent(way.share(DATA_WAIT))} of the step")]  # fmt: skip


def fewer_bytes(way: Way, facts: Facts) -> list[Trial]:
    """Gradients sent as float16, where their exchange is not hidden. The gain is the forecast's where the link between
    these devices was measured; else at most all that is exposed: as much of the exchange as before stays hidden, so
    half the bytes may save more than half of the rest."""
    share = shown_share(way, EXPOSED)
    if share < LEAST:
        return []
    if not way.config.overlap and "overlap" in way.info.knobs:
        return [Trial(share, f"OVERLAP=1: gradients leave during the backward pass; gains at most "
                      f"{percent(way.share(EXPOSED))} of the step")]  # fmt: skip
    if not can_halve(way):
        return []
    bound = (f"COMPRESSION=fp16: halves the bytes of the gradients; gains at most what is exposed, "
             f"{percent(way.share(EXPOSED))} of the step")  # fmt: skip
    gain = predicted_gain(way, facts)
    if gain is None:
        return [Trial(share, bound)]
    return [Trial(min(gain, share), f"{bound}; the forecast over the measured link predicts "
                  f"{100 * gain:.1f} % of its own step")]  # fmt: skip


def can_halve(way: Way) -> bool:
    """Whether a program can send its gradients as float16, and does not."""
    return FP16["compression"] in (way.info.knobs.get("compression") or ()) and way.config.compression == "none"


def predicted_gain(way: Way, facts: Facts) -> float | None:
    """What half the bytes save of a step by the forecast; None where nothing can be forecast of these devices."""
    if not (facts.profile and facts.own_link and way.config.mode in ENGINES):
        return None
    return saved(facts.profile, way.config, way.config.num_devices, facts.own_link)


def saved(profile: Profile, config: RunConfig, ranks: int, link: Link) -> float:
    """What half the bytes save of the forecast's step."""
    before, after = (
        result.forecast(profile, each, ranks, link).step_s for each in (config, unchecked(to_dict(config) | FP16))
    )
    return max(0.0, 1 - after / before)


def balance(way: Way) -> list[Trial]:
    """Ranks that take as long as each other."""
    share = shown_share(way, IMBALANCE)
    if share < LEAST:
        return []
    return [Trial(share, "equal devices with nothing else on them (`bench doctor`): the slowest rank is waited for; "
                  f"gains at most {percent(way.share(IMBALANCE))} of the step")]  # fmt: skip


def settings(way: Way) -> list[Trial]:
    """Settings whose gain only a measurement shows."""
    alone = f" GPUS={way.config.num_devices}" if way.config.num_devices > 1 else ""
    return [Trial(None, f"`make knobs MODE={way.config.mode}{alone}` measures its settings: what they gain cannot be "
                  "said beforehand")]  # fmt: skip


# --- in words -----------------------------------------------------------------------------------------------------


def step_lines(way: Way, facts: Facts) -> list[str]:
    """The parts of a step, the largest first, and what to try."""
    steps = way.steps_ms
    order = sorted(way.parts, key=lambda part: -shown_share(way, part))
    parts = ", ".join(f"{part} {percent(way.share(part))}" for part in order)
    lines = [f"{way.label}: {style.number(statistics.fmean(steps))} ms per step: {parts}"]
    if not shown_share(way, order[0]):
        lines.append(f"{way.label}: the parts of its step vary too much from round to round to be told apart")
    elif order[0] in (COMPUTATION, REST):
        lines.append(f"{way.label}: the largest part of its step is {order[0]}")
    else:
        lines.append(f"{way.label} is held back by {order[0]}")
    return lines + [f"{way.label}, try {n}: {trial.words}" for n, trial in enumerate(trials(way, facts), 1)]


def shown_share(way: Way, part: str) -> float:
    """The mean share that a part has of the step; 0 where it is not known, or its interval is wider than itself."""
    shares = way.share(part) if part in way.parts else [0.0]
    return 0.0 if words.too_wide(*mean_share(shares)) else statistics.fmean(shares)


def mean_share(shares: list[float]) -> tuple[float, float | None, float | None]:
    """The mean of shares, one for each round, with its 95 % interval."""
    if len(shares) < 2:
        return shares[0], None, None
    return formulas.mean_interval(shares, stats.t_quantile(len(shares) - 1, 0.95))


def percent(shares: list[float]) -> str:
    """A mean share with its interval.

    >>> percent([0.10, 0.12, 0.11]), percent([0.1])
    ('11.0 % [8.5 to 13.5]', '10.0 %')
    >>> percent([-4.9, 7.1, 1.1])
    'not shown'
    """
    mean, low, high = mean_share(shares)
    if words.too_wide(mean, low, high):
        return "not shown"
    interval = "" if low is None else f" [{100 * low:.1f} to {100 * high:.1f}]"
    return f"{100 * mean:.1f} %{interval}".replace("-", "−")
