"""The loss when replicas start from different weights: the metric after the last epoch, paired by seed.

Each rank's model of an unsynchronised run, and the model of their mean weights, are compared with rank 0's model of the
synchronised run of the same mode and seed.
"""

import itertools
import math
import statistics
from dataclasses import dataclass

from bench.analysis import equivalence, stats, style
from bench.analysis.certificate import Certificate, certify
from bench.analysis.comparison import records_of, require_comparable
from bench.analysis.equivalence import margin_words, mean_of
from bench.analysis.suite import Program, Suite, group_by
from bench.analysis.tables import Grid
from bench.analysis.words import with_span
from bench.config.modes import MODES, UPPER_BOUNDS
from bench.record.view import Record
from bench.studies.unsynced.study import MAIN, RULES, ranks_of, replicas_of

AVERAGES = {"averaged_buffers": "average, buffers averaged", "estimated_statistics": "average, statistics re-estimated"}
QUOTED = 2.0  # percentage points: the loss quoted for ImageNet, without a published experiment
TOLERANCE = 0.01  # relative tolerance of a distance to the theory
# Of the distance at the start. The deviation of a smaller distance is relative to this, because float32 rounding is not
# small compared with it, and replicas that have met are bit-identical.
FLOOR = 1e-3
PANEL, ROW, PAIRS = 2.5, 0.32, 2.2  # inches: distances over steps, a model, the seeds of a program
MARKS = 12  # of the theory's line, so that the line under it is visible
LAYERS = ("#000000", style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.GREY)
ON_IMAGENET = (
    "On ImageNet: make unsynced-init GPUS=8 SEEDS=3 DATA=tar:FOLDER MODEL=resnet50 IMAGE_SIZE=224 BATCH=32 EPOCHS=90 "
    "LR=0.1 LR_BASE_BATCH=256 LR_WARMUP=5e SCHEDULE=step WEIGHT_DECAY=1e-4. By the theory "
    "that decay brings the replicas together."
)


@dataclass(frozen=True)
class Model:
    program: Program
    name: str
    top1: list[float]  # the workload's first metric as it is shown, one per seed
    base: str | None = None  # the label of its reference; None for the synchronised runs themselves
    differences: tuple[float, ...] = ()  # in the metric's unit, one per seed
    found: stats.Equivalence | None = None
    p: float | None = None  # two-sided, sign-flip

    def sentence(self) -> str:
        said = equivalence.words_of(
            f"{self.program.label}, {self.name}", self.base, self.found, self.program.first.workload.metrics[0]
        )
        return said if self.found.low is None else f"{said}; sign-flip p {self.p:.3f}"


@dataclass(frozen=True)
class DivergenceCurve:
    program: Program
    start: list[float]  # one per seed
    end: list[float]
    most: float  # the largest distance of any step and seed
    steps: int
    factor: float | None  # by the theory, distance at the end over the start; None: no closed form
    deviation: float | None  # the largest of any step and seed from the theory, relative

    def sentence(self) -> str:
        runs = f"n = {len(self.start)} run{'' if len(self.start) == 1 else 's'} of {self.steps} steps"
        if not self.most:
            return f"{self.program.label}: the replicas were equal after every step ({runs})"
        went = f"distance {statistics.fmean(self.start):.4g} at the start, {statistics.fmean(self.end):.4g} at the end"
        if self.deviation is None:
            return f"{self.program.label}: {went}; no closed form is known for this optimizer ({runs})"
        held = "as predicted by theory" if self.deviation <= TOLERANCE else "NOT as predicted by theory"
        said = "constant" if self.factor == 1 else f"× {self.factor:.4g}"
        off = f"largest deviation of any step: {percent(self.deviation)}"
        return f"{self.program.label}: {went}, {held} ({said}; {off}; {runs})"


@dataclass(frozen=True)
class UnsyncedResult:
    suite: Suite
    certificate: Certificate
    models: list[Model]  # by program, rank 0's first
    apart: list[DivergenceCurve]  # of the programs of several processes

    @property
    def compared(self) -> list[Model]:
        return [model for model in self.models if model.base]


def compare(suite: Suite) -> UnsyncedResult:
    """Compare the programs, paired by seed. Raises UserError as ``require_comparable``, and without REPLICAS=1."""
    require_comparable(suite, RULES)
    order = sorted(suite.programs.values(), key=lambda p: p.first.world_size == 1)  # the control comes last
    several = [program for program in order if program.first.world_size > 1]
    top1 = {program.label: [top1_of(record) for record in program.records] for program in order}
    models = [model_of(p, name, top1, base_of(suite, p)) for p in order for name in top1[p.label][0]]
    return UnsyncedResult(suite, certify(records_of(suite), RULES), models, list(map(curve_of, several)))


