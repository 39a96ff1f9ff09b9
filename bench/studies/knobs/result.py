"""Compare a sweep of settings: each with the same mode under the settings of the run."""

from bench.analysis import ratio_figure, stats, style, words
from bench.analysis.comparison import Result, compare_suite
from bench.analysis.suite import Program, Suite
from bench.config.fields import option_value
from bench.config.options import KNOBS, UNSET
from bench.studies.knobs.study import COMPILE_NOTE, RULES

CELL = 0.72  # inches, the height of a row
SIGNS = {"faster": "▲", "slower": "▼", "tie": "=", "no difference": "≈", "inconclusive": "?"}


def compare(suite: Suite) -> Result:
    return compare_suite(suite, RULES, all_pairs=False)


def about(suite: Suite) -> str:
    return suite.first.config.mode


def notes(suite: Suite) -> list[str]:
    return [COMPILE_NOTE] if any(program.config.compile for program in suite.programs.values()) else []


def settings_of(suite: Suite) -> tuple[Program | None, dict[str, dict]]:
    """The program with the settings of the run, and label -> the options that another program sets."""
    programs = list(suite.programs.values())
    base = programs[0] if programs else None
    return base, {program.label: program.overrides(base) for program in programs[1:]}


def answer(result: Result) -> list[str]:
    """The settings that are faster than the run's; the run's settings; a note on multiple comparisons."""
    suite, found = result.suite, {pair.b: pair.comparison for pair in result.pairs}
    base, _ = settings_of(suite)
    if suite.disturbed or suite.n < stats.FEWEST_ROUNDS:
        return [*(each.sentence(base.label, label) for label, each in found.items()), base_words(base)]
    faster = sorted((label for label in found if found[label].verdict == "faster"), key=lambda x: -found[x].ratio)
    lines = [found[label].sentence(base.label, label) for label in faster]
    if not faster:
        lines.append(f"{base.label}: none of {len(found)} settings is shown to be faster than those of the run")
    return [*lines, base_words(base), *chance(suite)]


def base_words(base: Program) -> str:
    config, why = base.config, " (TUNED)" if base.config.tuned else ""
    if not base.first.mode.knobs:  # no backend options: training options were swept
        switches = ("channels_last", "cudnn_benchmark", "fused", "compile")
        ways = [config.precision, *(n for n in switches if getattr(config, n))]
        return f"{base.label}: the settings of the run, {', '.join(ways)}{why}."
    given = [n for n in UNSET if n in KNOBS and getattr(config, n) != UNSET[n]]
    listed = ", ".join(f"{n}={option_value(getattr(config, n))}" for n in given)
    text = f"not the backend's default{why}: {listed}" if given else f"all the backend's defaults{why}"
    return f"{base.label}: the settings of the run, {text}."


def chance(suite: Suite) -> list[str]:
    count = len(settings_of(suite)[1])
    if not count or suite.disturbed or suite.n < stats.FEWEST_ROUNDS:
        return []
    return [
        f"{count} {'setting' if count == 1 else 'settings'} compared, each at 95 %: of settings that change nothing, "
        "about one in twenty would be called different by chance."
    ]


# --- the picture ----------------------------------------------------------------------------------------------------


@style.styled
def draw(result):
    """A heat map of the values of each option, light is fast; without a grid, each setting's ratio."""
    suite = result.suite
    base, settings = settings_of(suite)
    if settings and not grid_of(suite)[1]:
        more = (base_words(base), *chance(suite), *notes(suite))
        return ratio_figure.draw_pairs(result, result.pairs, "What the settings change", more)
    panels = panels_of(result) if settings else []
    key = f"Ratio of {suite.units}/s to the same mode with the settings of the run. "
    if suite.disturbed:
        key += "95 % CI below the ratio."
    elif suite.n >= stats.FEWEST_ROUNDS:
        key += "▲ faster, ▼ slower, = tie within ±2 %, ≈ no difference found, ? inconclusive (95 % CI below the ratio)."
    else:
        key += "A preview: no interval."
    more = [key, *([base_words(base)] if settings else []), *chance(suite)]
    heights = [CELL * len(rows) + 0.85 for _, rows, _ in panels] or [1.0]
    figure, all_axes = style.panels(result, "What the knobs change", heights, 0, more)
    ratios = [cell.ratio for _, rows, _ in panels for row in rows for cell, _ in row[1] if cell]
    low, high = min([0.98, *ratios]), max([1.02, *ratios])
    for axes, (title, rows, columns) in zip(all_axes, panels, strict=False):
        draw_panel(axes, title, rows, columns, low, high)
    if not panels:
        all_axes[0].text(0.5, 0.5, "no configuration of this suite changes a setting", ha="center")
        all_axes[0].set_axis_off()
    return figure


