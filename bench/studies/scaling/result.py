"""Weak and strong scaling: throughput, speedup and efficiency against the number of devices, with intervals.

The no-communication baseline is measured with the same number of independent processes. If a machine has fewer cores
than workers, the baseline falls below the ideal line: that gap comes from the machine, not from a mode.
"""

import math

from bench import formulas
from bench.analysis import style
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.suite import Program, Suite
from bench.analysis.words import measured
from bench.config.modes import MODES
from bench.studies.scaling.study import STRONG, STRONG_RULES, WEAK_RULES

PANEL = 2.25  # inches
DODGE = 0.012  # offset on the axis between modes at one number of devices, so that intervals do not overlap
LINEAR_UP_TO = 8  # devices; above, the axis has one tick per doubling


def compare(suite: Suite) -> Result:
    return compare_suite(suite, STRONG_RULES if suite.study == STRONG.name else WEAK_RULES, all_pairs=False)


def series(result: Result) -> dict[str, dict[int, Program]]:
    found = {}
    for program in result.suite.programs.values():
        found.setdefault(program.config.mode, {})[program.config.num_devices] = program
    return found


def speedup(result: Result, program: Program) -> tuple:
    if program.label == result.base:
        return 1.0, None, None
    both = result.pair(result.base, program.label).comparison
    return both.ratio, both.low, both.high


def efficiency(result: Result, program: Program) -> tuple:
    """Speedup over the number of devices, as a multiple of the base's, in percent: (value, low, high)."""
    count = program.config.num_devices / result.suite.programs[result.base].config.num_devices
    return tuple(
        None if x is None else 100 * formulas.scaling_efficiency(x, 1.0, count) for x in speedup(result, program)
    )


def answer(result: Result) -> list[str]:
    """Speedup and efficiency of each mode on the most devices, the fastest first and the baseline last."""
    lines = series(result)
    most = max(count for points in lines.values() for count in points)
    there = [points[most] for points in lines.values() if most in points]
    there.sort(key=lambda program: (program.is_bound, -speedup(result, program)[0]))
    return [
        f"{program.label}: speedup {measured(*speedup(result, program), '.2f', before='×')}, "
        f"efficiency {measured(*efficiency(result, program), '.0f', after=' %')}"
        + (" (no-communication baseline)" if program.is_bound else "")
        for program in there
    ]


# --- the picture ----------------------------------------------------------------------------------------------------


@style.styled
def draw(result):
    suite, lines = result.suite, series(result)
    bounds = [mode for mode, points in lines.items() if next(iter(points.values())).is_bound]
    fixed = "global batch fixed" if suite.study == STRONG.name else "batch per device fixed"
    key = f"Speedup and efficiency against `{result.base}`, {fixed}. Bars: 95 % CI over the "
    key += "rounds (without a cap: it continues beyond the axis)."
    bound_key = "Dotted: the no-communication baseline (independent processes). Hatched: throughput that this "
    more = (key, bound_key + "machine loses in any mode.") if bounds else (key,)
    figure, panels = style.panels(result, f"{suite.study.capitalize()} scaling", [PANEL] * 3, 0.9, more, sharex=True)
    counts = sorted({count for points in lines.values() for count in points})
    to_scale = counts[-1] <= LINEAR_UP_TO
    places = {count: float(count) if to_scale else math.log2(count) for count in counts}  # on the axis
    rate = {f"{suite.units}/s": lambda _, program: program.mean_throughput}
    values = rate | {"speedup (×)": speedup, "efficiency (%)": efficiency}
    for axes, (label, value) in zip(panels, values.items(), strict=True):
        draw_panel(axes, result, lines, bounds, places, value)
        style.finish(axes, y=label, grid="y")
    panels[-1].set_xlabel("devices" if suite.device == "cuda" else "devices (CPU processes)")
    panels[-1].set_xticks(list(places.values()), list(map(str, places)))
    panels[-1].margins(x=0.07)
    style.legend_above(panels[0], 3)
    return figure


def dodge_shift(lines: dict, mode: str, count: int) -> float:
    """The shift of a mode in dodges, if others have the same number of devices."""
    there = [name for name, points in lines.items() if count in points]
    return there.index(mode) - (len(there) - 1) / 2


def draw_panel(axes, result, lines: dict, bounds: list[str], places: dict[int, float], value) -> None:
    base = result.suite.programs[result.base]
    one = value(result, base)[0]
    counts = list(places)
    ideal = {count: one if value is efficiency else one * count for count in counts}
    axes.plot(
        list(places.values()), list(ideal.values()), color=style.GREY, linewidth=1, linestyle=(0, (4, 3)), label="ideal"
    )
    for mode in bounds:
        points = {counts[0]: base} | lines[mode]
        at = [count for count in counts if count in points]
        reached = [value(result, points[count])[0] for count in at]
        axes.fill_between([places[count] for count in at], reached, [ideal[count] for count in at], facecolor="none",
                          edgecolor="#B8B8B8", hatch="////", linewidth=0)  # fmt: skip
    step = DODGE * max(1.0, places[counts[-1]] - places[counts[0]])
    highest = max(ideal.values())
    for mode, points in lines.items():
        at = sorted(points)
        values = [value(result, points[count]) for count in at]
        xs = [places[count] + step * dodge_shift(lines, mode, count) for count in at]
        highest = max([highest, *(y for y, _, _ in values)])
        style.draw_line(axes, xs, values, MODES[mode].look, mode)
    axes.set_ylim(0, 1.12 * highest)


FIGURES = {"weak": {"weak-scaling": draw}, "strong": {"strong-scaling": draw}}
