"""What is lost when replicas start from different weights? Top-1 after the last epoch, paired by seed.

What an unsynchronised run leaves behind, each rank's model and the model of their mean weights, is compared with rank
0's model of the synchronised run of the same mode and seed, in percentage points, unsynchronised less synchronised.
"""

import math
import statistics
from dataclasses import dataclass

from bench.analysis import equivalence, stats, style
from bench.analysis.certificate import Certificate, certify
from bench.analysis.comparison import records_of, require_one_workload, require_rounds
from bench.analysis.equivalence import mean_of, points, span, unit_of, verdict_of
from bench.analysis.suite import Program, Suite
from bench.analysis.tables import Grid
from bench.analysis.words import with_span
from bench.config.workloads import Metric
from bench.record.view import Record
from bench.studies.unsynced.study import MAIN, RULES, ranks_of, replicas_of

AVERAGES = {"averaged_buffers": "average, buffers averaged", "estimated_statistics": "average, statistics anew"}
QUOTED = 2.0  # percentage points: the loss that is quoted for ImageNet, without an experiment that can be checked
TOLERANCE = 0.01  # of the theory: a distance may be off by so much
# Of the distance at the start. A smaller one is held against this: the rounding of weights in float32 is not small
# beside it, and replicas that have met are bit-identical.
FLOOR = 1e-3


@dataclass(frozen=True)
class Model:
    """One model that the runs of a program leave behind. top1: the workload's first metric as it is shown, per cent of
    top-1, one per seed. base: the label of the program
    it is compared with, none for the synchronised runs themselves; then the rest is None and empty."""

    program: Program
    name: str
    top1: list[float]
    base: str | None
    differences: list[float]  # as percentage points, one per seed
    found: stats.Equivalence | None
    p: float | None  # two-sided, sign-flip

    @property
    def metric(self) -> Metric:
        return self.program.first.workload.metrics[0]

    def sentence(self) -> str:
        said = equivalence.words_of(f"{self.program.label}, {self.name}", self.base, self.found, self.metric)
        return said if self.found.low is None else f"{said}; sign-flip p {self.p:.3f}"


@dataclass(frozen=True)
class DivergenceCurve:
    """How far apart the replicas of a program were. start, end: one per seed. factor: what the theory says that the
    distance is multiplied by till the end (in the first seed); deviation: the largest of any step and seed, relative;
    None where there is no closed form. most: the largest distance of any step and seed."""

    program: Program
    start: list[float]
    end: list[float]
    most: float
    steps: int
    factor: float | None
    deviation: float | None

    def sentence(self) -> str:
        runs = f"n = {len(self.start)} run{'' if len(self.start) == 1 else 's'} of {self.steps} steps"
        if not self.most:
            return f"{self.program.label}: the replicas were equal after every step ({runs})"
        went = f"distance {statistics.fmean(self.start):.4g} at the start, {statistics.fmean(self.end):.4g} at the end"
        if self.deviation is None:
            return f"{self.program.label}: {went}; no closed form is known for this optimizer ({runs})"
        held = "as the theory says" if self.deviation <= TOLERANCE else "NOT AS THE THEORY SAYS"
        said = "constant" if self.factor == 1 else f"× {self.factor:.4g}"
        off = f"the largest deviation of any step is {percent(self.deviation)}"
        return f"{self.program.label}: {went}, {held} ({said}; {off}; {runs})"


@dataclass(frozen=True)
class UnsyncedResult:
    """A suite compared. models: by program, rank 0's first. apart: of the programs of several processes."""

    suite: Suite
    certificate: Certificate
    models: list[Model]
    apart: list[DivergenceCurve]

    @property
    def metric(self) -> Metric:
        return self.suite.first.workload.metrics[0]

    @property
    def compared(self) -> list[Model]:
        return [model for model in self.models if model.base]


ON_IMAGENET = (
    "On ImageNet: make unsynced-init GPUS=8 SEEDS=3 DATA=tar:FOLDER MODEL=resnet50 IMAGE_SIZE=224 BATCH=32 EPOCHS=90 "
    "LR=0.1 LR_BATCH=256 LR_WARMUP_EPOCHS=5 SCHEDULE=step WEIGHT_DECAY=1e-4. By the theory "
    "that decay brings the replicas together."
)


