"""Weak or strong scaling compared: speedup and efficiency against the number of devices, with intervals."""

from bench import formulas
from bench.analysis import comparison, stats
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.suite import Program, Suite
from bench.analysis.words import measured
from bench.studies.scaling.study import STRONG, STRONG_RULES, WEAK_RULES
from bench.studies.speed import grids, summary  # noqa: F401, a part of this study


def compare(suite: Suite) -> Result:
    return compare_suite(suite, STRONG_RULES if suite.study == STRONG.name else WEAK_RULES, all_pairs=False)


def series(result: Result) -> dict[str, dict[int, Program]]:
    """Mode -> number of devices -> its program."""
    found = {}
    for program in result.suite.programs.values():
        found.setdefault(program.config.mode, {})[program.config.num_devices] = program
    return found


def throughput(result: Result, program: Program) -> tuple:
    """(geometric mean, low, high) of a program's throughput, examples per second; low and high None with one round."""
    one = stats.compare_rounds([1.0] * len(program.throughputs), program.throughputs)
    return one.ratio, one.low, one.high


def speedup(result: Result, program: Program) -> tuple:
    """Throughput over the base's, paired by round: (ratio, low, high)."""
    if program.label == result.base:
        return 1.0, None, None
    both = comparison.compare(result.suite, result.base, program.label)
    return both.ratio, both.low, both.high


def efficiency(result: Result, program: Program) -> tuple:
    """Speedup over the number of devices, as a multiple of the base's, in percent: (value, low, high)."""
    count = program.config.num_devices / result.suite.programs[result.base].config.num_devices
    return tuple(
        None if x is None else 100 * formulas.scaling_efficiency(x, 1.0, count) for x in speedup(result, program)
    )


def answer(result: Result) -> list[str]:
    """Speedup and efficiency of each mode on the most devices, the fastest first and the upper bound last."""
    lines = series(result)
    most = max(count for points in lines.values() for count in points)
    there = [points[most] for points in lines.values() if most in points]
    there.sort(key=lambda program: (program.is_bound, -speedup(result, program)[0]))
    return [
        f"{program.label}: speedup {measured(*speedup(result, program), '.2f', before='×')}, "
        f"efficiency {measured(*efficiency(result, program), '.0f', after=' %')}"
        + (" (upper bound: no communication)" if program.is_bound else "")
        for program in there
    ]
