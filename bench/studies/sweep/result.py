"""A sweep's answer. The cells of a grid are compared with the fastest one, settings with the same mode without them."""

import dataclasses
import itertools
import math
import re

from bench.analysis import ratio_figure, stats, style
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.suite import Suite, group_by
from bench.analysis.tables import Grid, comparison_grid
from bench.config.command_line import read_option, separator
from bench.config.modes import MODES
from bench.config.options import BY_NAME, GRID
from bench.errors import UserError, shortened
from bench.record.describe import did_not_fit
from bench.studies.sweep.study import MOST_CELLS, RULES, axes_of, label_of_point, point_of

PANEL, LEGEND = 3.0, 0.2  # inches: the axes, a row of the legend
NUMBER = r"\d{0,15}\.?\d{1,15}(e-?\d\d?)?"
LINEAR_UP_TO = 4  # times the smallest value; above, the axis is logarithmic


def labels_of(suite: Suite) -> list[str]:
    """The cells that ran, also those that failed, in the order of the first round."""
    records = sorted([*suite.records, *suite.failed], key=lambda record: record.started_at)
    return list(dict.fromkeys(record.program for record in records))


def is_grid(suite: Suite) -> bool:
    points = list(map(point_of, labels_of(suite)))
    alike = all(point.keys() == points[0].keys() <= BY_NAME.keys() for point in points)
    if suite.first.config.label.variant != GRID or not alike:
        return False
    return math.prod(map(len, axes_of(labels_of(suite)).values())) <= MOST_CELLS  # not of an edited record


def compare(suite: Suite) -> Result:
    programs = list(suite.programs.values())
    if programs and is_grid(suite):
        programs.sort(key=lambda program: -program.mean_throughput[0])
    ordered = dataclasses.replace(suite, programs={program.label: program for program in programs})
    return compare_suite(ordered, RULES, all_pairs=False)


def about(suite: Suite) -> str:
    """The modes as MODE= takes them; of a grid also its other options."""
    axes = axes_of(labels_of(suite)) if is_grid(suite) else {}
    lists = {name: separator(BY_NAME[name]).join(values) for name, values in axes.items()}
    modes = lists.pop("mode", suite.first.config.mode)
    return " ".join([modes, *(f"{name.upper()}={text}" for name, text in lists.items())])


def answer(result: Result) -> list[str]:
    """Of a grid the command of the fastest cell, if it is shown to be faster than every other; the faster settings."""
    suite, base = result.suite, result.base
    preview = suite.disturbed or suite.n < stats.FEWEST_ROUNDS
    if not is_grid(suite):
        shown = [pair for pair in result.pairs if preview or pair.comparison.verdict == "faster"]
        none = f"{base}: none of {len(result.pairs)} settings is shown to be faster than those of the run"
        return [pair.sentence() for pair in sorted(shown, key=lambda pair: -pair.comparison.ratio)] or [none]
    highest = f"{base} has the highest mean"
    if preview or not result.certificate.fair or not result.pairs:
        why = "disturbed" if suite.disturbed else "a preview" if preview else "unfair" if result.pairs else "one cell"
        return [f"no best command ({why}): {highest}"]
    judged = zip(result.pairs, result.significant(), strict=True)
    if equal := [pair.b for pair, holds in judged if not (holds and pair.comparison.verdict == "slower")]:
        return [f"no best command: {highest}, but is not shown to be faster than {', '.join(equal)} (95 %, Holm "
                f"correction over {len(result.pairs)} pairs); ROUNDS=auto adds rounds"]  # fmt: skip
    return [result.pairs[0].sentence(), f"best: {suite.programs[base].first.command}"]


def summary(result: Result) -> list[Grid]:
    """The cells of a grid, the fastest first, then those without a result and why."""
    if not is_grid(result.suite):
        return []
    found = comparison_grid(result)
    more = [""] * (len(found.head) - 6)  # TFLOP/s, MFU, energy
    rows = [[label, "", "", "", why, "0", *more] for label, why in without_result(result.suite).items()]
    return [dataclasses.replace(found, rows=[*found.rows, *rows], caption="Cells, the fastest first")]


