"""A heat map of the knobs: each value of each knob against the same mode with the settings of the run. Where nothing
was swept as a grid: each setting's ratio with its rounds instead.

Light is fast and dark is slow, also in grey. A cell says its value, its ratio and its verdict in a sign.
"""

from bench.analysis import ratio_figure, style, words
from bench.analysis.stats import FEWEST_ROUNDS
from bench.studies.knobs.result import base_words, chance, compared, notes, settings_of
from bench.studies.programs import shown

CELL = 0.72  # inches, the height of a row
SIGNS = {"faster": "▲", "slower": "▼", "tie": "=", "no difference": "≈", "inconclusive": "?"}


@style.styled
def draw(result):
    suite = result.suite
    base, settings = settings_of(suite)
    if settings and not grid_of(suite)[1]:
        return draw_settings(result)
    panels = panels_of(suite) if settings else []
    key = f"Ratio of {suite.units}/s to the same mode with the settings of the run. "
    if suite.disturbed:
        key += "95 % CI below the ratio."
    elif suite.n >= FEWEST_ROUNDS:
        key += "▲ faster, ▼ slower, = tie within ±2 %, ≈ no difference found, ? inconclusive (95 % CI below the ratio)."
    else:
        key += "A preview: no interval."
    more = [key, *([base_words(base)] if settings else []), *chance(suite)]
    heights = [CELL * len(rows) + 0.85 for _, rows, _ in panels] or [1.0]
    paper = style.canvas(suite, "What the knobs change", sum(heights), result.certificate, tuple(more))
    all_axes = style.axes_on(paper, len(heights), height_ratios=heights)
    ratios = [cell.ratio for _, rows, _ in panels for row in rows for cell, _ in row[1] if cell]
    low, high = min([0.98, *ratios]), max([1.02, *ratios])
    for axes, (title, rows, columns) in zip(all_axes, panels, strict=False):
        draw_panel(axes, title, rows, columns, low, high)
    if not panels:
        all_axes[0].text(0.5, 0.5, "no program of this suite sets a knob", ha="center")
        all_axes[0].set_axis_off()
    return paper.figure


def draw_settings(result):
    base, settings = settings_of(result.suite)
    pairs = [result.pair(base.label, label) for label in settings]
    more = [base_words(base), *chance(result.suite), *notes(result.suite)]
    return ratio_figure.draw_pairs(result, pairs, "What the settings change", tuple(more))


def grid_of(suite) -> tuple[list[str], dict[tuple, str]]:
    """The two knobs that were swept together, and (value, value) -> label; no names where none were."""
    base, settings = settings_of(suite)
    axes, found = sorted(base.first.mode.sweep), {}
    for label, knobs in settings.items():
        values = [getattr(suite.programs[label].config, name) for name in axes]
        if axes and set(knobs) <= set(axes) and None not in values:
            found[tuple(map(shown, values))] = label
    return (axes, found) if len(found) > 1 else ([], {})


def panels_of(suite) -> list[tuple]:
    """(title, rows, column names) of each panel; a row is (name, [(comparison or None, the value's name)]). Knobs swept
    one at a time share a panel."""
    (base, settings), found = settings_of(suite), compared(suite)
    (names, grid), single = grid_of(suite), {}
    for label, knobs in settings.items():
        if label not in grid.values():
            name, value = " + ".join(knobs), ", ".join(map(shown, knobs.values()))
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
    """Numbers by size, then words.

    >>> sorted(["25", "fp16", "1"], key=in_order)
    ['1', '25', 'fp16']
    """
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value


def draw_panel(axes, title: str, rows: list, columns: list[str] | None, low: float, high: float) -> None:
    import matplotlib
    from matplotlib.patches import Rectangle

    colours, width = matplotlib.colormaps["cividis"], max(len(row) for _, row in rows)
    for y, (_, row) in enumerate(rows):
        for x, (cell, value) in enumerate(row):
            if cell is None:
                continue
            level = (cell.ratio - low) / (high - low)
            axes.add_patch(Rectangle((x + 0.02, y + 0.04), 0.96, 0.92, facecolor=colours(level), edgecolor="black",
                                     linewidth=0.7))  # fmt: skip
            ink = "black" if level > 0.5 else "white"
            interval = words.span(cell.low, cell.high, ".2f")
            ratio = f"×{cell.ratio:.2f} {SIGNS.get(cell.verdict, '')}".strip()
            weight = "bold" if cell.verdict in SIGNS else "normal"
            said = [*([(value, style.SMALL, "normal")] if value else []), (ratio, style.TEXT, weight),
                    (interval, style.SMALL - 0.5, "normal")]  # fmt: skip
            for i, (text, size, weight) in enumerate(said, start=1):
                axes.text(x + 0.5, y + (i - 0.1) / (len(said) + 0.8), text, color=ink, ha="center", va="center",
                          size=size, weight=weight)  # fmt: skip
    axes.set(xlim=(0, width), ylim=(len(rows), 0))
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [name for name, _ in rows], size=style.SMALL)
    axes.set_xticks([x + 0.5 for x in range(width)] if columns else [], columns or [], size=style.SMALL)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("\n".join(style.wrapped(title, style.TEXT, style.WIDTH - 2.2)), loc="left", size=style.TEXT)


FIGURES = {"knobs": {"knobs": draw}}
