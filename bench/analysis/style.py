"""The look of every figure: size, type, colours, hatches, markers, header and footer. Sizes are in inches and points.

Colours are Okabe and Ito's, which the colour-blind can distinguish (Okabe and Ito 2008); each has a hatch or a marker,
for prints in grey. A figure is legible at a phone's width.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from bench.analysis import words
from bench.analysis.stats import FEWEST_ROUNDS
from bench.config.modes import PlotStyle
from bench.record.describe import machine_line, stand_in, workload

WIDTH = 6.0  # inches
DPI = 150
TITLE, TEXT, SMALL = 12.5, 10.5, 9.0  # points
MARGIN = 0.1  # inches around the picture
LINE = 1.35  # line height over type size
NO_BREAK = "\u00a0"

BLACK, GREY, PALE, RED = "#000000", "#6E6E6E", "#D9D9D9", "#B00020"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, WHITE = "#0072B2", "#D55E00", "#CC79A7", "#FFFFFF"

FONT = "DejaVu Sans"  # included in matplotlib; one of the widest, so a substitute needs less space
FALLBACK = f"'{FONT}', Verdana, sans-serif"  # for an SVG viewer that does not have it

# fmt: off
RC = {
    "font.family": [FONT], "font.size": TEXT, "axes.titlesize": TEXT, "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL, "ytick.labelsize": TEXT, "legend.fontsize": SMALL, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.linewidth": 0.8,
    "hatch.linewidth": 0.7, "lines.linewidth": 1.6, "lines.markersize": 6.5, "figure.dpi": 100,
    "svg.hashsalt": "data-parallel-bench",
    "svg.fonttype": "none",  # text stays text: small files, readable by screen readers
    "text.parse_math": False,  # a $ in a name is a $
}
# fmt: on
SPARE = (
    PlotStyle(SKY, "\\\\\\", "P", "-"),
    PlotStyle(VERMILION, "+++", "X", "--"),
    PlotStyle(YELLOW, "---", "h", "-."),
)
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))  # one per device, repeated after the last


def styled(draw):
    """Run a function that draws or saves under RC, whatever the user's own matplotlib settings are."""

    @functools.wraps(draw)
    def under_rc(*arguments, **options):
        import matplotlib

        with matplotlib.rc_context(RC):
            return draw(*arguments, **options)

    return under_rc


def looks(suite) -> dict[str, PlotStyle]:
    return {program.label: program.first.mode.look for program in suite.programs.values()}


@dataclass
class Canvas:
    figure: object
    body: tuple[float, float]  # bottom and top of the body, as fractions of the height
    height: float  # inches, of the whole


def canvas(
    suite, title: str, body_height: float, certificate=None, more: Iterable[str] = (), n: str | None = None
) -> Canvas:
    """An empty figure with ``body_height`` inches for axes. Its header: title, flag of an unfair ``certificate``, what
    disturbed the suite. Its footer: ``more``, one sentence per line, and the provenance of the records. suite: None for
    records of many machines, which ``more`` names."""
    from matplotlib.figure import Figure

    disturbed = f"DISTURBED, no verdict: {suite.disturbance}" if suite and suite.disturbed else ""
    head = [(line, TITLE, BLACK) for line in wrapped(title, TITLE, weight="bold")]
    head += [(line, TEXT, RED) for line in wrapped(flag(certificate), TEXT, weight="bold")]
    head += [(line, TEXT, GREY) for line in wrapped(disturbed, TEXT, weight="bold")]
    foot = [line for sentence in (*more, *provenance_lines(suite, n)) for line in wrapped(sentence, SMALL)]
    head_height = sum(size for _, size, _ in head) * LINE / 72 + MARGIN
    foot_height = len(foot) * SMALL * LINE / 72 + MARGIN
    height = body_height + head_height + foot_height
    figure = Figure(figsize=(WIDTH, height), facecolor=WHITE)
    y = height - MARGIN / 2
    for line, size, colour in head:
        figure.text(MARGIN / WIDTH, y / height, line, size=size, color=colour, weight="bold", va="top")
        y -= size * LINE / 72
    for below, line in zip(range(len(foot) - 1, -1, -1), foot, strict=True):
        y = MARGIN / 2 + below * SMALL * LINE / 72
        figure.text(MARGIN / WIDTH, y / height, line, size=SMALL, color="#404040", va="bottom")
    return Canvas(figure, (foot_height / height, 1 - head_height / height), height)