def top1_of(record: Record) -> dict[str, float]:
    """The metric of every model of a run after the last epoch."""
    replicas, metric = replicas_of(record), record.workload.metrics[0]
    found = {f"rank {rank}": metric.displayed(value) for rank, value in enumerate(ranks_of(record)[-1])}
    names = AVERAGES if len(replicas["average"]) > 1 else dict.fromkeys(AVERAGES, "average")  # one: no batch norm
    return found | {names[kind]: metric.displayed(judged[metric.key]) for kind, judged in replicas["average"].items()}


def base_of(suite: Suite, program: Program) -> str | None:
    """The reference of a program: for an unsynchronised one the same mode's synchronised one; for the control, one
    process, the first synchronised one of several. None for the synchronised ones of several."""
    synced = [p for p in suite.programs.values() if p.config.init_sync and p.first.world_size > 1]
    if program in synced:
        return None
    among = synced if program.config.init_sync else [p for p in synced if p.config.mode == program.config.mode]
    return among[0].label if among else None


def model_of(program: Program, name: str, top1: dict[str, list[dict]], base: str | None) -> Model:
    """One model of a program, against rank 0's of its base. top1: label -> the models' metric, a dict per seed."""
    mine = [seed[name] for seed in top1[program.label]]
    if base is None:
        return Model(program, name, mine)
    differences, found = equivalence.paired(
        mine, [seed[MAIN] for seed in top1[base]], program.first.workload.metrics[0]
    )
    return Model(program, name, mine, base, tuple(differences), found, stats.sign_flip_p(differences))


def curve_of(program: Program) -> DivergenceCurve:
    seeds = [replicas_of(record) for record in program.records]
    known = all(seed["theory"] for seed in seeds)
    distances = [x for seed in seeds for x in seed["distance"] if x is not None]  # None: a weight was not finite
    return DivergenceCurve(
        program,
        [seed["distance"][0] for seed in seeds],
        style.finite([seed["distance"][-1] for seed in seeds]),
        max(distances, default=math.nan),
        seeds[0]["steps"][-1],
        seeds[0]["theory"][-1] if known else None,
        max(map(deviation_of, seeds)) if known else None,
    )


def deviation_of(replicas: dict) -> float:
    """The largest relative deviation of a run's distances from the theory; infinite if one is not a number.

    >>> round(deviation_of({"distance": [10.0, 9.0, 8.2], "theory": [1.0, 0.9, 0.81]}), 4)
    0.0123
    """
    start, deviations = replicas["distance"][0], []
    for distance, factor in zip(replicas["distance"], replicas["theory"], strict=True):
        expected = start * factor
        if distance == expected:
            deviations.append(0.0)
        elif distance is None or not start:
            deviations.append(math.inf)
        else:
            deviations.append(abs(distance - expected) / max(expected, FLOOR * start))
    return max(deviations)


def answer(result: UnsyncedResult) -> list[str]:
    first = [model for model in result.compared if model.name == MAIN]
    others = [model for model in result.compared if model.name != MAIN]
    lines = [model.sentence() for model in first] + [curve.sentence() for curve in result.apart]
    margin = margin_words(result.suite.metric)
    note = f"Margin, fixed before the runs: {margin}. Rank 0's model is what a checkpoint holds."
    if result.suite.metric != equivalence.TOP1:
        return [*lines, note]
    apart = group_by((m for m in first + others if not m.program.config.init_sync), lambda m: loss_of(m.found))
    parts = [f"{loss}: {'; '.join(f'{m.program.label}, {m.name}' for m in apart[loss])}" for loss in sorted(apart)]
    if parts:
        config = result.suite.first.config
        where = f"on {config.data}, {config.model}, {config.epochs} epochs"
        lines.append(
            f"Is the loss of {QUOTED:g} points that is quoted for ImageNet reproduced {where}? {'. '.join(parts)}"
        )
    return [*lines, note, ON_IMAGENET]


def loss_of(found: stats.Equivalence) -> str:
    """Whether the 95 % interval contains a loss of the quoted size.

    >>> loss_of(stats.equivalence([-5.0, -5.5, -6.0], 1.0)), loss_of(stats.equivalence([-0.1, 0.2, 0.0], 1.0))
    ('Lost 2 points or more', 'Lost less than 2 points')
    """
    if found.low95 is None or found.low95 <= -QUOTED < found.high95:
        return "Unknown"
    return f"Lost less than {QUOTED:g} points" if found.low95 > -QUOTED else f"Lost {QUOTED:g} points or more"


