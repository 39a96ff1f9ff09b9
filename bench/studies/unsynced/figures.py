"""Replicas initialised with different weights: their distance over steps against the theory, and how good the models
they leave are."""

import itertools
import statistics

from bench.analysis import style
from bench.analysis.equivalence import margin_words, mean_of
from bench.config.modes import MODES, UPPER_BOUNDS
from bench.studies.unsynced.result import AVERAGES, percent
from bench.studies.unsynced.study import MAIN, replicas_of

PANEL = 2.5  # inches
ROW = 0.32  # inches, a model
PAIRS = 2.2  # inches, the seeds of a program
MARKS = 12  # of the theory's line, so that what is under it is seen
LAYERS = ("#000000", style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.GREY)


@style.styled
def draw(result):
    """Two panels: the distance of every program's replicas, with the theory's over it; and that of the first
    unsynchronised program by layer, over what it was at the start."""
    apart = [each for each in result.apart if each.most]
    key = "Thin: a seed. Thick: the mean over seeds. Black dots: theory, from learning rates and decay alone. "
    known = [each for each in apart if each.deviation is not None]
    key += "Largest deviation of any step: " * bool(known)
    key += "; ".join(f"{each.program.label} {percent(each.deviation)}" for each in known)
    title = "How far apart are the replicas, after every step?"
    heights = [PANEL, PANEL] if apart else [PANEL]
    paper = style.canvas(result.suite, title, sum(heights) + 0.9, result.certificate, (key,))
    axes = style.axes_on(paper, len(heights), height_ratios=heights)
    draw_distances(axes[0], result)
    if apart:
        draw_layers(axes[1], apart[0].program)
    return paper.figure


