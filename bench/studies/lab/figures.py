"""A mistake compared with the right version: one picture per lab.

Above the primary measure, a bar per version and a dot per seed. Below what the mistake can be seen in: curves over
epochs, the ranks' own metrics, what a file held, or the next measure; of a run that hangs only where its ranks stand.
"""

import datetime
import statistics

from bench.analysis import style
from bench.config.modes import Look
from bench.mistakes.measures import ranks_metric
from bench.record.definition import Sample
from bench.record.view import Record
from bench.studies.lab.result import files_of, sentence

LOOKS = {"right": Look(style.BLUE, "", "o", "-"), "wrong": Look(style.VERMILION, "///", "X", "--")}
BARS, CURVE, RANK = 1.35, 2.2, 0.42  # inches: a panel of two bars, one of curves, a rank's row
CURVES = ("train_loss", "metric")


@style.styled
def draw(result):
    panels = panels_of(result)
    title = f"{result.mistake.title[0].upper()}{result.mistake.title[1:]}"
    more = (" ".join(["Blue: the right version. Orange-red: the same run with the mistake.", key_of(result)]),)
    more += tuple(sentence(row, result.n) for row in result.rows[:1])
    n = f"n = {result.n} seeds, in interleaved rounds" if result.n > 1 else "n = 1 seed: no interval"
    heights = [height for height, _, _ in panels]
    paper = style.canvas(result.suite, title, sum(heights) + 0.3, result.certificate, more, n)
    all_axes = style.axes_on(paper, len(heights), height_ratios=heights)
    for axes, (_, panel, options) in zip(all_axes, panels, strict=True):
        panel(axes, result, **options)
    return paper.figure


def panels_of(result) -> list[tuple]:
    """(height in inches, the function that draws it, its options), from above: the primary measure, and what the
    mistake's lab says that it can be seen in."""
    shows, wrong = result.mistake.lab.shows, result.records["wrong"][0]
    if shows == "places":
        return [(RANK * (2 * result.suite.first.config.num_devices + 1), draw_places, {})]
    panels = [(BARS, draw_bars, {"row": row}) for row in result.rows[:1]]
    if shows == "ranks" and ranks_metric(wrong, wrong.observed):
        return [*panels, (CURVE, draw_ranks, {})]
    if shows == "files" and files_of(result.records["wrong"]):
        return [*panels, (BARS, draw_files, {})]
    if shows in CURVES and len(wrong.epochs) > 1:
        return [*panels, (CURVE, draw_curves, {"shows": shows})]
    return panels + [(BARS, draw_bars, {"row": row}) for row in result.rows[1:2]]


def key_of(result) -> str:
    if result.mistake.lab.hangs:
        return "Hatched: no heartbeat. Next to it: the line that a rank was at when the run was ended."
    return "Bar or thick line: mean over seeds. Dot or thin line: a seed."


def draw_bars(axes, result, row) -> None:
    """A measure: a bar for each version, a dot for each seed, the mean written behind."""
    for y, (side, values) in enumerate({"right": row.right, "wrong": row.wrong}.items()):
        look, mean = LOOKS[side], statistics.fmean(values)
        axes.barh(y, mean, 0.6, facecolor=look.colour, alpha=0.55, edgecolor="black", linewidth=0.8, hatch=look.hatch)
        heights = [y + 0.15 * (i % 3 - 1) for i in range(len(values))]
        axes.plot(values, heights, "o", color="white", markeredgecolor="black", markersize=4.5, markeredgewidth=0.9)
        axes.annotate(row.sides[y], (max([0, *values]), y), (9, 0), textcoords="offset points", va="center",
                      size=style.TEXT)  # fmt: skip
    style.name_rows(axes, LOOKS)
    axes.set_xlim(left=min([0, *row.right, *row.wrong]))
    axes.margins(x=0.2)
    style.vertical_grid(axes)
    axes.set_xlabel(row.measure.name)