def percent(deviation: float) -> str:
    return "below 0.0001 %" if deviation < 1e-6 else f"{100 * deviation:.2g} %"


def summary(result: UnsyncedResult) -> list[Grid]:
    metric = result.suite.metric
    value, difference, narrow, verdict = equivalence.heads(metric)
    heads = [("configuration", False), ("model", False), value, ("against rank 0 of", False), difference, narrow,
             ("sign-flip p", True), verdict, ("n", True)]  # fmt: skip
    rows = []
    for model in result.models:
        mean = with_span(*mean_of(model.top1), equivalence.digits(metric))
        against = [""] * 5
        if model.found:
            wide, interval, word = equivalence.cells(model.found, metric, result.certificate.fair)
            tests = ["", ""] if model.found.low is None else [interval, f"{model.p:.3f}"]
            against = [model.base, wide, *tests, word]
        rows.append([model.program.label, model.name, mean, *against, str(len(model.top1))])
    caption = style.flagged(f"{metric.heading} of each model, paired by seed", result.certificate)
    apart = [
        ("configuration", False), ("distance at the start", True), ("at the end", True), ("theory", True),
        ("largest deviation", True), ("steps", True), ("n", True),
    ]  # fmt: skip
    curves = []
    for each in result.apart:
        ends = [f"{statistics.fmean(values):.6g}" for values in (each.start, each.end)]
        theory = ["no closed form", ""]
        if each.deviation is not None:
            theory = [f"× {each.factor:.6g}", percent(each.deviation)]
        curves.append([each.program.label, *ends, *theory, str(each.steps), str(len(each.start))])
    return [Grid(heads, rows, caption), Grid(apart, curves, "Distance between the replicas, mean over seeds")]


# --- the pictures ---------------------------------------------------------------------------------------------------


@style.styled
def draw_distance(result):
    """The distance of every program's replicas with the theory's, and by layer for the first unsynchronised program."""
    apart = [each for each in result.apart if each.most]
    key = "Thin: one seed. Thick: mean over seeds. Black dots: theory, from learning rates and weight decay only. "
    known = [each for each in apart if each.deviation is not None]
    key += "Largest deviation of any step: " * bool(known)
    key += "; ".join(f"{each.program.label} {percent(each.deviation)}" for each in known)
    heights = [PANEL, PANEL] if apart else [PANEL]
    figure, axes = style.panels(result, "How far apart are the replicas after each step?", heights, 0.9, [key])
    draw_distances(axes[0], result)
    if apart:
        draw_layers(axes[1], apart[0].program)
    return figure


def draw_distances(axes, result) -> None:
    looks = looks_of(result)
    for each in result.apart:
        seeds = [replicas_of(record) for record in each.program.records]
        steps, look = seeds[0]["steps"], looks[each.program.label]
        curves = [style.finite(seed["distance"]) for seed in seeds]
        for curve in curves:
            axes.plot(steps, curve, color=look.colour, linewidth=0.6, alpha=0.4)
        axes.plot(steps, mean_over(curves), color=look.colour, linestyle=look.line, label=each.program.label)
        if each.deviation is not None and each.most:
            draw_theory(axes, steps, mean_over([[seed["distance"][0] * x for x in seed["theory"]] for seed in seeds]))
    axes.set_ylim(bottom=-0.04 * axes.get_ylim()[1])  # a line at 0 is seen
    style.finish(axes, "step", "distance of the weights", grid="y", legend=2)


def draw_layers(axes, program) -> None:
    """The distance layer by layer over the first, mean over seeds; a layer that starts equal has no such ratio."""
    seeds = [replicas_of(record) for record in program.records]
    layers = [name for name, values in seeds[0]["by_layer"].items() if values[0]]
    for number, name in enumerate(layers):
        ratios = [[x / seed["by_layer"][name][0] for x in style.finite(seed["by_layer"][name])] for seed in seeds]
        axes.plot(seeds[0]["steps"], mean_over(ratios), color=LAYERS[number % len(LAYERS)],
                  linestyle=style.LINES[number % len(style.LINES)], label=name)  # fmt: skip
    if seeds[0]["theory"]:
        draw_theory(axes, seeds[0]["steps"], seeds[0]["theory"])
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    style.finish(axes, f"step of {program.label}", "distance over the first", grid="y", legend=4)


