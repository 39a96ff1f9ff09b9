"""Figures of a comparison: the ratio of every pair, and the throughput of each program."""

from bench.analysis import memory_figure, ratio_figure, stats, style

BAR_ROW = 0.5  # inches


@style.styled
def draw(result):
    """Every pair of programs: ratio of throughput, right of 1 where the second is faster."""
    bounds = [program.label for program in result.suite.programs.values() if program.is_bound]
    more = (f"{' and '.join(bounds)}: the upper bound without communication, not a way to train.",) if bounds else ()
    return ratio_figure.draw_pairs(result, result.pairs, "How much faster? Every pair, every round", more)


@style.styled
def draw_throughput(result):
    suite, looks = result.suite, style.looks(result.suite)
    key = "Bar: geometric mean of the rounds. Dot: one round"
    key += "; ringed: an outlier, counted like the rest." if any(result.outliers.values()) else "."
    paper = style.canvas(suite, "Throughput, every round", BAR_ROW * len(looks) + 0.7, result.certificate, (key,))
    (axes,) = style.axes_on(paper)
    for y, (label, look) in enumerate(looks.items()):
        far = {i for i, number in enumerate(suite.rounds) if number in result.outliers.get(label, [])}
        draw_bar(axes, y, suite.programs[label].throughputs, look, far)
    style.name_rows(axes, looks)
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    if axes.get_xlim()[1] >= 1e5:
        axes.locator_params(axis="x", nbins=5)  # long numbers, which would run into each other
    style.vertical_grid(axes)
    axes.set_xlabel(f"{suite.units} per second, all devices together")
    return paper.figure


def draw_bar(axes, y: float, values: list[float], look, far: set[int]) -> None:
    """One program's bar with its rounds on it and its mean written behind. far: the places of the outliers."""
    mean = stats.compare_rounds([1.0] * len(values), values).ratio
    axes.barh(y, mean, 0.62, facecolor=look.colour, alpha=0.55, edgecolor="black", linewidth=0.8, hatch=look.hatch)
    heights = [y + 0.16 * ((i % 3) - 1) for i in range(len(values))]
    axes.plot(values, heights, "o", color="white", markeredgecolor="black", markersize=4.5, markeredgewidth=0.9)
    ratio_figure.ring(axes, [(values[i], heights[i]) for i in sorted(far)], 10.5)
    axes.annotate(
        style.number(mean), (max(values), y), (9, 0), textcoords="offset points",
        va="center", size=style.SMALL + 0.5,
    )  # fmt: skip


FIGURES = {
    "compare": {
        "ratios": draw,
        "throughput": draw_throughput,
        "memory": memory_figure.draw,
        "memory-over-time": memory_figure.draw_over_time,
    }
}
