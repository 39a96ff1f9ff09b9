"""A suite compared by throughput: the fastest first, by how much, how sure; other studies of speed share it."""

from bench.analysis.comparison import Result, compare_suite
from bench.record.describe import contradiction
from bench.studies.speed import grids, summary  # noqa: F401, a part of this study

compare = compare_suite


def answer(result: Result) -> list[str]:
    """The fastest mode against each other, as the comparison says it; a single round says only its ratio, and
    where its median steps say that the other one is faster."""
    if result.suite.n > 1:
        return result.answer()
    best, *others = result.ranking()
    ratios = {label: result.pair(label, best).comparison.ratio for label in others}
    units = result.suite.units
    lines = [f"{best} did ×{x:.2f} the {units}/s of {label} in one round: no interval" for label, x in ratios.items()]
    first = {label: program.first for label, program in result.suite.programs.items()}
    return lines + [said for label in others if (said := contradiction(first[best], first[label]))]