def answer(result: UnsyncedResult) -> list[str]:
    first = [model for model in result.compared if model.name == MAIN]
    others = [model for model in result.compared if model.name != MAIN]
    lines = [model.sentence() for model in first] + [curve.sentence() for curve in result.apart]
    margin = equivalence.margin_words(result.metric)
    note = f"Margin, fixed before the runs: {margin}. Rank 0's model is what a checkpoint holds."
    images = [*quoted(result.suite, first, others), ON_IMAGENET] if result.metric == equivalence.TOP1 else []
    return [*lines, *images[:-1], note, *images[-1:]]


def quoted(suite: Suite, first: list[Model], others: list[Model]) -> list[str]:
    """Where a loss of the quoted size appears in these runs, and where it does not."""
    apart = [model for model in first + others if not model.program.config.init_sync]
    found = {}
    for model in apart:
        found.setdefault(loss_of(model.found), []).append(f"{model.program.label}, {model.name}")
    parts = [f"{word}: {'; '.join(names)}" for word, names in sorted(found.items())]
    config = suite.first.config
    where = f"on {config.data}, {config.model}, {config.epochs} epochs"
    return [f"The {QUOTED:g} points that are quoted for ImageNet, {where}. {'. '.join(parts)}"] if parts else []


def loss_of(found: stats.Equivalence) -> str:
    """What the 95 % interval says of a loss of the quoted size.

    >>> loss_of(stats.equivalence([-5.0, -5.5, -6.0], 1.0)), loss_of(stats.equivalence([-0.1, 0.2, 0.0], 1.0))
    ('Lost 2 points or more', 'Lost less than 2 points')
    >>> loss_of(stats.equivalence([-5.0, 1.0, 0.0], 1.0))
    'Not known'
    """
    if found.low95 is None or found.low95 <= -QUOTED < found.high95:
        return "Not known"
    return f"Lost less than {QUOTED:g} points" if found.low95 > -QUOTED else f"Lost {QUOTED:g} points or more"


def top1_of(record: Record) -> dict[str, float]:
    """The metric, after the last epoch, of every model that a run leaves behind."""
    replicas, metric = replicas_of(record), record.workload.metrics[0]
    found = {f"rank {rank}": metric.shown(value) for rank, value in enumerate(ranks_of(record)[-1])}
    names = AVERAGES if len(replicas["average"]) > 1 else dict.fromkeys(AVERAGES, "average")  # one: no batch norm
    averages = {names[kind]: judged[metric.key] for kind, judged in replicas["average"].items()}
    return found | {name: metric.shown(value) for name, value in averages.items()}


def compare(suite: Suite) -> UnsyncedResult:
    """Compare the programs of an unsynced suite, paired by seed. Raises UserError without a whole round, for records of
    different workloads, and for one that says nothing of its replicas."""
    require_rounds(suite)
    require_one_workload(suite, RULES)
    several = [program for program in suite.programs.values() if program.first.world_size > 1]
    order = several + [p for p in suite.programs.values() if p.first.world_size == 1]  # the control comes last
    top1 = {program.label: [top1_of(record) for record in program.records] for program in order}
    models = [model_of(p, name, top1, base_of(suite, p)) for p in order for name in top1[p.label][0]]
    apart = [curve_of(program) for program in several]
    return UnsyncedResult(suite, certify(records_of(suite), RULES), models, apart)


def base_of(suite: Suite, program: Program) -> str | None:
    """The program that a program is compared with: of an unsynchronised one the same mode's synchronised one; of one
    process, which is the control, the first synchronised one of several. None for the synchronised ones of several."""
    synced = [p for p in suite.programs.values() if p.config.init_sync and p.first.world_size > 1]
    if program in synced:
        return None
    same = [p for p in synced if p.config.mode == program.config.mode]
    found = next(iter(same if not program.config.init_sync else synced), None)
    return found and found.label


