"""Figures of throughput, one panel per device kind and workload: pooled machines, and single runs."""

import statistics
import textwrap

from bench.analysis import power_figure, style
from bench.record import describe
from bench.record.view import Record
from bench.report.pooling import Group, Panel, machines_of, panels_of, usable

NAME, BAR_NAME = 33, 46  # characters in a line of a row's name
MOST_PANELS, MOST_ROWS = 6, 60  # the table has the rest
MOST_RUN_PANELS, MOST_BARS = 12, 24


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


@style.styled
def draw(panels: list[Panel]):
    """`bench report --by machine`: each mode on each machine, with its interval. panels: not empty. Programs with
    options are shown only in the table, unless there is nothing else."""
    names = machines_of(panels)
    plain = any(group.plain for panel in panels for group in panel.groups)
    wanted = [(panel, [g for g in panel.groups if g.plain or not plain]) for panel in panels]
    shown = [(panel, groups[:MOST_ROWS]) for panel, groups in wanted if groups][:MOST_PANELS]
    groups = [group for _, some in shown for group in some]
    machines = sorted({group.machine for group in groups})
    left = sum(len(panel.groups) for panel in panels) - len(groups)
    foot = ["Marker: geometric mean. Bar: its 95 % confidence interval (Student's t on logarithms), if n ≥ 3."]
    foot += [f"{plural(left, 'more row')}: only in the table."] if left else []
    foot += ["Grey: some of the runs were disturbed."] if any(group.disturbed for group in groups) else []
    foot += [f"{names[machine]}: {machine.line()}" for machine in machines]
    title = f"Throughput on {plural(len(machines), 'machine')}, n = {plural(sum(g.n for g in groups), 'record')}"
    heights = [1.2 + 0.26 * len(some) * max(row_name(g, names).count("\n") + 1 for g in some) for _, some in shown]
    paper = style.canvas(None, title, sum(heights), None, tuple(foot))
    for axes, (panel, some) in zip(style.axes_on(paper, len(shown), height_ratios=heights), shown, strict=True):
        draw_panel(axes, panel, some, names)
    return paper.figure


