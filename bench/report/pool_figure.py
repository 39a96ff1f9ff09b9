"""Many machines: throughput of each mode on each machine, one panel per device kind and workload.

CPU workers and GPUs never share a panel, nor do two workloads: bars next to each other would suggest a comparison that
was not measured.
"""

import textwrap

from bench.analysis import style
from bench.report.pooling import machines_of

ROW = 0.26  # inches per machine and mode, for each line of its name
NAME = 33  # letters of a name in a line
HEAD = 3.8  # inches for a line of a panel's title: what a name leaves
PANEL = 1.2  # inches for a panel's title and axis
MOST_PANELS, MOST_ROWS = 6, 60  # of a picture; the table has the rest


@style.styled
def draw(panels: list):
    """A dot for each mode on each machine with its interval. panels: not empty. Programs with options are left to the
    table, unless there is nothing else."""
    names = machines_of(panels)
    plain = any(group.plain for panel in panels for group in panel.groups)
    wanted = [(panel, [g for g in panel.groups if g.plain or not plain]) for panel in panels]
    shown = [(panel, groups[:MOST_ROWS]) for panel, groups in wanted if groups][:MOST_PANELS]
    groups = [group for _, some in shown for group in some]
    machines = sorted({group.machine for group in groups})
    left = sum(len(panel.groups) for panel in panels) - len(groups)
    foot = ["Mark: geometric mean; bar: its 95 % interval (Student's t on logarithms), where n is 3 or more."]
    foot += [f"Not drawn, in the table: {plural(left, 'more row')}."] if left else []
    foot += ["Grey: some of its runs were disturbed."] if any(group.disturbed for group in groups) else []
    foot += [f"{names[machine]}: {machine.line()}" for machine in machines]
    title = f"Throughput on {plural(len(machines), 'machine')}, n = {plural(sum(g.n for g in groups), 'record')}"
    heights = [PANEL + ROW * len(some) * max(row_name(g, names).count("\n") + 1 for g in some) for _, some in shown]
    paper = style.canvas(None, title, sum(heights), None, tuple(foot))
    for axes, (panel, some) in zip(style.axes_on(paper, len(shown), height_ratios=heights), shown, strict=True):
        draw_panel(axes, panel, some, names)
    return paper.figure


def draw_panel(axes, panel, groups: list, names: dict) -> None:
    kind = "CPU, no GPU used: N CPU workers stand for N devices" if panel.device == "cpu" else "GPU"
    axes.set_title(
        "\n".join([*style.wrapped(kind, style.SMALL, HEAD), *style.wrapped(panel.workload, style.SMALL, HEAD)]),
        loc="left",
        size=style.SMALL + 0.5,
    )
    end = max((group.interval or (0, group.mean))[1] for group in groups)
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
    axes.set_yticks(range(len(groups)), [row_name(g, names) for g in groups], size=style.SMALL)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.18 * end)
    style.vertical_grid(axes)
    axes.set_xlabel(f"{panel.units} per second, all devices together", size=style.SMALL)


def row_name(group, names: dict) -> str:
    count = f"(n = {group.n}{', disturbed' if group.disturbed else ''})".replace(" ", "\u00a0")  # stays in one line
    return "\n".join(textwrap.wrap(f"{names[group.machine]} {group.title} {count}", NAME))


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
