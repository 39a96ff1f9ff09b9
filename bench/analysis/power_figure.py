"""Power, utilization and SM clock of each GPU over time, as NVML reported them."""

from collections.abc import Iterable

from bench.analysis import style
from bench.analysis.memory_figure import draw_line, timelines
from bench.analysis.suite import suite_of
from bench.record.describe import energy_cell, used_gpus
from bench.record.view import Record

COLUMNS = {"power_w": "power\n(W)", "utilization_percent": "utilization\n(%)", "sm_clock_mhz": "SM clock\n(MHz)"}
PANEL = 0.7  # inches
KEY = (
    "Samples of NVML; shaded: the timed steps. Power is the whole board's; dashed: its limit. Utilization is the share "
    "of NVML's last interval in which any kernel ran, not how well the GPU was filled."
)


def has_power(record: Record) -> bool:
    return record.ok and any(
        value is not None for _, device in timelines(record) for value in device["timeline"].get("power_w", ())
    )


def draw_suite(result):
    """The first round of each program; None without GPUs that report power."""
    firsts = {program.label: program.first for program in result.suite.programs.values()}
    shown = {name: record for name, record in firsts.items() if has_power(record)}
    return draw(result.suite, shown, ["Of each program the first round."], result.certificate)


def draw_runs(records: Iterable[Record]):
    """The newest single run on GPUs that report power; None without one."""
    found = sorted(filter(has_power, records), key=lambda record: record.started_at)
    if not found:
        return None
    newest = found[-1]
    return draw(suite_of(newest.run_id, [newest]), {newest.program: newest}, n="n = 1 run")


@style.styled
def draw(suite, records: dict[str, Record], more: Iterable[str] = (), certificate=None, n: str | None = None):
    """Three panels for each record, by its name; None without records. The rest: as in ``style.canvas``."""
    if not records:
        return None
    height = (3 * PANEL + 0.25) * len(records) + 0.7
    paper = style.canvas(suite, "Power, utilization and clock of each GPU", height, certificate, [KEY, *more], n)
    panels, lines = style.axes_on(paper, 3 * len(records), sharex=True), {}
    for place, (name, record) in enumerate(records.items()):
        for axes, (column, label) in zip(panels[3 * place :], COLUMNS.items(), strict=False):
            lines = draw_panel(axes, record, column) | lines
            axes.set_ylabel(label, size=style.SMALL)
            style.finish(axes, grid="y")
        title = f"{name}: {' and '.join(dict.fromkeys(used_gpus(record)))}"
        title += f", {cell} J per example" if (cell := energy_cell([record])) else ""
        panels[3 * place].set_title(title, loc="left", size=style.SMALL, weight="bold")
    panels[-1].set_xlabel("seconds since the process had its device")
    if len(lines) > 1:
        panels[2].legend(list(lines.values()), list(lines), loc="lower center", ncols=4)
    return paper.figure


def draw_panel(axes, record: Record, column: str) -> dict:
    """A line for each device, by its name."""
    lines, tops = {}, [100.0]
    for i, (label, device) in enumerate(timelines(record)):
        if line := draw_line(axes, device, column, i):
            lines[label] = line
            tops.append(max(line.get_ydata()))
        if column == "power_w" and (limit := device.get("power_limit_w")):
            axes.axhline(limit, color=style.BLACK, linewidth=1, linestyle="--")
            tops.append(limit)
    axes.set_ylim(0, 1.15 * max(tops))
    return lines