def draw_distances(axes, result) -> None:
    """Root mean square distance over pairs of ranks, of all parameters."""
    looks = looks_of(result)
    for each in result.apart:
        seeds = [replicas_of(record) for record in each.program.records]
        steps, look = seeds[0]["steps"], looks[each.program.label]
        for seed in seeds:
            axes.plot(steps, style.finite(seed["distance"]), color=look.colour, linewidth=0.6, alpha=0.4)
        mean = mean_over([style.finite(seed["distance"]) for seed in seeds])
        axes.plot(steps, mean, color=look.colour, linestyle=look.line, label=each.program.label)
        if each.deviation is not None and each.most:
            theory = mean_over([[seed["distance"][0] * x for x in seed["theory"]] for seed in seeds])
            axes.plot(steps, theory, ".", color=style.BLACK, markersize=4, markevery=max(1, len(steps) // MARKS))
    axes.set_ylim(bottom=-0.04 * axes.get_ylim()[1])  # a line at 0 is seen
    axes.set_xlabel("step")
    axes.set_ylabel("distance of the weights")
    style.horizontal_grid(axes)
    style.legend_above(axes, 2)


def draw_layers(axes, program) -> None:
    """The distance layer by layer over the first, mean over seeds; a layer that starts equal has no such ratio."""
    seeds = [replicas_of(record) for record in program.records]
    layers = [name for name, values in seeds[0]["by_layer"].items() if values[0]]
    for number, name in enumerate(layers):
        ratios = [[x / seed["by_layer"][name][0] for x in style.finite(seed["by_layer"][name])] for seed in seeds]
        axes.plot(seeds[0]["steps"], mean_over(ratios), color=LAYERS[number % len(LAYERS)],
                  linestyle=style.LINES[number % len(style.LINES)], label=name)  # fmt: skip
    if seeds[0]["theory"]:
        axes.plot(seeds[0]["steps"], seeds[0]["theory"], ".", color=style.BLACK, markersize=4,
                  markevery=max(1, len(seeds[0]["steps"]) // MARKS))  # fmt: skip
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.set_xlabel(f"step of {program.label}")
    axes.set_ylabel("distance over the first")
    style.horizontal_grid(axes)
    style.legend_above(axes, 4)


@style.styled
def draw_ranks(result):
    percent, examples = result.metric.percent, result.suite.first.workload.batched
    bar = ", the bar its 95 % interval" if result.suite.n > 1 else ""
    key = (
        f"A dot is a seed, the mark their mean{bar}. A rank's model is judged on all held-out {examples} with its own "
        "weights and its own buffers; rank 0's is what a checkpoint holds. Average: the mean of the ranks' weights"
    )
    buffers = (
        f", with the mean of their buffers, or with batch norm's statistics estimated anew on the training {examples}"
    )
    key += (buffers if any(model.name in AVERAGES.values() for model in result.models) else "") + "."
    paper = style.canvas(
        result.suite, "How good is each rank's model?", ROW * len(result.models) + 0.6, result.certificate, (key,)
    )
    (axes,) = style.axes_on(paper)
    looks = looks_of(result)
    for y, model in enumerate(result.models):
        look, (mean, low, high) = looks[model.program.label], mean_of(model.top1)
        axes.plot(model.top1, [y + 0.12 * (i % 3 - 1) for i in range(len(model.top1))], look.marker, color=look.colour,
                  markersize=4.5, markeredgewidth=0.5, markeredgecolor="white", alpha=0.8)  # fmt: skip
        if low is not None:
            axes.plot(
                [low, min(high, 100) if percent else high],
                [y, y],
                color=look.colour,
                linewidth=3,
                alpha=0.55,
                solid_capstyle="butt",
            )
        axes.plot(mean, y, "|", color=style.BLACK, markersize=10, markeredgewidth=1.8)
        if y and model.program != result.models[y - 1].program:
            axes.axhline(y - 0.5, color=style.PALE, linewidth=1)
    names = [f"{model.program.label}: {model.name}" if model.name == MAIN else model.name for model in result.models]
    axes.set_yticks(range(len(names)), names, size=style.SMALL)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    if percent:
        axes.set_xlim(right=101)
    style.vertical_grid(axes)
    of = "% of held-out" if percent else "held-out"
    axes.set_xlabel(f"{result.metric.label} after the last epoch, {of}")
    return paper.figure


@style.styled
def draw_pairs(result):
    """A panel per unsynchronised program: a line per seed, from the synchronised run's rank 0 to each model of this."""
    programs = list(dict.fromkeys(model.program for model in result.compared))
    if not programs:
        return None
    key = (
        "A line is a seed: both runs had the same seed, the same batches and rank 0's initial weights. Black: the "
        f"mean. Grey band: the margin round the first mean, {margin_words(result.metric)}, fixed before the runs."
    )
    title = "What does each seed lose?"
    paper = style.canvas(result.suite, title, PAIRS * len(programs) + 0.3, result.certificate, (key,))
    for axes, program in zip(style.axes_on(paper, len(programs)), programs, strict=True):
        draw_seeds(axes, result, [model for model in result.compared if model.program is program])
    return paper.figure


def draw_seeds(axes, result, models: list) -> None:
    """The seeds of one program. models: those of one program, all compared with the same one."""
    base = next(model for model in result.models if (model.program.label, model.name) == (models[0].base, MAIN))
    columns = [base.top1, *(model.top1 for model in models)]
    look, level = looks_of(result)[models[0].program.label], statistics.fmean(base.top1)
    margin = result.metric.margin
    axes.axhspan(level - margin, level + margin, color=style.PALE, alpha=0.7, linewidth=0)
    for seed in zip(*columns, strict=True):
        axes.plot(
            range(len(columns)), seed, color=look.colour, marker=look.marker, markersize=3.5, linewidth=0.8, alpha=0.6
        )
    axes.plot(range(len(columns)), list(map(statistics.fmean, columns)), "_", color=style.BLACK, markersize=18,
              markeredgewidth=2)  # fmt: skip
    names = [f"{base.program.label}\n{MAIN}", *(model.name.replace(", ", ",\n") for model in models)]
    axes.set_xticks(range(len(columns)), names)
    axes.set_xlim(-0.4, len(columns) - 0.6)
    axes.set_ylabel(f"{result.metric.label}{', %' * result.metric.percent}")
    axes.set_title(models[0].program.label, loc="left", weight="bold")
    style.horizontal_grid(axes)


def looks_of(result) -> dict:
    """The look of each program: the first of a mode has the mode's, the further ones spare ones."""
    found, seen, spare = {}, set(), itertools.cycle([*style.SPARE[:2], *(MODES[mode].look for mode in UPPER_BOUNDS)])
    for label, look in style.looks(result.suite).items():
        found[label] = next(spare) if look in seen else look
        seen.add(look)
    return found


def mean_over(seeds: list[list[float]]) -> list[float]:
    return [statistics.fmean(point) for point in zip(*seeds, strict=True)]


FIGURES = {"unsynced": {"replica-distance": draw, "accuracy-by-rank": draw_ranks, "seed-pairs": draw_pairs}}