def draw_theory(axes, steps: list[int], distances: list[float]) -> None:
    axes.plot(steps, distances, ".", color=style.BLACK, markersize=4, markevery=max(1, len(steps) // MARKS))


@style.styled
def draw_ranks(result):
    percent, examples = result.suite.metric.percent, result.suite.first.workload.batched
    bar = ", bar = its 95 % CI" if result.suite.n > 1 else ""
    key = (
        f"Dot = one seed, mark = mean{bar}. A rank's model is evaluated on all held-out {examples} with its own "
        "weights and buffers; a checkpoint contains rank 0's. Average: the mean of the ranks' weights"
    )
    if any(model.name in AVERAGES.values() for model in result.models):
        key += ", with the mean of their buffers, or with batch norm's statistics re-estimated on the training "
        key += examples
    models, looks, names = result.models, looks_of(result), []
    height = ROW * len(models)
    figure, (axes,) = style.panels(result, "How good is each rank's model?", [height], 0.6, [f"{key}."])
    for y, model in enumerate(models):
        look, (mean, low, high) = looks[model.program.label], mean_of(model.top1)
        style.draw_dots(axes, model.top1, y, 0.12, look, markersize=4.5, markeredgewidth=0.5, alpha=0.8)
        if low is not None:
            ends = [low, min(high, 100) if percent else high]
            axes.plot(ends, [y, y], color=look.colour, linewidth=3, alpha=0.55, solid_capstyle="butt")
        style.mark(axes, mean, y, 10, 1.8)
        first = not y or model.program != models[y - 1].program
        names.append(f"{model.program.label}: {model.name}" if first else model.name)
        if y and first:
            axes.axhline(y - 0.5, color=style.PALE, linewidth=1)
    style.name_rows(axes, names, size=style.SMALL)
    axes.set_ylim(len(names) - 0.5, -0.5)
    if percent:
        axes.set_xlim(right=101)
    of = "% of held-out data" if percent else "held-out data"
    style.finish(axes, f"{result.suite.metric.label} after the last epoch, {of}")
    return figure


@style.styled
def draw_pairs(result):
    """A panel per unsynchronised program: a line per seed, from the synchronised run's rank 0 to each model of this."""
    programs = list(dict.fromkeys(model.program for model in result.compared))
    key = (
        "Line: one seed; both runs had the same seed, the same batches and rank 0's initial weights. Black: mean. "
        f"Grey band: the margin around the first mean, {margin_words(result.suite.metric)}, fixed before the runs."
    )
    figure, all_axes = style.panels(result, "Difference of each seed", [PAIRS] * len(programs), 0.3, [key])
    for axes, program in zip(all_axes, programs, strict=True):
        draw_seeds(axes, result, [model for model in result.compared if model.program is program])
    return figure


def draw_seeds(axes, result, models: list) -> None:
    base = next(model for model in result.models if (model.program.label, model.name) == (models[0].base, MAIN))
    columns = [base.top1, *(model.top1 for model in models)]
    look, level = looks_of(result)[models[0].program.label], statistics.fmean(base.top1)
    margin, places = result.suite.metric.margin, range(len(columns))
    axes.axhspan(level - margin, level + margin, color=style.PALE, alpha=0.7, linewidth=0)
    for seed in zip(*columns, strict=True):
        axes.plot(places, seed, color=look.colour, marker=look.marker, markersize=3.5, linewidth=0.8, alpha=0.6)
    axes.plot(places, list(map(statistics.fmean, columns)), "_", color=style.BLACK, markersize=18, markeredgewidth=2)
    names = [f"{base.program.label}\n{MAIN}", *(model.name.replace(", ", ",\n") for model in models)]
    axes.set_xticks(places, names)
    axes.set_xlim(-0.4, len(columns) - 0.6)
    axes.set_title(models[0].program.label, loc="left", weight="bold")
    style.finish(axes, y=f"{result.suite.metric.label}{', %' * result.suite.metric.percent}", grid="y")


def looks_of(result) -> dict:
    found, seen, spare = {}, set(), itertools.cycle([*style.SPARE[:2], *(MODES[mode].look for mode in UPPER_BOUNDS)])
    for label, look in style.looks(result.suite).items():
        found[label] = next(spare) if look in seen else look
        seen.add(look)
    return found


def mean_over(seeds: list[list[float]]) -> list[float]:
    return [statistics.fmean(point) for point in zip(*seeds, strict=True)]


FIGURES = {"unsynced": {"replica-distance": draw_distance, "accuracy-by-rank": draw_ranks, "seed-pairs": draw_pairs}}
