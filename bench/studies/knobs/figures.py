"""A heat map of the knobs: each value of each knob against the same mode with the settings of the run.
Where nothing was swept as a grid: each setting's ratio with its rounds instead.

Light is fast and dark is slow, also in grey. A cell says its value, the ratio and its verdict in a sign, so that no
colour needs to be read exactly.
"""

from bench.analysis import stats, style, words
from bench.config.modes import MODES
from bench.config.options import KNOBS, UNSET
from bench.studies.compare import figures as compare

CELL = 0.72  # inches, the height of a row
SIGNS = {"faster": "▲", "slower": "▼", "tie": "=", "too noisy": "?", "no interval": ""}


@style.styled
def draw(suite_or_result):
    """A panel a mode with a row a knob and a cell a value; a pair of knobs that was swept together is a grid."""
    result = style.result_of(suite_or_result)
    suite = result.suite
    if bases(suite) and not any(grids_of(cells) for cells in bases(suite).values()):
        return draw_settings(result)
    panels = [panel for base, cells in bases(suite).items() for panel in panels_of(suite, base, cells)]
    key = "Ratio of images/s to the same mode with the settings of the run. "
    key += "▲ faster, ▼ slower, = tie within ±2 %, ? too noisy to say" if suite.n > 1 else "One round: no interval"
    key += " (95 % interval below the ratio)." if suite.n > 1 else "."
    more = [key, *(base_words(suite, base) for base in bases(suite)), *chance(suite)]
    heights = [CELL * len(rows) + 0.85 for _, rows, _ in panels] or [1.0]
    paper = style.sheet(suite, "What the knobs change", sum(heights), result.certificate, tuple(more))
    all_axes = style.axes_on(paper, len(heights), height_ratios=heights)
    ratios = [cell.ratio for _, rows, _ in panels for row in rows for cell, _ in row[1] if cell]
    low, high = min([0.98, *ratios]), max([1.02, *ratios])
    for axes, (title, rows, columns) in zip(all_axes, panels, strict=False):
        draw_panel(axes, title, rows, columns, low, high)
    if not panels:
        all_axes[0].text(0.5, 0.5, "no role of this suite sets a knob", ha="center")
        all_axes[0].set_axis_off()
    return paper.figure


def draw_settings(result):
    """Each setting against the settings of the run: ratio of throughput, every round, interval."""
    found = bases(result.suite)
    pairs = [result.pair(base, role) for base, cells in found.items() for role in cells]
    more = [*(base_words(result.suite, base) for base in found), *chance(result.suite), *compile_note(result.suite)]
    return compare.draw_pairs(result, pairs, "What the settings change", tuple(more))


def compile_note(suite) -> list[str]:
    """What must be known of a suite in which some program is compiled; nothing of others."""
    compiled = any(records[0]["config"].get("compile") for records in suite.roles.values())
    return [words.COMPILE_NOTE] if compiled else []


def grids_of(cells: dict[str, dict]) -> dict[tuple, dict]:
    """Two knobs that were swept together -> (value, value) -> role. One combination alone is no grid."""
    grids = {}
    for role, knobs in cells.items():
        if len(knobs) == 2:
            names = tuple(sorted(knobs))
            grids.setdefault(names, {})[tuple(knobs[name] for name in names)] = role
    return {names: grid for names, grid in grids.items() if len(grid) > 1}


def knobs_of(role: str) -> tuple[str, dict[str, str]]:
    """The mode and the knobs that a role's name says.

    >>> knobs_of("horovod cycle_time_ms=10 fusion_mb=16"), knobs_of("ddp static_graph")
    (('horovod', {'cycle_time_ms': '10', 'fusion_mb': '16'}), ('ddp', {'static_graph': 'on'}))
    """
    mode, *settings = role.split(" ")
    return mode, {name: value or "on" for name, _, value in (setting.partition("=") for setting in settings)}


def base_words(suite, base: str) -> str:
    """What the base is: the settings of the run, and which of them are not the engine's default."""
    config = suite.roles[base][0]["config"]
    given = [name for name in UNSET if name in KNOBS and config.get(name, UNSET[name]) != UNSET[name]]
    listed = ", ".join(
        f"{n}={config[n]:g}" if isinstance(config[n], int | float) else f"{n}={config[n]}" for n in given
    )
    why = " (TUNED)" if config.get("tuned") else ""
    if not MODES[config["mode"]].knobs:  # no engine: options of training were swept
        ways = [config["precision"], *(n for n in ("channels_last", "compile") if config.get(n))]
        return f"{base}: the settings of the run, {', '.join(ways)}{why}."
    text = f"not the engine's default{why}: {listed}" if given else f"all the engine's defaults{why}"
    return f"{base}: the settings of the run, {text}."


def chance(suite) -> list[str]:
    """How many settings were compared, and what chance does then; nothing where there is no interval."""
    count = sum(map(len, bases(suite).values()))
    if not count or suite.n < 2:
        return []
    return [
        f"{count} {'setting' if count == 1 else 'settings'} compared, each at 95 %: of settings that change nothing, "
        "about one in twenty would be called different by chance."
    ]


def bases(suite) -> dict[str, dict]:
    """Each mode that is there with the settings of the run -> its other roles, with the knobs of each."""
    found = {role: {} for role in suite.roles if not knobs_of(role)[1]}
    for role in suite.roles:
        mode, knobs = knobs_of(role)
        if knobs and mode in found:
            found[mode][role] = knobs
    return {base: cells for base, cells in found.items() if cells}


def panels_of(suite, base: str, cells: dict[str, dict]) -> list[tuple]:
    """(title, rows, column names) of each panel; a row is (name, [(comparison or None, the value's name)]).

    Knobs swept one at a time share a panel; each pair swept together has its own.
    """
    compared = {r: stats.compare_rounds(suite.throughputs(base), suite.throughputs(r)) for r in cells}
    single, grids = {}, grids_of(cells)
    for role, knobs in cells.items():
        if tuple(sorted(knobs)) not in grids:
            name = " + ".join(knobs)
            single.setdefault(name, []).append((", ".join(knobs.values()), compared[role]))
    panels = []
    if single:
        rows = [(n, [(c, v) for v, c in sorted(vs, key=lambda x: in_order(x[0]))]) for n, vs in single.items()]
        panels.append((f"{base}: one knob at a time", rows, None))
    for (first, second), grid in grids.items():
        ys, xs = (sorted({key[i] for key in grid}, key=in_order) for i in (0, 1))
        rows = [(y, [(compared.get(grid.get((y, x))), "") for x in xs]) for y in ys]
        panels.append((f"{base}: {first} down, {second} across", rows, xs))
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
    """One panel of cells from ``low`` (dark) to ``high`` (light)."""
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
            ratio = f"×{cell.ratio:.2f} {SIGNS[cell.verdict]}".strip()
            said = [*([(value, style.SMALL, "normal")] if value else []), (ratio, style.TEXT, "bold"),
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
