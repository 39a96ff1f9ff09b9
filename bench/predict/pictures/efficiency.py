"""Efficiency over devices: a line with its band for each mode, as predicted; marks for what was measured and emulated.

Efficiency is throughput over that of as many devices that need nothing of each other.
"""

import math

from bench import formulas
from bench.analysis import stats, style
from bench.config.modes import MODES
from bench.predict.pictures.points import Asked, Points, by_place, disturbed, how_emulated, span
from bench.predict.step import result
from bench.predict.step.result import CONFIDENCE, PREDICTED, Forecast

BODY = 3.9  # inches
TITLE = "Efficiency over devices"
FILLED, HOLLOW = "o", "s"  # marks: measured, emulated
DODGE = 0.1  # of a doubling: marks of one number of devices beside each other


@style.styled
def draw(asked: Asked, found: list[Forecast], points: Points):
    """One line for each mode; a filled mark is measured, a hollow one emulated."""
    kinds = {"measured": (points.measured, FILLED), "emulated": (points.emulated, HOLLOW)}
    said = [PREDICTED, *(kind for kind, (records, _) in kinds.items() if records)]
    paper = style.canvas(None, f"{TITLE}: {', '.join(said)}", BODY, None, tuple(foot(asked, points)))
    (axes,) = style.axes_on(paper)
    lines = {}
    for each in sorted([*found, *between(asked, found)], key=lambda each: each.ranks):
        lines.setdefault(each.mode, []).append(each)
    for mode, line in lines.items():
        draw_line(axes, mode, line)
    for kind, (records, marker) in kinds.items():
        draw_points(axes, asked, records, marker, hollow=kind == "emulated")
    counts = sorted({1, *(each.ranks for each in found), *(ranks for _, ranks in by_place(all_of(points)))})
    axes.set_xticks([math.log2(count) for count in counts], [str(count) for count in counts])
    axes.set(ylim=(0, 105), xlabel="devices", ylabel="efficiency, %")
    axes.minorticks_off()
    style.horizontal_grid(axes)
    style.legend_above(axes, 4, [*mode_handles(found), *kind_handles(found, kinds)])
    return paper.figure


def between(asked: Asked, found: list[Forecast]) -> list[Forecast]:
    """The forecasts on each power of two of devices below the most, where there is none: a line is straight between
    two of its points, and efficiency is not."""
    there = {(each.mode, each.ranks) for each in found}
    powers = [2**power for power in range(1, max(each.ranks for each in found).bit_length())]
    return [result.forecast(asked.profile, config, ranks, asked.link) for mode, config in asked.configs.items()
            for ranks in powers if (mode, ranks) not in there]  # fmt: skip


def all_of(points: Points) -> list:
    """Every record that is drawn."""
    return [*points.measured, *points.emulated]


def draw_line(axes, mode: str, found: list[Forecast]) -> None:
    """What is predicted of a mode, from one device on, which loses nothing. found: by rising numbers of devices."""
    look = MODES[mode].look
    xs = [0.0, *(math.log2(each.ranks) for each in found)]
    axes.plot(xs, [100, *(100 * each.efficiency for each in found)], color=look.colour, linestyle=look.line)
    ends = [each.efficiency_ends or (each.efficiency,) * 2 for each in found]
    lows, highs = ([100, *(100 * end[i] for end in ends)] for i in (0, 1))
    axes.fill_between(xs, lows, highs, color=look.colour, alpha=0.25, linewidth=0)


def draw_points(axes, asked: Asked, records: list, marker: str, hollow: bool) -> None:
    """A mark for each mode and number of devices: the mean of the records, with its interval where there are more."""
    modes = list(asked.configs)
    for (mode, ranks), same in by_place(records).items():
        x = math.log2(ranks) + DODGE * (modes.index(mode) - (len(modes) - 1) / 2)
        colour, edge = MODES[mode].look.colour, {"markeredgecolor": style.BLACK, "markeredgewidth": 0.8}
        values = [100 * asked.efficiency(record) for record in same]
        middle = sum(values) / len(values)
        if len(values) > 1:
            _, low, high = formulas.mean_interval(values, stats.t_quantile(len(values) - 1, CONFIDENCE))
            axes.plot([x, x], [low, high], color=style.BLACK, linewidth=1)
        if hollow:
            colour, edge = "none", {"markeredgecolor": colour, "markeredgewidth": 1.8}
        axes.plot(x, middle, marker, markerfacecolor=colour, markersize=8 if hollow else 5, zorder=3, **edge)


def mode_handles(found: list[Forecast]) -> list:
    """In the legend: each mode."""
    from matplotlib.lines import Line2D

    looks = {each.mode: MODES[each.mode].look for each in found}
    return [Line2D([], [], color=look.colour, linestyle=look.line, label=mode) for mode, look in looks.items()]


def kind_handles(found: list[Forecast], kinds: dict) -> list:
    """In the legend: what a line with its band is, and what the marks are."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Line2D([], [], color=style.GREY, label=PREDICTED)]
    if any(each.low_s is not None for each in found):
        handles.append(Patch(facecolor=style.GREY, alpha=0.35, label="its 95 % interval"))
    for kind, (records, marker) in kinds.items():
        face = style.WHITE if marker == HOLLOW else style.GREY
        if records:
            handles.append(Line2D([], [], color=style.GREY, linestyle="none", marker=marker, markerfacecolor=face,
                                  label=kind))  # fmt: skip
    return handles


def foot(asked: Asked, points: Points) -> list[str]:
    """What all of it rests on."""
    lines = ["Efficiency: throughput over that of as many devices that need nothing of each other, by the profile.",
             *asked.standing()]  # fmt: skip
    lines += [f"The {line.removeprefix('the ')}." for line in result.limits(len(asked.profile.factors), asked.link)[:1]]
    if points.measured:
        n = span([len(records) for records in by_place(points.measured).values()], "{:g}")
        networks = sorted({record.network or "processes of one machine" for record in points.measured})
        lines.append(f"Measured: n = {n} rounds, 95 % intervals; {'; '.join(networks)}{disturbed(points.measured)}.")
    return lines + how_emulated(points.emulated)
