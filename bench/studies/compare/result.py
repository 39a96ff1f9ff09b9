"""Compare a suite by throughput: the fastest first, differences with intervals; and its figures."""

import statistics

from bench.analysis import memory_figure, power_figure, ratio_figure, style
from bench.analysis.certificate import NOTHING_VARIES
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.suite import CHOSEN, Suite
from bench.config.combined import is_part
from bench.config.command_line import parse_value
from bench.config.fields import in_words
from bench.config.options import FIELDS
from bench.record.describe import contradiction
from bench.studies.compare.study import RULES

BAR_ROW = 0.5  # inches


def compare(suite: Suite) -> Result:
    return compare_suite(suite, RULES if about(suite) else NOTHING_VARIES)


def about(suite: Suite) -> str:
    """The programs that were chosen, as MODES= takes them; "" for all modes."""
    if suite.first.config.label.variant != CHOSEN:
        return ""
    return ",".join(":".join([mode, *map(in_make_form, options)]) for mode, *options in map(str.split, suite.programs))


def in_make_form(option: str) -> str:
    """An option of a label as a person types it: ``bucket_cap_mb=25`` is ``BUCKET_CAP_MB=25``."""
    name, _, value = option.partition("=")
    f = FIELDS[name]
    return in_words(f, parse_value(f, value)) if is_part(f) else f"{name.upper()}={value}"


def heading_of(suite: Suite) -> str:
    return "Comparison of chosen configurations" if about(suite) else "Comparison"


def answer(result: Result) -> list[str]:
    """The fastest mode against each other; for a single round also contradictions by the median steps."""
    if result.suite.n > 1:
        return result.answer()
    best, *others = result.ranking()
    first = {label: program.first for label, program in result.suite.programs.items()}
    return result.answer() + [said for label in others if (said := contradiction(first[best], first[label]))]


@style.styled
def draw_ratios(result):
    bounds = [program.label for program in result.suite.programs.values() if program.is_bound]
    more = (f"{' and '.join(bounds)}: the no-communication baseline, not a way to train.",) if bounds else ()
    return ratio_figure.draw_pairs(result, result.pairs, "Which is faster, and by how much?", more)


@style.styled
def draw_throughput(result):
    suite, looks = result.suite, style.looks(result.suite)
    key = "Bar: geometric mean of the rounds. Dot: one round"
    key += ". Ring: an outlier (included)." if any(result.outliers.values()) else "."
    figure, (axes,) = style.panels(result, "Throughput (every round)", [BAR_ROW * len(looks)], 0.7, [key])
    for y, (label, look) in enumerate(looks.items()):
        values, far = suite.programs[label].throughputs, result.outliers.get(label, [])
        mean = statistics.geometric_mean(values)
        axes.barh(y, mean, 0.62, **style.bar(look))
        heights = style.draw_dots(axes, values, y, 0.16)
        rings = [point for number, *point in zip(suite.rounds, values, heights, strict=True) if number in far]
        ratio_figure.ring(axes, rings, 10.5)
        axes.annotate(style.number(mean), (max(values), y), (9, 0), textcoords="offset points", va="center",
                      size=style.SMALL + 0.5)  # fmt: skip
    style.name_rows(axes, looks)
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    if axes.get_xlim()[1] >= 1e5:
        axes.locator_params(axis="x", nbins=5)  # long numbers would overlap
    style.finish(axes, f"{suite.units} per second, all devices together")
    return figure


FIGURES = {
    "compare": {
        "ratios": draw_ratios,
        "throughput": draw_throughput,
        "memory": memory_figure.draw,
        "memory-over-time": memory_figure.draw_over_time,
        "power": power_figure.draw_suite,
    }
}
