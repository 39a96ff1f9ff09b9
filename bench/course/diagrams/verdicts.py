"""The words of a comparison: where the interval of the ratio is, and what follows from it."""

from bench.analysis import stats, style

MARGIN = 0.02
INTERVALS = [
    (1.03, 1.08),
    (0.91, 0.96),
    (0.995, 1.012),
    (0.97, 1.06),
    (0.87, 1.13),
]  # low and high of a ratio b / a: made up
COLOURS = {
    "faster": style.GREEN,
    "slower": style.VERMILION,
    "tie": style.BLUE,
    "no difference": style.SKY,
    "inconclusive": style.GREY,
}


@style.styled
def verdicts():
    """A row an interval: the bar, the band of a tie, and the word that ``bench.analysis.stats.verdict`` says."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.WIDTH, 3.3), layout="constrained")
    figure.suptitle("An interval, and the word for it", size=style.TITLE, weight="bold", x=0.02, ha="left")
    axes = figure.subplots()
    axes.axvspan(1 / (1 + MARGIN), 1 + MARGIN, color=style.PALE, alpha=0.8, linewidth=0)
    axes.axvline(1, color=style.BLACK, linewidth=0.8)
    words = [stats.verdict(low, high, MARGIN) for low, high in INTERVALS]
    for y, ((low, high), word) in enumerate(zip(INTERVALS, words, strict=True)):
        axes.plot([low, high], [y, y], color=COLOURS[word], linewidth=6, solid_capstyle="butt")
        axes.plot((low * high) ** 0.5, y, "|", color=style.BLACK, markersize=12, markeredgewidth=2)
    axes.set_yticks(range(len(words)), words)
    axes.set_ylim(len(words) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(
        f"ratio b / a with its 95 % interval; grey: ±{100 * MARGIN:g} %\ndrawing: the intervals are made up"
    )
    return figure