def without_result(suite: Suite) -> dict[str, str]:
    """The cells that failed, and the combinations that cannot run, each with the reason."""
    labels, config, found = labels_of(suite), suite.first.config, {}
    for record in suite.failed:
        if record.program not in suite.programs:
            why = f"failed: {shortened(record.failure['message'])}"
            found[record.program] = "did not fit into memory" if did_not_fit(record.failure) else why
    axes = {"mode": [config.mode]} | axes_of(labels)
    for values in itertools.product(*axes.values()):
        point, parts = dict(zip(axes, values, strict=True)), {"launcher": "auto"}
        if (label := label_of_point(point)) not in labels:
            try:
                for name, text in point.items():
                    parts |= read_option(BY_NAME[name], text)
                dataclasses.replace(config, **parts)
                found[label] = "not run"
            except UserError as error:
                found[label] = f"cannot run: {error}"
    return found


# --- the picture ----------------------------------------------------------------------------------------------------


@style.styled
def draw(result: Result):
    """Throughput over the number with the most values, a line per combination of the other options; without a number,
    points."""
    suite = result.suite
    if not is_grid(suite):
        return ratio_figure.draw_pairs(result, result.pairs, "What the settings change")
    points, values = {label: point_of(label) for label in suite.programs}, axes_of(labels_of(suite))
    numbers = [name for name, texts in values.items() if all(re.fullmatch(NUMBER, text) for text in texts)]
    x = max(numbers or values, key=lambda name: len(values[name]), default="mode")
    others = [name for name in values if name != x]
    lines = group_by(suite.programs, lambda label: tuple(points[label][name] for name in others))
    more = ["Geometric mean over the rounds" + ("; bars: 95 % intervals." if suite.n >= stats.FEWEST_ROUNDS else ".")]
    more += [f"Not drawn: {label} ({why})." for label, why in without_result(suite).items()]
    title = f"Throughput by {' and '.join(map(str.upper, values)) or 'cell'}"
    figure, (axes,) = style.panels(result, title, [PANEL], 0.6 + LEGEND * math.ceil(len(lines) / 2), more)
    places = {text: float(text if x in numbers else place) for place, text in enumerate(values.get(x, [result.base]))}
    ordered = sorted(places.values())
    if x in numbers and 0 < LINEAR_UP_TO * ordered[0] < ordered[-1]:
        axes.set_xscale("log")
        axes.minorticks_off()
    looks, used = [info.look for info in MODES.values()], {}
    for number, (line, labels) in enumerate(sorted(lines.items())):
        programs = [suite.programs[label] for label in sorted(labels, key=lambda label: places[points[label][x]])]
        look = programs[0].first.mode.look if "mode" in others else looks[number % len(looks)]
        turn = used[look.colour] = used.get(look.colour, -1) + 1  # the same colour again: another line and marker
        if turn:
            marker = looks[turn % len(looks)].marker
            look = dataclasses.replace(look, line=style.LINES[turn % len(style.LINES)], marker=marker)
        words = [text if name == "mode" else f"{name.upper()}={text}" for name, text in zip(others, line, strict=True)]
        shift, shown = (0, {}) if x in numbers else (0.4 * (number / len(lines) - 0.5), {"linestyle": "none"})
        xs = [places[points[program.label][x]] + shift for program in programs]
        style.draw_line(axes, xs, [each.mean_throughput for each in programs], look, ", ".join(words), **shown)
    axes.set_xticks(ordered, sorted(places, key=places.get))
    axes.set_ylim(bottom=0)
    axes.margins(x=0.08)
    style.finish(axes, x.upper(), f"{suite.units} per second", grid="y", legend=2 if others else 0)
    return figure


FIGURES = {"sweep": {"sweep": draw}}