def draw_panel(axes, panel: Panel, groups: list[Group], names: dict) -> None:
    kind = "CPU, no GPU used: N CPU processes, or threads in dp, emulate N devices" if panel.device == "cpu" else "GPU"
    title = [*style.wrapped(kind, style.SMALL), *style.wrapped(panel.workload, style.SMALL)]
    for y, group in enumerate(groups):
        look = group.first.mode.look
        low, high = group.interval or (group.mean, group.mean)
        colour = style.GREY if group.disturbed else look.colour
        axes.plot([low, high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot(group.mean, y, look.marker, color=colour, markeredgecolor=style.BLACK, markeredgewidth=0.7)
        axes.annotate(
            f"{group.mean:.3g}" if group.mean < 100 else f"{group.mean:.0f}", (high, y), (8, 0),
            textcoords="offset points", va="center", size=style.SMALL,
        )  # fmt: skip
        if y and groups[y - 1].machine != group.machine:
            axes.axhline(y - 0.5, color=style.GREY, linewidth=0.7)
    style.name_rows(axes, (row_name(group, names) for group in groups), size=style.SMALL)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    finish_axes(axes, panel, title, 1.18 * max((group.interval or (0, group.mean))[1] for group in groups))


def finish_axes(axes, panel: Panel, title: list[str], end: float) -> None:
    style.title_panel(axes, title)
    axes.set_xlim(0, end)
    style.vertical_grid(axes)
    axes.set_xlabel(f"{panel.units} per second, all devices together", size=style.SMALL)


def row_name(group: Group, names: dict) -> str:
    count = f"(n = {group.n}{', disturbed' if group.disturbed else ''})".replace(" ", "\u00a0")  # stays in one line
    return "\n".join(textwrap.wrap(f"{names[group.machine]} {group.title} {count}", NAME))


def single_runs_figures(records: list[Record]) -> dict:
    """Name -> figure of the single runs; empty if none is a measurement."""
    single = [record for record in records if not record.label.suite]
    good, power = usable(single), power_figure.draw_runs(single)
    return ({"runs": draw_bars(panels_of(good))} if good else {}) | ({"power": power} if power else {})


@style.styled
def draw_bars(panels: list[Panel]):
    """Single runs: a panel for each workload, a bar for each program, its run or the mean of several. panels: not
    empty."""
    newest = sorted(panels, key=lambda panel: max(r.started_at for g in panel.groups for r in g.records), reverse=True)
    shown = [(panel, panel.groups[:MOST_BARS]) for panel in newest[:MOST_RUN_PANELS]]
    names = machines_of([panel for panel, _ in shown])
    left = sum(len(panel.groups) for panel in panels) - sum(len(groups) for _, groups in shown)
    foot = ["If a configuration ran several times: bar = mean, dot = one run."]
    foot += ["These runs were not interleaved: `make compare` makes a comparison with confidence intervals."]
    foot += [f"{plural(left, 'more configuration')}: only in the table."] if left else []
    foot += [f"{name}: {machine.line()}" if len(names) > 1 else machine.line() for machine, name in names.items()]
    titles = []
    for panel, _ in shown:
        kind = "CPU processes, no GPU used" if panel.device == "cpu" else "GPU"
        titles.append(style.wrapped(f"{kind}: {panel.workload}", style.SMALL))
    names = names if len(names) > 1 else {}
    lines = [max(1, *(bar_name(group, names).count("\n") for group in groups)) for _, groups in shown]
    rows = [len(groups) * (0.22 + 0.14 * more) for more, (_, groups) in zip(lines, shown, strict=True)]
    heights = [0.95 + 0.16 * len(title) + height for title, height in zip(titles, rows, strict=True)]
    title = "Single runs: no confidence interval, no verdict"
    paper = style.canvas(None, title, sum(heights), None, tuple(foot))
    all_axes = style.axes_on(paper, len(shown), height_ratios=rows)
    for axes, title, (panel, groups) in zip(all_axes, titles, shown, strict=True):
        draw_bars_panel(axes, groups, names)
        finish_axes(axes, panel, title, 1.15 * max(max(group.throughputs) for group in groups))
    return paper.figure


def draw_bars_panel(axes, groups: list[Group], names: dict) -> None:
    for y, group in enumerate(groups):
        look, mean = group.first.mode.look, statistics.fmean(group.throughputs)
        colour = style.GREY if group.disturbed else look.colour
        axes.barh(y, mean, 0.62, facecolor=colour, alpha=0.55, edgecolor=style.BLACK, linewidth=0.8, hatch=look.hatch)
        if group.n > 1:
            heights = [y + 0.16 * ((i % 3) - 1) for i in range(group.n)]
            axes.plot(group.throughputs, heights, "o", color=style.WHITE, markeredgecolor=style.BLACK, markersize=4.5)
        axes.annotate(style.number(mean), (max(group.throughputs), y), (7, 0), textcoords="offset points",
                      va="center", size=style.SMALL)  # fmt: skip
    style.name_rows(axes, (bar_name(group, names) for group in groups), size=style.SMALL)


def bar_name(group: Group, names: dict) -> str:
    config, devices = group.first.config, group.num_devices
    where = describe.devices_cell(group.first) if config.share_gpu else plural(devices, "device")
    options = group.title.removeprefix(f"{config.mode} {devices}").replace(" share_gpu=1", "").lstrip(", ")
    more = [names.get(group.machine, ""), options, f"{group.n} runs" if group.n > 1 else ""]
    more += ["disturbed"] if group.disturbed else []
    lines = textwrap.wrap(", ".join(filter(None, more)), BAR_NAME, break_on_hyphens=False)
    return "\n".join([f"{config.mode}, {where}", *lines])