def axes_on(paper: Canvas, rows: int = 1, **options) -> list:
    bottom, top = paper.body
    paper.figure.set_layout_engine("constrained", rect=(0.01, bottom, 0.98, top - bottom), h_pad=0.06, hspace=0.03)
    return list(paper.figure.subplots(rows, 1, squeeze=False, **options)[:, 0])


def panels(
    result, title: str, heights: list[float], spare: float, more: Iterable[str] = (), n: str | None = None, **options
) -> tuple:
    """(figure, axes) of a result: axes of these heights in inches, and ``spare`` inches for their labels."""
    paper = canvas(result.suite, title, sum(heights) + spare, result.certificate, more, n)
    return paper.figure, axes_on(paper, len(heights), height_ratios=heights, **options)


def wrapped(text: str, size: float, width: float = WIDTH - 2 * MARGIN, weight: str = "normal") -> list[str]:
    """The lines of a text of this size (points) in this width (inches); none for an empty text. "95 %" stays whole."""
    lines = []
    for word in text.replace(" %", f"{NO_BREAK}%").split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, size, weight) <= width:
            lines[-1] = longer
        elif word:
            lines.append(word)
    return [line.replace(NO_BREAK, " ") for line in lines]


@functools.lru_cache(maxsize=4096)
def width_of(text: str, size: float, weight: str) -> float:
    """The width of a text in inches; hinting can make it up to 2 % wider than its outlines."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, size=size, weight=weight)
    return 1.02 * text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def flag(certificate) -> str:
    if certificate is None or certificate.fair:
        return ""
    return f"NOT A FAIR COMPARISON: {', '.join(fact.name for fact in certificate.differences)}"


def flagged(caption: str, certificate) -> str:
    return ": ".join(filter(None, [caption, flag(certificate)]))


def to_grey(figure) -> None:
    """Convert a figure to grey of the same luminance."""
    from matplotlib.colors import to_rgba

    for artist in figure.findobj():
        for part in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            colour = getattr(artist, f"get_{part}", lambda: None)()
            try:
                red, green, blue, alpha = to_rgba(colour)
            except (TypeError, ValueError):  # none, "auto", or one for each of many
                continue
            level = 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601
            getattr(artist, f"set_{part}")((level, level, level, alpha))


def provenance_lines(suite, n: str | None = None) -> list[str]:
    """The provenance in every figure: machine and versions, emulation of devices, n (the suite's rounds)."""
    if suite is None:
        return []
    if not suite.records:
        return [f"{suite.id}: no record of a successful run"]
    if n is None:
        n = f"n = {suite.n} interleaved rounds"
        if suite.n < FEWEST_ROUNDS:
            n = f"n = {suite.n} round{'' if suite.n == 1 else 's'}: a preview, no interval"
        n += ", each with its own seed" if suite.seeded and suite.n > 1 else ""
        n += f" ({words.sequence(suite.looks, suite.first.config.label.limit_minutes)})" if suite.looks else ""
    most = max(suite.records, key=lambda record: record.config.num_devices)
    emulating = max(suite.records, key=lambda record: (record.config.num_devices, not record.mode.one_process))
    work = " or ".join(dict.fromkeys(map(workload, suite.records)))
    return [machine_line(most), f"{stand_in(emulating)}; {n}; {work}"]


def number(value: float) -> str:
    """Three digits, never as a power of ten; a true minus.

    >>> number(1429.6), number(12.345), number(-0.5), number(0.01234)
    ('1430', '12.3', '−0.5', '0.0123')
    """
    return (f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")


def limits_with(dots: list[float], ends: list[float]) -> tuple[float, float]:
    """The limits of an axis with all dots, and with the ends of their intervals unless these would squeeze the dots."""
    low, high = min(dots), max(dots)
    spare = 0.6 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(low - spare, min([*dots, *ends])), min(high + spare, max([*dots, *ends]))
    spare = 0.05 * (high - low)
    return low - spare, high + spare


def draw_dots(
    axes, values: list[float], y: float, spread: float, look: PlotStyle | None = None, **options
) -> list[float]:
    """A dot for each value, shifted so that equal ones are visible; their heights. look: None for white dots on a
    bar."""
    heights = [y + spread * (i % 3 - 1) for i in range(len(values))]
    if look is None:
        shown = {"marker": "o", "color": "white", "markeredgecolor": "black", "markersize": 4.5, "markeredgewidth": 0.9}
    else:
        shown = {"marker": look.marker, "color": look.colour, "markeredgecolor": "white", "alpha": 0.9}
        shown |= {"markersize": 5, "markeredgewidth": 0.6}
    axes.plot(values, heights, linestyle="none", **shown | options)
    return heights


def draw_interval(axes, low: float, high: float, y: float, limits: tuple[float, float], colour: str) -> None:
    """An interval as a bar; an end beyond the limits of the axis is an arrow there."""
    from_x, to_x = max(low, limits[0]), min(high, limits[1])
    axes.plot([from_x, to_x], [y, y], color=colour, linewidth=4, solid_capstyle="butt")
    for beyond, x, marker in ((low < limits[0], limits[0], "<"), (high > limits[1], limits[1], ">")):
        if beyond:
            axes.plot(x, y, marker, color=colour, markersize=9, clip_on=False)


def draw_line(axes, xs: list[float], values: list[tuple], look: PlotStyle, label: str, **options) -> None:
    """A line through values, each (y, low, high) with its interval as a bar; None for low and high: no bar."""
    ys = [y for y, _, _ in values]
    bars = zip(*((0, 0) if low is None else (y - low, high - y) for y, low, high in values), strict=True)
    axes.errorbar(xs, ys, yerr=list(bars), label=label, capsize=3,
                  **{"color": look.colour, "marker": look.marker, "linestyle": look.line} | options)  # fmt: skip


def bar(look: PlotStyle) -> dict:
    return {"facecolor": look.colour, "alpha": 0.55, "edgecolor": "black", "linewidth": 0.8, "hatch": look.hatch}


def mark(axes, value: float, y: float, size: float = 11, width: float = 2) -> None:
    axes.plot(value, y, "|", color=BLACK, markersize=size, markeredgewidth=width)


def name_rows(axes, names: Iterable[str], **options) -> None:
    """Rows from the top, at y = 0, 1, 2, …, each with its name. options: of the names, such as size."""
    names = list(names)
    axes.set_yticks(range(len(names)), names, **options)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)


def title_panel(axes, lines: list[str]) -> None:
    """A title as wide as the picture, above axes that are narrower by the names of their rows."""
    axes.set_title("\n".join([" "] * len(lines)), loc="left", size=SMALL)  # its room
    text = axes.annotate("\n".join(lines), (MARGIN / WIDTH, 1), (0, 4), ("figure fraction", "axes fraction"),
                         "offset points", va="bottom", size=SMALL, linespacing=1.2)  # fmt: skip
    text.set_in_layout(False)


def finish(axes, x: str = "", y: str = "", grid: str = "x", legend: int = 0) -> None:
    """The labels of the axes, the grid (of "x" vertical lines), and a legend of N columns above."""
    if x:
        axes.set_xlabel(x)
    if y:
        axes.set_ylabel(y)
    axes.grid(axis=grid, color=PALE, linewidth=0.7)
    if legend:
        legend_above(axes, legend)


def horizontal_grid(axes) -> None:
    finish(axes, grid="y")


def vertical_grid(axes) -> None:
    finish(axes)


def legend_above(axes, columns: int, handles=None) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.2, handlelength=1.9,
        columnspacing=1.2, handletextpad=0.5, **({} if handles is None else {"handles": handles}),
    )  # fmt: skip


def held_out(metric) -> str:
    return f"{metric.label} on held-out data, %" if metric.percent else f"{metric.label} on held-out data"


def finite(values: list) -> list[float]:
    """Values that are not numbers become gaps in a line."""
    return [float("nan") if value is None else value for value in values]
