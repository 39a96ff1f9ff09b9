"""Runs that were made one by one (`make bench`): a bar for the throughput of each, without interval and verdict. Runs
of different work, or of different kinds of device, never share a panel."""

import statistics

from bench.analysis import style
from bench.record.view import Record
from bench.report.grouping import usable
from bench.report.pool_figure import HEAD, plural
from bench.report.pooling import Group, Panel, machines_of, panels_of

ROW, PANEL = 0.36, 0.95  # inches: a bar; a panel's title and axis
MOST_PANELS, MOST_ROWS = 6, 24  # of the picture; the table has the rest
TITLE = "Single runs: one run each, no interval, no verdict"


def figures(records: list[Record]) -> dict:
    """name -> picture; none where no run is a measurement. records: of no suite."""
    good = usable([record for record in records if not record.label.suite])
    return {"runs": draw(panels_of(good))} if good else {}


@style.styled
def draw(panels: list[Panel]):
    """A panel for each workload, a bar for each program: its run, or the mean of several. panels: not empty."""
    newest = sorted(panels, key=lambda panel: max(r.started_at for g in panel.groups for r in g.records), reverse=True)
    shown = [(panel, panel.groups[:MOST_ROWS]) for panel in newest[:MOST_PANELS]]
    names = machines_of([panel for panel, _ in shown])
    left = sum(len(panel.groups) for panel in panels) - sum(len(groups) for _, groups in shown)
    foot = ["Where a program ran several times, the bar is their mean and a dot is a run."]
    foot += ["The runs were not made in turns: `make compare` makes a comparison with intervals."]
    foot += [f"Not drawn, in the table: {plural(left, 'more program')}."] if left else []
    foot += [f"{name}: {machine.line()}" if len(names) > 1 else machine.line() for machine, name in names.items()]
    titles = [title_of(panel) for panel, _ in shown]
    heights = [PANEL + 0.16 * len(title) + ROW * len(groups) for title, (_, groups) in zip(titles, shown, strict=True)]
    paper = style.canvas(None, TITLE, sum(heights), None, tuple(foot))
    all_axes = style.axes_on(paper, len(shown), height_ratios=[len(groups) for _, groups in shown])
    for axes, title, (panel, groups) in zip(all_axes, titles, shown, strict=True):
        axes.set_title("\n".join(title), loc="left", size=style.SMALL + 0.5)
        draw_panel(axes, panel, groups, names if len(names) > 1 else {})
    return paper.figure


def title_of(panel: Panel) -> list[str]:
    kind = "CPU processes, no GPU used" if panel.device == "cpu" else "GPU"
    return style.wrapped(f"{kind}: {panel.workload}", style.SMALL, HEAD)


def draw_panel(axes, panel: Panel, groups: list[Group], names: dict) -> None:
    most = max(max(group.throughputs) for group in groups)
    for y, group in enumerate(groups):
        look, mean = group.first.mode.look, statistics.fmean(group.throughputs)
        colour = style.GREY if group.disturbed else look.colour
        axes.barh(y, mean, 0.62, facecolor=colour, alpha=0.55, edgecolor=style.BLACK, linewidth=0.8, hatch=look.hatch)
        if group.n > 1:
            heights = [y + 0.16 * ((i % 3) - 1) for i in range(group.n)]
            axes.plot(group.throughputs, heights, "o", color=style.WHITE, markeredgecolor=style.BLACK, markersize=4.5)
        axes.annotate(style.number(mean), (max(group.throughputs), y), (7, 0), textcoords="offset points",
                      va="center", size=style.SMALL)  # fmt: skip
    style.name_rows(axes, (row_name(group, names) for group in groups), size=style.SMALL)
    axes.set_xlim(0, 1.15 * most)
    style.vertical_grid(axes)
    axes.set_xlabel(f"{panel.units} per second, all devices together", size=style.SMALL)


def row_name(group: Group, names: dict) -> str:
    mode, devices = group.first.config.mode, group.num_devices
    options = group.title.removeprefix(f"{mode} {devices}").lstrip(", ")
    more = [names.get(group.machine, ""), options, f"{group.n} runs" if group.n > 1 else ""]
    more += ["disturbed"] if group.disturbed else []
    first = f"{mode}, {plural(devices, 'device')}"
    return "\n".join(filter(None, [first, ", ".join(filter(None, more))]))
