"""Times and bandwidths of messages over their size, drawn: both axes logarithmic, the fitted lines among the marks."""

from bench.analysis import style
from bench.tasks.network.backends import BACKENDS
from bench.tasks.network.plan import in_bytes
from bench.tasks.network.record import NetworkRecord
from bench.tasks.network.result import WORDS, Series, disturbed, series_of, standing, where_of

PANEL = 2.6  # inches
TITLE = "Messages: time and bandwidth over size"


def figures(records: list[NetworkRecord]) -> dict:
    """The pictures by name."""
    return {"network": draw(records)}


@style.styled
def draw(records: list[NetworkRecord]):
    """Time above, bus bandwidth below; a mark is the median of the rounds, its bar the 95 % interval."""
    found = series_of(records)
    foot = [
        "Mark: median over rounds, bar: its exact 95 % interval; line: the fitted alpha and beta.",
        *disturbed(records),
        *standing(records)[1:],
    ]
    paper = style.canvas(None, f"{TITLE}: {where_of(records)}", 2 * PANEL + 0.2 * len(found), None, tuple(foot))
    above, below = style.axes_on(paper, 2, sharex=True)
    for series in found:
        draw_series(above, series, lambda series, nbytes, seconds: 1e3 * seconds, legend_of(series))
        draw_series(below, series, lambda series, nbytes, seconds: 1e-9 * series.bus_bandwidth(nbytes, seconds))
    sizes = sorted({times.nbytes for series in found for times in series.operation.times})
    for axes, label in ((above, "ms"), (below, "GB/s over a link")):
        axes.set(xscale="log", yscale="log", ylabel=label)
        style.horizontal_grid(axes)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    shown = sizes[:: max(1, -(-len(sizes) // 6))]
    below.set_xticks(shown, [in_bytes(size).replace(" ", "\n") for size in shown], size=style.SMALL)
    below.set_xlabel("message")
    style.legend_above(above, 1)
    return paper.figure


def draw_series(axes, series: Series, value, label: str = "") -> None:
    """The marks and the line of one series. value: what is drawn of (series, bytes, seconds)."""
    look, hollow = BACKENDS[series.record.backend].look, not series.reduces
    face = style.WHITE if hollow else look.colour
    for times in series.operation.times:
        ends = [value(series, times.nbytes, s) for s in series.seconds(times)[1:] if s is not None]
        axes.plot([times.nbytes] * len(ends), ends, color=look.colour, linewidth=3, alpha=0.5, solid_capstyle="butt")
    marks = [value(series, times.nbytes, series.seconds(times)[0]) for times in series.operation.times]
    sizes = [times.nbytes for times in series.operation.times]
    axes.plot(sizes, marks, look.marker, color=look.colour, markerfacecolor=face)
    line = ":" if hollow else look.line
    if series.fit:
        modelled = [series.modelled(size, series.fit.alpha[0], series.fit.beta[0]) for size in fine(sizes)]
        drawn = [(size, value(series, size, s)) for size, s in zip(fine(sizes), modelled, strict=True) if s > 0]
        axes.plot(*zip(*drawn, strict=True), linestyle=line, color=look.colour, linewidth=1.2)
    axes.plot([], [], look.marker, linestyle=line, color=look.colour, markerfacecolor=face, label=label or None)


def fine(sizes: list[int]) -> list[float]:
    """Sizes between the first and the last, evenly by their powers."""
    first, last, steps = sizes[0], sizes[-1], 60
    return [first * (last / first) ** (i / steps) for i in range(steps + 1)]


def legend_of(series: Series) -> str:
    """The series with its alpha and beta."""
    name = f"{series.record.name}, {WORDS[series.operation.name]}"
    if not series.fit:
        return name
    alpha, beta = series.fit.alpha[0] * 1e6, series.fit.beta[0] * 1e9
    return f"{name}: alpha {style.number(alpha)} µs, beta {style.number(beta)} ns per byte"
