"""A breakdown compared: each program's step, its phases, and the communication that is not hidden.

Exposed communication is a mode's step time less that of the same run without any exchange, paired by round. DDP's
broadcast of buffers is in it, and on a CPU the cores that communication takes from computation.
"""

import statistics

from bench import formulas
from bench.analysis import stats, style, words
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.suite import Program, Suite
from bench.record.definition import Sample
from bench.record.view import Record
from bench.studies.breakdown.study import RULES
from bench.studies.speed import grids, summary  # noqa: F401, a part of this study

PHASES = ("data wait", "forward", "backward", "synchronize", "optimizer", "other")
COPIES = ("scatter", "replicate", "gather")  # what DataParallel does besides the forward pass


def compare(suite: Suite) -> Result:
    return compare_suite(suite, RULES, all_pairs=False)


def answer(result: Result) -> list[str]:
    """Each program's step and, where it was measured, what of it is exposed communication or DataParallel's copies."""
    suite, profiled, lines = result.suite, latest(result.suite), []
    for program in suite.programs.values():
        if not program.config.sync:
            continue
        line = f"{program.label}: {style.number(statistics.fmean(map(step_ms, program.records)))} ms per step"
        if bare := bare_of(suite, program):
            line += f", exposed communication {exposed_words(program, *exposed_comm(program, bare)[1:])}"
        parts = parts_ms(profiled[program.label]) if program.label in profiled else {}
        if parts:
            line += f"; {parts_words(parts)} (of one step under a profiler, which slows it)"
        lines.append(line)
    return lines


def bare_of(suite: Suite, program: Program) -> Program | None:
    """The same program without its gradient exchange."""
    return next((p for p in suite.programs.values() if p.overrides(program) == {"sync": False}), None)


def exposed_comm(program: Program, bare: Program) -> tuple:
    """([ms of each round], mean, low, high) of the exposed communication; low and high None for a preview."""
    pairs = zip(program.records, bare.records, strict=True)
    each = [1e3 * formulas.exposed_comm_s(step_ms(record) / 1e3, step_ms(other) / 1e3) for record, other in pairs]
    if len(each) < stats.FEWEST_ROUNDS:
        return each, statistics.fmean(each), None, None
    return each, *formulas.mean_interval(each, stats.t_quantile(len(each) - 1, 0.95))


def exposed_words(program: Program, mean: float, low: float | None, high: float | None) -> str:
    """The exposed communication with its interval and its share of the step; "not shown" where it is noise."""
    if words.too_wide(mean, low, high):
        return words.measured(mean, low, high)
    if low is None:
        return f"{style.number(mean)} ms (preview: no interval)"
    share = 100 * mean / statistics.fmean(step_ms(record) for record in program.records)
    interval = f"[{style.number(low)} to {style.number(high)}]"
    return f"{style.number(mean)} ms {interval}, {style.number(round(share))} % of the step"


def slowest(record: Record) -> Sample:
    return max(record.samples, key=lambda part: sum(part.step_time_s))


def step_ms(record: Record) -> float:
    """Mean milliseconds of the slowest rank's steps: global batch over throughput."""
    return 1e3 * statistics.fmean(slowest(record).step_time_s)


def phases_ms(records: list[Record]) -> dict[str, float]:
    """Mean milliseconds of each phase over the rounds; what no phase accounts for is "other"."""
    parts = [slowest(record) for record in records]
    rounds = [phases_of(part.step_time_s, part.data_wait_s, part.phase_time_s) for part in parts]
    return {name: 1e3 * statistics.fmean(phases[name] for phases in rounds) for name in PHASES}


def phases_of(step_time_s: list[float], data_wait_s: list[float], phase_time_s: dict) -> dict[str, float]:
    """Mean seconds of each phase in one rank's steps; they add up to the step.

    The wait for data is cut to what the timed phases leave of the step. On a CPU it always fits; on a GPU the host
    waits while the device still computes, and the same time would be in two phases.

    >>> found = phases_of([1.0, 2.0], [0.1, 0.1], {"forward": [0.3, 0.5]})
    >>> {name: round(value, 3) for name, value in found.items() if value}
    {'data wait': 0.1, 'forward': 0.4, 'other': 1.0}
    >>> found = phases_of([1.0, 2.0], [1.4, 1.4], {"forward": [0.3, 0.5]})
    >>> {name: round(value, 3) for name, value in found.items() if value}
    {'data wait': 1.1, 'forward': 0.4}
    """
    found = {name: statistics.fmean(phase_time_s.get(name) or [0.0]) for name in PHASES}
    left = max(0.0, statistics.fmean(step_time_s) - sum(found.values()))
    found["data wait"] = min(left, statistics.fmean(data_wait_s))
    found["other"] = left - found["data wait"]
    return found


# --- profiled runs ------------------------------------------------------------------------------------------------


def latest(suite: Suite) -> dict[str, Record]:
    """The last profiled run of each program that holds a timeline."""
    found = {}
    for record in sorted(suite.extra, key=lambda r: r.started_at):
        if timelines(record):
            found[record.program] = record
    return found


def timelines(record: Record) -> dict[int, dict]:
    """Rank -> its timeline, for the ranks that have one."""
    return {part.rank: part.timeline for part in record.samples if part.timeline}


def parts_ms(record: Record) -> dict[str, float]:
    """What DataParallel does besides the forward pass, in milliseconds of the profiled step; empty for other modes."""
    found = {}
    for timeline in timelines(record).values():
        for span in timeline["spans"]:
            if span["lane"] == "dp" and span["name"] != "forward":
                found[span["name"]] = found.get(span["name"], 0.0) + 1000 * (span["end_s"] - span["start_s"])
    return found


def parts_words(parts: dict[str, float]) -> str:
    """The parts one by one; one that was not seen says so.

    >>> parts_words({"scatter": 0.5, "gather": 12.34})
    'scatter 0.5 ms, replicate not seen, gather 12.3 ms'
    """
    return ", ".join(
        f"{name} {style.number(parts[name])} ms" if name in parts else f"{name} not seen" for name in COPIES
    )