def draw_curves(axes, result, shows: str) -> None:
    """A number after each epoch, of both versions; the mean over the epochs that all seeds have. shows: of CURVES."""
    metric = result.suite.first.workload.metrics[0]
    key = metric.key if shows == "metric" else shows
    for side, look in LOOKS.items():
        seeds = [style.finite([row[key] for row in record.epochs]) for record in result.records[side]]
        seeds = [[metric.shown(value) if shows == "metric" else value for value in curve] for curve in seeds]
        for curve in seeds:
            axes.plot(range(1, len(curve) + 1), curve, color=look.colour, linewidth=0.6, alpha=0.5)
        mean = [statistics.fmean(at) for at in zip(*seeds, strict=False)]
        axes.plot(range(1, len(mean) + 1), mean, color=look.colour, linestyle=look.line, marker=look.marker, label=side)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")
    of_metric = f"{metric.label}, % of held-out" if metric.percent else f"{metric.label}, held-out"
    axes.set_ylabel(of_metric if shows == "metric" else "training loss")
    style.horizontal_grid(axes)
    style.legend_above(axes, 2)


def draw_ranks(axes, result) -> None:
    metric = result.suite.first.workload.metrics[0]
    form = ".1f" if metric.percent else ".3f"
    for shift, (side, look) in zip((-0.2, 0.2), LOOKS.items(), strict=True):
        values = ranks_metric(record := result.records[side][0], record.observed)
        places = [rank + shift for rank in range(len(values))]
        axes.bar(places, values, 0.36, facecolor=look.colour, alpha=0.55, edgecolor="black", linewidth=0.8,
                 hatch=look.hatch, label=side)  # fmt: skip
        for x, value in zip(places, values, strict=True):
            axes.annotate(format(value, form), (x, value), (0, 2), textcoords="offset points", ha="center",
                          size=style.SMALL)  # fmt: skip
    axes.set_xticks(range(len(values)), [f"rank {rank}" for rank in range(len(values))])
    axes.set_ylim(0, 112 if metric.percent else 1.12 * axes.get_ylim()[1])
    axes.set_ylabel(f"{metric.name}, last epoch")
    style.horizontal_grid(axes)
    style.legend_above(axes, 2)


def draw_files(axes, result) -> None:
    counts, look = files_of(result.records["wrong"]), LOOKS["wrong"]
    axes.barh(list(counts), list(counts.values()), 0.6, facecolor=look.colour, alpha=0.55, edgecolor="black",
              linewidth=0.8, hatch=look.hatch)  # fmt: skip
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    style.vertical_grid(axes)
    axes.set_xlabel("writes after which the file's statistics were those of")


def draw_places(axes, result) -> None:
    """A row for each rank of both versions: seconds from the command, and where it was when the run was ended."""
    right, wrong = result.records["right"][0], result.records["wrong"][0]
    ranks = wrong.config.num_devices
    rows = [(f"right, rank {part.rank}", lived_s(right, part), 0.0, "done") for part in right.samples]
    end, limit = wrong.failure["after_s"], wrong.config.timeout
    where = wrong.failure.get("where") or [None] * ranks
    stood = min(limit, end)
    rows += [(f"wrong, rank {rank}", end - stood, stood, place(where[rank])) for rank in range(ranks)]
    for y, (name, lived, stood, text) in enumerate(rows):
        look = LOOKS[name.partition(",")[0]]
        axes.barh(y, lived, 0.5, facecolor=look.colour, alpha=0.75, edgecolor="black", linewidth=0.8)
        axes.barh(y, stood, 0.5, left=lived, facecolor="white", edgecolor=look.colour, linewidth=0.8, hatch="////")
        x, side, shift = (lived + stood, "right", -5) if stood else (lived, "left", 5)
        label = axes.annotate(
            text, (x, y), (shift, 0), textcoords="offset points", ha=side, va="center", size=style.SMALL,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
        label.set_in_layout(False)
    style.name_rows(axes, (name for name, *_ in rows))
    axes.set_xlim(0, 1.02 * max(lived + stood for _, lived, stood, _ in rows))
    style.vertical_grid(axes)
    axes.set_xlabel("seconds from the command")


def lived_s(record: Record, part: Sample) -> float:
    """Seconds from the command to a rank's last step."""
    return part.moments["last_timed_step"] - datetime.datetime.fromisoformat(record.started_at).timestamp()


def place(where: dict | None) -> str:
    if not where:
        return "its place is not known"
    waits = " in a collective" if where["collective"] else ""
    return f"{where['file'].rpartition('/')[2]}:{where['line']} ({where['function']}){waits}"


FIGURES = {"lab": {"lab": draw}}
