"""Weak and strong scaling: throughput, speedup and efficiency against the number of devices, with intervals.

The bound is measured: as many independent processes that exchange nothing. Where a machine has fewer cores than
workers, the upper bound falls away from the ideal line, and that gap is the machine's, not a mode's.
"""

import math

from bench.analysis import style
from bench.config.modes import MODES
from bench.studies.scaling.result import efficiency, series, speedup, throughput
from bench.studies.scaling.study import WEAK

PANEL = 2.25  # inches
DODGE = 0.012  # of the axis, between modes at one number of devices, so that intervals do not hide each other
LINEAR_UP_TO = 8  # devices; beyond, each doubling is a step of the axis


@style.styled
def draw(result):
    suite, lines = result.suite, series(result)
    bounds = [mode for mode, points in lines.items() if next(iter(points.values())).is_bound]
    weak = suite.study == WEAK.name
    fixed = "batch per device fixed" if weak else "global batch fixed"
    key = f"Speedup and efficiency against `{result.base}`, {fixed}. Bars: 95 % intervals over the "
    key += "rounds; one without its cap extends beyond the axis."
    bound_key = "Dotted: the upper bound, as many independent processes that exchange nothing; hatched: what this "
    more = (key, bound_key + "machine itself takes, whatever the mode.") if bounds else (key,)
    paper = style.canvas(suite, f"{suite.study.capitalize()} scaling", 3 * PANEL + 0.9, result.certificate, more)
    panels = style.axes_on(paper, 3, sharex=True)
    counts = sorted({count for points in lines.values() for count in points})
    values = {f"{suite.units}/s": throughput, "speedup (×)": speedup, "efficiency (%)": efficiency}
    for axes, (label, value) in zip(panels, values.items(), strict=True):
        draw_panel(axes, result, lines, bounds, counts, value)
        axes.set_ylabel(label)
    panels[-1].set_xlabel("devices" if suite.device == "cuda" else "devices (CPU workers)")
    panels[-1].set_xticks([place(count, counts) for count in counts], [str(count) for count in counts])
    panels[-1].margins(x=0.07)
    style.legend_above(panels[0], 3)
    return paper.figure


def place(count: int, counts: list[int]) -> float:
    """Where a number of devices is on the axis: to scale, or by doublings where there are many.

    >>> place(4, [1, 2, 4]), place(16, [1, 4, 16])
    (4.0, 4.0)
    """
    return float(count) if max(counts) <= LINEAR_UP_TO else math.log2(count)


def aside(lines: dict, mode: str, count: int) -> float:
    """By how many dodges a mode is shifted where others have the same number of devices.

    >>> aside({"dp": {2: ""}, "ddp": {2: ""}}, "ddp", 2), aside({"single": {1: ""}, "dp": {2: ""}}, "single", 1)
    (0.5, 0.0)
    """
    there = [name for name, points in lines.items() if count in points]
    return there.index(mode) - (len(there) - 1) / 2


def draw_panel(axes, result, lines: dict, bounds: list[str], counts: list[int], value) -> None:
    base = result.suite.programs[result.base]
    one = value(result, base)[0]
    ideal = [one if value is efficiency else one * count for count in counts]
    places = [place(count, counts) for count in counts]
    axes.plot(places, ideal, color=style.GREY, linewidth=1, linestyle=(0, (4, 3)), label="ideal")
    for mode in bounds:
        points = {counts[0]: base} | lines[mode]
        at = [i for i, count in enumerate(counts) if count in points]
        reached = [value(result, points[counts[i]])[0] for i in at]
        axes.fill_between([places[i] for i in at], reached, [ideal[i] for i in at], facecolor="none",
                          edgecolor="#B8B8B8", hatch="////", linewidth=0)  # fmt: skip
    step = DODGE * max(1.0, places[-1] - places[0])
    highest = []
    for mode, points in lines.items():
        look = MODES[mode].look
        at = sorted(points)
        values = [value(result, points[count]) for count in at]
        xs = [place(count, counts) + step * aside(lines, mode, count) for count in at]
        ys = [middle_value for middle_value, _, _ in values]
        highest += ys
        below = [0 if low is None else y - low for y, low, _ in values]
        above = [0 if high is None else high - y for y, _, high in values]
        axes.errorbar(xs, ys, yerr=[below, above], color=look.colour, marker=look.marker, linestyle=look.line,
                      capsize=3, label=mode)  # fmt: skip
    axes.set_ylim(0, 1.12 * max([*ideal, *highest]))
    style.horizontal_grid(axes)


FIGURES = {"weak": {"weak-scaling": draw}, "strong": {"strong-scaling": draw}}