def model_of(program: Program, name: str, top1: dict[str, list[dict]], base: str | None) -> Model:
    """One model of a program, compared with rank 0's of its base. top1: label -> the models' top-1, a dict per seed."""
    mine = [seed[name] for seed in top1[program.label]]
    if base is None:
        return Model(program, name, mine, None, [], None, None)
    differences = [x - seed[MAIN] for x, seed in zip(mine, top1[base], strict=True)]
    found = stats.equivalence(differences, program.first.workload.metrics[0].margin)
    return Model(program, name, mine, base, differences, found, stats.sign_flip_p(differences))


def curve_of(program: Program) -> DivergenceCurve:
    seeds = [replicas_of(record) for record in program.records]
    known = all(seed["theory"] for seed in seeds)
    return DivergenceCurve(
        program,
        [seed["distance"][0] for seed in seeds],
        [math.nan if (last := seed["distance"][-1]) is None else last for seed in seeds],
        max(numbers(x for seed in seeds for x in seed["distance"])),
        seeds[0]["steps"][-1],
        seeds[0]["theory"][-1] if known else None,
        max(map(deviation_of, seeds)) if known else None,
    )


def deviation_of(replicas: dict) -> float:
    """The largest relative deviation of a run's distances from the theory (see FLOOR); infinite where one is no number.

    >>> round(deviation_of({"distance": [10.0, 9.0, 8.2], "theory": [1.0, 0.9, 0.81]}), 4)
    0.0123
    """
    start = replicas["distance"][0]
    expected = [start * factor for factor in replicas["theory"]]
    return max(
        math.inf if x is None else 0.0 if x == y else abs(x - y) / max(y, FLOOR * start) if start else math.inf
        for x, y in zip(replicas["distance"], expected, strict=True)
    )


def percent(deviation: float) -> str:
    """A relative deviation in words; the records hold seven digits.

    >>> percent(0.0123), percent(3e-8)
    ('1.2 %', 'below 0.0001 %')
    """
    return "below 0.0001 %" if deviation < 1e-6 else f"{100 * deviation:.2g} %"


def numbers(values) -> list[float]:
    """Those that are: a weight that is not finite leaves no distance."""
    return [value for value in values if value is not None] or [math.nan]


def heads(metric: Metric) -> list[tuple[str, bool]]:
    return [
        ("program", False), ("model", False), (f"{metric.name}, last epoch [95 % interval]", True),
        ("against rank 0 of", False), (f"{unit_of(metric)} [95 %]", True), ("[90 %]", True), ("sign-flip p", True),
        (f"verdict, margin ±{metric.margin:g}", False), ("n", True),
    ]  # fmt: skip


def cells(result: UnsyncedResult, model: Model) -> list[str]:
    metric = model.metric
    head = [model.program.label, model.name, with_span(*mean_of(model.top1), ".2f" if metric.percent else ".4f")]
    if not model.base:
        return [*head, "", "", "", "", "", str(len(model.top1))]
    found = model.found
    wide = narrow = p = ""
    if found.low is not None:
        wide = f" [{span(found.low95, found.high95, metric)}]"
        narrow, p = span(found.low, found.high, metric), f"{model.p:.3f}"
    unfair = "" if result.certificate.fair else " (unfair)"
    return [*head, model.base, points(found.mean_difference, metric) + wide, narrow, p,
            verdict_of(found, metric) + unfair, str(found.n)]  # fmt: skip


APART_HEADS = [
    ("program", False), ("distance at the start", True), ("at the end", True), ("theory", True),
    ("largest deviation", True), ("steps", True), ("n", True),
]  # fmt: skip


def apart_cells(apart: DivergenceCurve) -> list[str]:
    theory = "no closed form" if apart.factor is None else f"× {apart.factor:.6g}"
    deviation = "" if apart.deviation is None else percent(apart.deviation)
    ends = [f"{statistics.fmean(values):.6g}" for values in (apart.start, apart.end)]
    return [apart.program.label, *ends, theory, deviation, str(apart.steps), str(len(apart.start))]


def summary(result: UnsyncedResult) -> list[Grid]:
    caption = style.flagged(f"{result.metric.heading} of each model, paired by seed", result.certificate)
    return [
        Grid(heads(result.metric), [cells(result, model) for model in result.models], caption),
        Grid(APART_HEADS, [apart_cells(curve) for curve in result.apart],
             "Distance between the replicas, means over seeds"),
    ]  # fmt: skip


grids = summary