def grid_of(suite) -> tuple[list[str], dict[tuple, str]]:
    base, settings = settings_of(suite)
    axes, found = sorted(base.first.mode.sweep), {}
    for label, knobs in settings.items():
        values = [getattr(suite.programs[label].config, name) for name in axes]
        if axes and set(knobs) <= set(axes) and None not in values:
            found[tuple(map(option_value, values))] = label
    return (axes, found) if len(found) > 1 else ([], {})


def panels_of(result) -> list[tuple]:
    """(title, rows, column names) of each panel; a row is (name, [(comparison or None, the value's name)])."""
    (base, settings), found = settings_of(result.suite), {pair.b: pair.comparison for pair in result.pairs}
    (names, grid), single = grid_of(result.suite), {}
    for label, knobs in settings.items():
        if label not in grid.values():
            name, value = " + ".join(knobs), ", ".join(map(option_value, knobs.values()))
            single.setdefault(name, []).append((found[label], value))
    panels = []
    if single:
        rows = [(name, sorted(cells, key=lambda cell: in_order(cell[1]))) for name, cells in single.items()]
        panels.append((f"{base.label}: one knob at a time", rows, None))
    if grid:
        ys, xs = (sorted({key[i] for key in grid}, key=in_order) for i in (0, 1))
        rows = [(y, [(found.get(grid.get((y, x))), "") for x in xs]) for y in ys]
        panels.append((f"{base.label}: {names[0]} down, {names[1]} across", rows, xs))
    return panels


def in_order(value: str) -> tuple:
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value


def draw_panel(axes, title: str, rows: list, columns: list[str] | None, low: float, high: float) -> None:
    width = max(len(row) for _, row in rows)
    for y, (_, row) in enumerate(rows):
        for x, (cell, value) in enumerate(row):
            if cell:
                draw_cell(axes, x, y, cell, value, (cell.ratio - low) / (high - low))
    axes.set(xlim=(0, width), ylim=(len(rows), 0))
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [name for name, _ in rows], size=style.SMALL)
    axes.set_xticks([x + 0.5 for x in range(width)] if columns else [], columns or [], size=style.SMALL)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("\n".join(style.wrapped(title, style.TEXT, style.WIDTH - 2.2)), loc="left", size=style.TEXT)


def draw_cell(axes, x: int, y: int, cell: stats.Comparison, value: str, level: float) -> None:
    """A value, its ratio with its verdict in a sign, its interval. level: 0 for the slowest cell to 1."""
    import matplotlib
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x + 0.02, y + 0.04), 0.96, 0.92, facecolor=matplotlib.colormaps["cividis"](level),
                             edgecolor="black", linewidth=0.7))  # fmt: skip
    ratio = f"×{cell.ratio:.2f} {SIGNS.get(cell.verdict, '')}".strip()
    said = [
        (ratio, style.TEXT, "bold" if cell.verdict in SIGNS else "normal"),
        (words.span(cell.low, cell.high, ".2f"), style.SMALL - 0.5, "normal"),
    ]
    if value:
        said.insert(0, (value, style.SMALL, "normal"))
    for i, (text, size, weight) in enumerate(said, start=1):
        axes.text(x + 0.5, y + (i - 0.1) / (len(said) + 0.8), text, color="black" if level > 0.5 else "white",
                  ha="center", va="center", size=size, weight=weight)  # fmt: skip


FIGURES = {"knobs": {"knobs": draw}}
