"""Pairs of programs drawn: the ratio of two throughputs with its 95 % interval, and every round as a dot."""

from bench.analysis import style
from bench.analysis.stats import CONFIDENCE, FEWEST_ROUNDS, TIE_MARGIN
from bench.formulas import confidence_per_look

SENTENCE = 0.17  # inches, a line of a row's sentence
PLOT, DOTS, INTERVAL = 0.46, 0.30, 0.12  # inches: a row below its sentence; dots and interval above the row's end
SENTENCE_SIZE, SENTENCE_WIDTH = style.SMALL + 0.5, style.WIDTH - 0.35


def draw_pairs(result, pairs: list, title: str, more: tuple[str, ...] = ()):
    """A row per pair: its sentence, its rounds as dots, its interval as a bar with a mark at the estimate."""
    suite = result.suite
    level = 100 * confidence_per_look(CONFIDENCE, len(suite.looks) or 1)
    bar = f". Bar: Student's {level:g} % CI of the paired ratios (arrow: it continues beyond the axis). "
    key = (
        "Dot: one round"
        + (" (a ring marks an outlier, which is included)" if any(result.outliers.values()) else "")
        + (bar if suite.n >= FEWEST_ROUNDS else ". ")
        + f"Grey band: no difference within ±{100 * TIE_MARGIN:g} % (tie)."
    )
    sentences = [style.wrapped(words_of(pair), SENTENCE_SIZE, SENTENCE_WIDTH) for pair in pairs]
    height = PLOT + SENTENCE * max(map(len, sentences), default=1)
    figure, (axes,) = style.panels(result, title, [height * max(1, len(pairs))], 0.75, (key, *more))
    axes.axvspan(1 / (1 + TIE_MARGIN), 1 + TIE_MARGIN, color=style.PALE, alpha=0.7, linewidth=0)
    axes.axvline(1, color=style.BLACK, linewidth=1)
    dots = [1 / (1 + TIE_MARGIN), 1 + TIE_MARGIN, *(ratio for pair in pairs for ratio in ratios_of(suite, pair))]
    ends = [x for pair in pairs for x in (pair.comparison.low, pair.comparison.high) if x is not None]
    low, high = style.limits_with(dots, ends)
    looks, limits = style.looks(suite), (max(0.0, low), high)
    for row, pair in enumerate(pairs):
        write_sentence(axes, sentences[row], row + 0.04 / height, pair.flagged)
        found, look, y = pair.comparison, looks[pair.b], row + 1 - INTERVAL / height
        far = {*result.outliers.get(pair.a, []), *result.outliers.get(pair.b, [])}
        ratios = ratios_of(suite, pair)
        heights = style.draw_dots(axes, ratios, row + 1 - DOTS / height, 0.09, look)
        ring(axes, [point for number, *point in zip(suite.rounds, ratios, heights, strict=True) if number in far], 11)
        if found.low is not None:
            style.draw_interval(axes, found.low, found.high, y, limits, look.colour)
        style.mark(axes, found.ratio, y)
        if row:
            axes.axhline(row, color=style.PALE, linewidth=1)
    xlabel = f"ratio of {suite.units}/s, first / second (above 1: the first is faster)"
    finish_rows(axes, max(1, len(pairs)), limits, xlabel)
    return figure


def write_sentence(axes, lines: list[str], y: float, flagged: bool) -> None:
    text = axes.text(
        0, y, "\n".join(lines), transform=axes.get_yaxis_transform(), va="top", size=SENTENCE_SIZE, linespacing=1.15,
        color=style.RED if flagged else style.BLACK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
    )  # fmt: skip
    text.set_in_layout(False)


def finish_rows(axes, rows: int, limits: tuple[float, float], xlabel: str) -> None:
    axes.set_ylim(rows, -0.04)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(limits)
    style.finish(axes, xlabel)


def ratios_of(suite, pair) -> list[float]:
    a, b = suite.programs[pair.a], suite.programs[pair.b]
    return [y / x for x, y in zip(a.throughputs, b.throughputs, strict=True)]


def ring(axes, points: list[tuple], size: float) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), "o", markersize=size, fillstyle="none", color=style.RED,
                  markeredgewidth=1.3)  # fmt: skip


def words_of(pair) -> str:
    flag = " [not a fair comparison]" if pair.flagged else ""
    return pair.comparison.sentence(pair.a, pair.b) + flag
