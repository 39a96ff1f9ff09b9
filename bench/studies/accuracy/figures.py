"""Accuracy over epochs by mode, and whether the modes reach the same accuracy: differences paired by seed, with the
margin's band."""

import statistics

from bench.analysis import ratio_figure, style
from bench.analysis.equivalence import margin_words, words_of
from bench.studies.accuracy.result import target_words

CURVES = 2.6  # inches
SENTENCE_WIDTH = style.WIDTH - 0.95  # inches: the upper panel has names on its left
ROW = 0.95  # inches, a mode's differences below its sentence


@style.styled
def draw(result):
    others = [row for row in result.rows if row.against_base]
    key = "Above: thick is the mean over seeds, thin each seed. "
    if others:
        key += f"Below: a dot is a seed, its {result.metric.label} after the last epoch less {result.base}'s. "
    if others and result.suite.n > 1:
        key += "Bar: Student's 95 % interval of the mean; black line in it: 90 %, which decides on equivalence. "
    if others:
        key += f"Grey band: the margin, {margin_words(result.metric)}, fixed before the runs."
    heights = [CURVES, ROW * len(others) + 0.5] if others else [CURVES]
    title = "Do all modes learn the same? Every seed"
    paper = style.canvas(result.suite, title, sum(heights) + 0.4, result.certificate, (key,))
    axes = style.axes_on(paper, len(heights), height_ratios=heights)
    draw_curves(axes[0], result)
    if others:
        draw_differences(axes[1], result, others)
    return paper.figure


def draw_curves(axes, result) -> None:
    suite, looks, metric = result.suite, style.looks(result.suite), result.metric
    for label, look in looks.items():
        seeds = [[metric.shown(row[metric.key]) for row in record.epochs] for record in suite.programs[label].records]
        epochs = range(1, len(seeds[0]) + 1)
        alone = look.marker if len(epochs) == 1 else ""  # of one point there is no line
        for curve in seeds:
            axes.plot(epochs, curve, alone, color=look.colour, linewidth=0.6, markersize=3, alpha=0.45)
        mean = [statistics.fmean(at) for at in zip(*seeds, strict=True)]
        axes.plot(epochs, mean, color=look.colour, linestyle=look.line, marker=look.marker, markersize=4.5, label=label)
    if result.target is not None:
        axes.axhline(metric.shown(result.target), color=style.BLACK, linewidth=0.8, linestyle=(0, (2, 2)),
                     label=f"target {target_words(metric, result.target)}")  # fmt: skip
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")
    if len(epochs) == 1:
        axes.set_xticks([1])
    axes.set_ylabel(f"{metric.label}, % of held-out" if metric.percent else f"{metric.label}, held-out")
    style.horizontal_grid(axes)
    style.legend_above(axes, 3)


def draw_differences(axes, result, rows: list) -> None:
    looks, margin = style.looks(result.suite), result.metric.margin
    axes.axvspan(-margin, margin, color=style.PALE, alpha=0.7, linewidth=0)
    axes.axvline(0, color=style.BLACK, linewidth=1)
    limits = limits_of(rows, margin)
    for y, row in enumerate(rows):
        found, look = row.against_base, looks[row.label]
        text = words_of(row.label, result.base, found, result.metric)
        lines = style.wrapped(text, ratio_figure.SENTENCE_SIZE, SENTENCE_WIDTH)
        ratio_figure.write_sentence(axes, lines, y + 0.05, not row.certificate.fair)
        heights = [y + 0.66 + 0.05 * (i % 3 - 1) for i in range(len(row.differences))]  # equal seeds are all seen
        axes.plot(row.differences, heights, look.marker, color=look.colour, markersize=5, markeredgewidth=0.6,
                  markeredgecolor="white", alpha=0.9)  # fmt: skip
        if found.low is not None:
            style.draw_interval(axes, found.low95, found.high95, y + 0.86, limits, look.colour)
            within = [min(max(x, limits[0]), limits[1]) for x in (found.low, found.high)]
            axes.plot(within, [y + 0.86] * 2, color=style.BLACK, linewidth=1.2)
        axes.plot(found.mean_difference, y + 0.86, "|", color=style.BLACK, markersize=11, markeredgewidth=2)
        if y:
            axes.axhline(y, color=style.PALE, linewidth=1)
    axes.set_ylim(len(rows), -0.04)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(limits)
    style.vertical_grid(axes)
    better = "right" if result.metric.better == "up" else "left"
    axes.set_xlabel(f"{result.metric.points} less {result.base}'s: {better} of 0 is better")


def limits_of(rows: list, margin: float) -> tuple[float, float]:
    """The axis of differences: all dots and the margin are on it; intervals are, unless that would hide the dots."""
    dots = [-1.1 * margin, 1.1 * margin, *(x for row in rows for x in row.differences)]
    ends = [x for row in rows for x in (row.against_base.low95, row.against_base.high95) if x is not None]
    low, high = style.padded_limits(dots)
    low, high = max(low, min([*dots, *ends])), min(high, max([*dots, *ends]))
    spare = 0.05 * (high - low)
    return low - spare, high + spare


FIGURES = {"accuracy": {"accuracy": draw}}
