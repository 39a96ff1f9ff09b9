"""The comparisons: which two programs, by which figure, against which target; and the word that judges them."""

from dataclasses import dataclass

from bench import formulas
from bench.analysis import stats
from bench.config.modes import COMPARED, MODES

STATISTICS = {
    "throughput": "images/s at the median timed step (of a step's slowest rank)",
    "mean throughput": "images/s over all timed steps",
    "start": "seconds from the command to the first timed step, or to the end of the command",
}
INSTANT_S = 0.2
SEVERAL = [mode for mode in COMPARED if not MODES[mode].one_process]  # of several processes


@dataclass(frozen=True)
class Row:
    """``program`` over ``against``: another program, or a limit in seconds.

    target: a lower bound of the ratio, with ``at_most`` an upper one; None: shown, not judged. margin: a row whose
    target is a tie is met when the interval reaches the target and does not end further than this below it.
    """

    part: str
    name: str
    program: str
    against: str | float
    statistic: str
    target: float | None
    at_most: bool = False
    margin: float = 0.0


def all_rows() -> list[Row]:
    """Every comparison, in the table's order."""
    rows = [Row("overhead", f"{mode} / bare loop", mode, f"bare {mode}", "throughput", 0.99) for mode in COMPARED]
    rows += [Row("horovod", "horovod / plain script", "horovod", "bare horovod", "throughput", 1.0, margin=0.02)]
    for setting, target in (("", None), (" tuned", 0.90)):
        for mode in SEVERAL:
            pair = (mode + setting, f"independent{setting}")
            rows += [Row("bound", f"{mode}{setting} / bound", *pair, "throughput", target)]
    for mode in SEVERAL:
        for floor, target in (("join", 1.25), ("first step", None)):
            pair = (f"{mode} start", f"bare {mode} {floor}")
            rows += [Row("startup", f"{mode} / bare {floor}", *pair, "start", target, at_most=True)]
        pair = (f"joined {mode} start", f"bare {mode} first step")
        rows += [Row("startup", f"joined {mode} / bare first step", *pair, "start", 1.1, at_most=True)]
    rows += [
        Row("hosts", f"{mode} over nodes / on one host", f"{mode} over nodes", mode, "throughput", 0.97)
        for mode in SEVERAL
    ]
    for command in ("bench --help", "bench report"):
        rows += [Row("startup", f"{command} / {INSTANT_S} s", command, INSTANT_S, "start", 1.0, at_most=True)]
    return rows


def value(program, sample: dict, statistic: str) -> float:
    """One run's figure. Both sides of a row go through the same formulas."""
    if statistic == "start":
        return sample["ready_s"]
    times, batch = sample["step_time_s"], program.global_batch
    if statistic == "throughput":
        times = formulas.median_steps(times, program.independent)
    if program.independent:
        return formulas.independent_throughput_per_s(times, batch)
    return formulas.throughput_per_s(times, batch)


def interval(row: Row, statistic: str, programs: dict, samples: dict) -> tuple[float, float, float]:
    """The ratio of a row with its 95 % interval, over rounds. samples: name -> one sample per round."""
    a = [value(programs[row.program], sample, statistic) for sample in samples[row.program]]
    if isinstance(row.against, float):
        b = [row.against] * len(a)
    else:
        b = [value(programs[row.against], sample, statistic) for sample in samples[row.against]]
    return formulas.log_ratio_interval(b, a, stats.t_quantile(len(a) - 1, 0.95))


def verdict(row: Row, low: float, high: float) -> str:
    """met: the whole interval keeps the target; missed: none of it does; else inconclusive.

    >>> verdict(Row("", "", "", "", "throughput", target=0.99), low=0.992, high=1.01)
    'met'
    >>> verdict(Row("", "", "", "", "start", target=1.25, at_most=True), low=1.2, high=1.3)
    'inconclusive'
    >>> verdict(Row("", "", "", "", "throughput", target=1.0, margin=0.02), low=0.99, high=1.02)
    'met'
    """
    if row.target is None:
        return ""
    low, high, target = (-high, -low, -row.target) if row.at_most else (low, high, row.target)
    if high < target:
        return "missed"
    return "met" if low >= target - row.margin else "inconclusive"
