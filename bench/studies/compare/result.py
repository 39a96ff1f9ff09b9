"""A suite compared by throughput: the fastest first, by how much, how sure; other studies of speed share it."""

from bench.analysis.certificate import NOTHING_VARIES
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.suite import CHOSEN, Suite
from bench.record.describe import contradiction
from bench.studies.base import Hooks
from bench.studies.compare.study import RULES
from bench.studies.speed import grids, summary  # noqa: F401, a part of this study


def compare(suite: Suite) -> Result:
    return compare_suite(suite, RULES if about(suite) else NOTHING_VARIES)


def about(suite: Suite) -> str:
    """The programs that were chosen, as MODES= takes them; "" where it was all modes."""
    if suite.first.config.label.variant != CHOSEN:
        return ""
    return ",".join(":".join([mode, *map(capital, options)]) for mode, *options in map(str.split, suite.programs))


def heading_of(suite: Suite) -> str:
    """The heading; the labels of programs that were chosen are in every table."""
    return "Comparison of chosen programs" if about(suite) else "Comparison"


def capital(option: str) -> str:
    """An option of a label as a person types it.

    >>> capital("bucket_cap_mb=25")
    'BUCKET_CAP_MB=25'
    """
    name, _, value = option.partition("=")
    return f"{name.upper()}={value}"


def answer(result: Result) -> list[str]:
    """The fastest mode against each other; of a single round also where its median steps contradict."""
    if result.suite.n > 1:
        return result.answer()
    best, *others = result.ranking()
    first = {label: program.first for label, program in result.suite.programs.items()}
    return result.answer() + [said for label in others if (said := contradiction(first[best], first[label]))]


HOOKS = Hooks(about=about, heading_of=heading_of)
