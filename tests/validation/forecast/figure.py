"""Predicted against emulated seconds of a step, and against published efficiency: one mark for each setting."""

from pathlib import Path

from bench.analysis import drawing, style
from tests.validation.forecast import measured, published, result

BODY = 4.6  # inches
TITLE = "A step: predicted against emulated"
OF_RUNS = ("Measured: real trainings between namespaces that share this machine's cores; their forecast has the "
           "computation of the same processes without communication.")  # fmt: skip
MEASURED = ("measured, between namespaces", style.GREEN, "^")
LOOKS = dict(zip(result.SETS, ((style.ORANGE, "s", style.WHITE), (style.BLUE, "o", style.BLUE)), strict=True))
PUBLISHED = "Efficiency: published, predicted"
LEARNED = "Several nodes, predicted from one node"
BAND = 0.15
BY_NODES = {"one node": (style.GREEN, "^", style.WHITE), "several nodes": (style.BLUE, "o", style.BLUE)}


@style.styled
def draw(data: dict):
    """All settings. Hollow squares are those that the model was made with, discs those that only judge it."""
    nodes, runs = result.words(sorted({row["nodes"] for row in data["rows"]})), data.get(measured.NAME, [])
    foot = [f"Emulated and predicted, {nodes} namespaces of one machine. Line: equal; grey: within {100 * BAND:g} %. "
            "Across a mark: from the shortest to the longest run of one setting.",
            *([OF_RUNS] if runs else []), *result.answer(data)]  # fmt: skip
    paper = style.canvas(None, TITLE + (" and measured" if runs else ""), BODY, None, tuple(foot))
    (axes,) = style.axes_on(paper)
    both = [row[name] for row in [*data["rows"], *runs] for name in ("emulated_s", "measured_s", "predicted_s")
            if name in row]  # fmt: skip
    ends = [0.8 * min(both), 1.25 * max(both)]
    axes.fill_between(ends, [end * (1 - BAND) for end in ends], [end * (1 + BAND) for end in ends], color=style.PALE)
    axes.plot(ends, ends, color=style.GREY, linewidth=1)
    for name, (colour, marker, face) in LOOKS.items():
        rows = [row for row in data["rows"] if row["made_with"] == (name == result.SETS[0])]
        axes.plot([row["emulated_s"] for row in rows], [row["predicted_s"] for row in rows], marker, color=colour,
                  markerfacecolor=face, linestyle="none", label=f"{name} ({len(rows)})")  # fmt: skip
        axes.hlines([row["predicted_s"] for row in rows], [min(row["runs_s"]) for row in rows],
                    [max(row["runs_s"]) for row in rows], color=colour, linewidth=1)  # fmt: skip
    if runs:
        label, colour, marker = MEASURED
        axes.plot([row["measured_s"] for row in runs], [row["predicted_s"] for row in runs], marker, color=colour,
                  markeredgecolor=style.BLACK, linestyle="none", label=f"{label} ({len(runs)})")  # fmt: skip
    xlabel = "emulated or measured, s" if runs else "emulated, s"
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=xlabel, ylabel="predicted, s")
    ticks = [2.0**power for power in range(-10, 11) if ends[0] <= 2.0**power <= ends[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_aspect("equal")
    style.legend_above(axes, 2)
    return paper.figure


def save(data: dict, folder: Path) -> list[Path]:
    """The picture in the folder, as SVG and PNG; their paths."""
    return drawing.save_all({"forecast-check": draw(data)}, folder)


@style.styled
def draw_published(found: list[published.Judged]):
    """Every published row: throughput over that of as many devices alone, published and predicted."""
    foot = ["Throughput over that of as many devices that need nothing of each other. Line: equal; grey: within "
            f"{100 * BAND:g} %.", *published.answer(found)]  # fmt: skip
    paper = style.canvas(None, PUBLISHED, BODY, None, tuple(foot))
    (axes,) = style.axes_on(paper)
    both = [value for each in found for value in (each.efficiency, each.efficiency * (1 + each.off))]
    ends = [min(both) - 0.05, max(both) + 0.05]
    axes.fill_between(ends, [end * (1 - BAND) for end in ends], [end * (1 + BAND) for end in ends], color=style.PALE)
    axes.plot(ends, ends, color=style.GREY, linewidth=1)
    for name, (colour, marker, face) in BY_NODES.items():
        rows = [each for each in found if (each.row.nodes == 1) == (name == "one node")]
        axes.plot([each.efficiency for each in rows], [each.efficiency * (1 + each.off) for each in rows], marker,
                  color=colour, markerfacecolor=face, linestyle="none", label=f"{name} ({len(rows)})")  # fmt: skip
    axes.set(xlim=ends, ylim=ends, xlabel="published", ylabel="predicted")
    axes.set_aspect("equal")
    style.legend_above(axes, 2)
    return paper.figure


@style.styled
def draw_learned(found: list[published.Learned]):
    """Each row of several nodes: predicted throughput over the published one, with its interval; and linear scaling."""
    foot = ("Predicted throughput over the published one, in per cent. Fitted to the rows of one node of each table; "
            "linear scaling: of its largest row. Bars: 95 % intervals. Numbers at the left: devices.",)  # fmt: skip
    paper = style.canvas(None, LEARNED, 0.19 * len(found) + 0.8, None, foot)
    (axes,) = style.axes_on(paper)
    places = range(len(found))
    lows, highs = ([100 * (1 + getattr(each, name)) for each in found] for name in ("low", "high"))
    axes.axvline(100, color=style.BLACK, linewidth=1)
    axes.hlines(places, lows, highs, color=style.BLUE, linewidth=2.5, alpha=0.4, label="its interval")
    axes.plot([100 * (1 + each.off) for each in found], places, "o", color=style.BLUE, label="predicted, fitted")
    axes.plot([100 * (1 + each.linear_off) for each in found], places, "s", color=style.ORANGE,
              markerfacecolor=style.WHITE, label="linear scaling")  # fmt: skip
    axes.set_yticks(list(places), [f"{each.table.name}, {each.row.model}, {each.row.devices}" for each in found],
                    size=style.SMALL)  # fmt: skip
    axes.invert_yaxis()
    axes.set(xlabel="predicted throughput over published, %")
    style.legend_above(axes, 2)
    return paper.figure


def save_published(found: list[published.Judged], learned: list[published.Learned], folder: Path) -> list[Path]:
    """The pictures beside the tables; their paths."""
    drawn = {published.PICTURE: draw_published(found)}
    return drawing.save_all(drawn | ({published.FITTED: draw_learned(learned)} if learned else {}), folder)
