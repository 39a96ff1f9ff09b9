"""Compare a mistake with the right version, paired by seed: text, tables and one figure.

The primary measure decides, in the direction fixed in advance; the other measures are only reported. A run that hangs
is a result here: its failed record counts.
"""

import datetime
import statistics
from collections import Counter
from dataclasses import dataclass

from bench import formulas
from bench.analysis import stats, style
from bench.analysis.certificate import Certificate, Rules, certify, program
from bench.analysis.comparison import records_of, require_comparable
from bench.analysis.suite import Suite
from bench.analysis.tables import Grid
from bench.analysis.words import with_span
from bench.config.fields import in_words
from bench.config.modes import PlotStyle
from bench.config.options import FIELDS
from bench.errors import UserError
from bench.mistakes import MISTAKES, Finding, Mistake, find
from bench.mistakes.measures import Measure, ranks_metric
from bench.record.disturbance import observed_of, worst
from bench.record.view import Record
from bench.studies.accuracy.study import OF_THE_SEED
from bench.studies.lab.study import VARIANTS

LOOKS = {"right": PlotStyle(style.BLUE, "", "o", "-"), "wrong": PlotStyle(style.VERMILION, "///", "X", "--")}
BARS, CURVE, RANK = 1.35, 2.2, 0.42  # inches: a panel of two bars, one of curves, a rank's row
HEADS = [("metric", False), ("right", True), ("wrong", True), ("wrong − right, or × [95 %]", True), ("n", True),
         ("expected", False), ("seen", False)]  # fmt: skip


@dataclass(frozen=True)
class Row:
    measure: Measure
    right: list[float]
    wrong: list[float]
    change: float  # mean of wrong - right, or geometric mean of wrong / right
    low: float | None  # Student's 95 % interval; None with one seed
    high: float | None
    disturbed: bool = False  # a time, of which a run was disturbed

    @property
    def undecided(self) -> str:
        """Why no direction is stated. Times and unexpected measures need several seeds."""
        if self.low is None and (self.measure.ratio or not self.measure.moves):
            return "preview: no interval"
        return "disturbed: not judged" if self.disturbed else ""

    @property
    def direction(self) -> str:
        """ "up", "down", or "" where the interval contains "no change" or nothing is decided."""
        if self.undecided:
            return ""
        low, high = (self.change, self.change) if self.low is None else (self.low, self.high)
        nothing = 1 if self.measure.ratio else 0
        return "up" if low > nothing else "down" if high < nothing else ""

    @property
    def seen(self) -> str:
        return self.undecided or self.direction or "no effect shown here"

    @property
    def as_expected(self) -> bool:
        return self.direction == self.measure.moves

    @property
    def sides(self) -> list[str]:
        return [format(statistics.fmean(side), self.measure.form) for side in (self.right, self.wrong)]

    @property
    def change_words(self) -> str:
        if self.measure.ratio:
            return "× " + with_span(self.change, self.low, self.high)
        return with_span(self.change, self.low, self.high, "+" + self.measure.form).replace("-", "−")


@dataclass(frozen=True)
class LabResult:
    suite: Suite
    mistake: Mistake
    certificate: Certificate
    records: dict[str, list[Record]]  # of each version, one per seed
    rows: list[Row]  # the primary measure first; without unobserved ones
    findings: dict[str, list[Finding]]  # mistakes found in any run of a version, each once

    @property
    def n(self) -> int:
        return len(self.records["right"])


def mistake_of(suite: Suite) -> Mistake | None:
    """The mistake of the wrong version that the right one does not have; also if the runs failed."""

    def has(variant: str, mistake: Mistake) -> bool:
        arm = suite.of_variant(variant)
        records = arm.records if arm else [r for r in suite.failed if r.label.variant == variant]
        return bool(records) and all(getattr(records[0].config, n) == value for n, value in mistake.wrong.items())

    return next((m for m in MISTAKES.values() if has("wrong", m) and not has("right", m)), None)


def about(suite: Suite) -> str:
    mistake = mistake_of(suite)
    return mistake.name if mistake else ""


def heading_of(suite: Suite) -> str:
    mistake = mistake_of(suite)
    return f"{mistake.name}: {mistake.title}" if mistake else suite.id


def warning(suite: Suite) -> str:
    wrong = mistake.wrong if (mistake := mistake_of(suite)) else {}
    switch = " ".join(in_words(f, wrong[f.name]) for f in FIELDS.values() if f.name in wrong)
    return f"Made on purpose, only in the wrong version: {switch}" if wrong else ""


def explanations(suite: Suite) -> list[tuple[str, str]]:
    mistake = mistake_of(suite)
    if mistake is None:
        return []
    return [("Symptom", mistake.lab.seen), ("Consequence", mistake.consequence),
            ("Remedy", mistake.remedy)]  # fmt: skip


def compare(suite: Suite) -> LabResult:
    """Compare the two versions of a mistake demo. Raises UserError without a complete round or the
    primary measure of every run."""
    mistake = mistake_of(suite)
    if mistake is None:
        require_comparable(suite, Rules())
        raise UserError(
            f"suite {suite.id} does not belong to a known mistake: its configurations are {', '.join(suite.programs)}"
        )
    changes = mistake.lab.changes  # the mistake's own changes are not unfair
    varies = dict.fromkeys(changes, ("it is what the mistake changes", program))
    rules = Rules(varies, OF_THE_SEED, ranks_apart=changes, options=mistake.lab.varies, mistakes=True)
    require_comparable(suite, rules)
    arms = [suite.of_variant(variant) for variant in VARIANTS]
    right, wrong = (arm.records if arm else [] for arm in arms)
    ended = {r.label.round: r for r in suite.failed if r.label.variant == "wrong" and r.failed_on_purpose}
    if not wrong and ended:
        rounds = [number for number in suite.rounds if number in ended]
        right, wrong = [right[suite.rounds.index(n)] for n in rounds], [ended[n] for n in rounds]
    if not right or not wrong:
        raise UserError(f"suite {suite.id}: one of its two versions has no usable record: run it again")
    records = {"right": right, "wrong": wrong}
    measures = [measure.of(suite.first.workload) for measure in mistake.lab.measures_on(suite.device)]
    primary, *others = [row_of(measure, right, wrong) for measure in measures]
    if primary is None:
        raise UserError(f"suite {suite.id}: not every run has the primary measure: {measures[0].name}")
    findings = {}
    for variant in VARIANTS:
        found = {each.name: each for record in reversed(records[variant]) for each in find(observed_of(record))}
        findings[variant] = sorted(found.values(), key=lambda each: [*MISTAKES, each.name].index(each.name))
    certificate = certify(records_of(suite), rules)
    return LabResult(suite, mistake, certificate, records, [primary, *filter(None, others)], findings)


def row_of(measure: Measure, right: list[Record], wrong: list[Record]) -> Row | None:
    a, b = ([measure.read(record, record.observed) for record in records] for records in (right, wrong))
    if None in a or None in b:
        return None
    a, b = list(map(float, a)), list(map(float, b))
    if measure.ratio:
        found = stats.compare_rounds(a, b)
        disturbed = bool(worst(record for record in [*right, *wrong] if record.ok))
        return Row(measure, a, b, found.ratio, found.low, found.high, disturbed)
    differences = [y - x for x, y in zip(a, b, strict=True)]
    if len(differences) == 1:
        return Row(measure, a, b, differences[0], None, None)
    return Row(measure, a, b, *formulas.mean_interval(differences, stats.t_quantile(len(a) - 1, 0.95)))


def answer(result: LabResult) -> list[str]:
    lines = [sentence(row, result.n) for row in result.rows] or ["it was not observed: run it with WATCH=1"]
    held = ", ".join(f"{what} × {times}" for what, times in files_of(result.records["wrong"]).items())
    lines += [f"wrong version: batch-norm statistics in the file after each write: {held}"] if held else []
    named = "; ".join(f"{finding.name} ({finding.evidence})" for finding in result.findings["wrong"])
    wrong = f"found in the wrong version: {named}" if named else "nothing found in the wrong version"
    right = ", ".join(finding.name for finding in result.findings["right"]) or "nothing"
    return [*lines, *places(result.records["wrong"]), f"bench mistake check: {wrong}; in the right version: {right}"]


def sentence(row: Row, n: int) -> str:
    """A measure in words.

    >>> measure = Measure("images never seen", lambda record, observed: None, "up", ".0f")
    >>> sentence(Row(measure, [0, 0], [29, 29], 29.0, 29.0, 29.0), 2)
    'images never seen: 0 → 29, +29 [+29 to +29] (n = 2 seeds): up, as expected'
    """
    measure, seeds = row.measure, f"n = {n} seeds" if n > 1 else "n = 1 seed, no interval"
    word = row.seen
    if measure.moves and not row.undecided:
        word += ", as expected" if row.as_expected else f", NOT as expected ({measure.moves})"
    return f"{measure.name}: {' → '.join(row.sides)}, {row.change_words} ({seeds}): {word}"


def files_of(records: list[Record]) -> dict[str, int]:
    """Content of the files that several ranks wrote, with counts over all runs; empty if not watched."""
    counts = Counter()
    for record in records:
        for part in record.samples:
            counts.update(part.lab.get("files", {}))
    return dict(sorted(counts.items()))


def places(records: list[Record]) -> list[str]:
    ended = [record.failure for record in records if record.failure]
    if not ended:
        return []
    seconds = [failure["after_s"] for failure in ended]
    took = f"{min(seconds):.1f} to {max(seconds):.1f}" if len(seconds) > 1 else f"{seconds[0]:.1f}"
    limit = records[0].config.timeout
    return [ended[0]["message"], f"detected, reported and ended {took} s after the command, with TIMEOUT={limit:g}"]


def summary(result: LabResult) -> list[Grid]:
    rows = []
    for row in result.rows:
        expected = row.measure.moves or "none"
        rows.append([row.measure.name, *row.sides, row.change_words, str(result.n), expected, row.seen])
    return [Grid(HEADS, rows, "Right and wrong version, paired by seed")]


# --- the picture ----------------------------------------------------------------------------------------------------


@style.styled
def draw(result):
    """The primary measure, and below it other evidence of the mistake; for a hang only the places of its ranks."""
    panels = panels_of(result)
    title = f"{result.mistake.title[0].upper()}{result.mistake.title[1:]}"
    key = "Bar or thick line: mean over seeds. Dot or thin line: one seed."
    if result.mistake.lab.hangs:
        key = "Hatched: no heartbeat. Next to it: the line of code where the rank was when the run was ended."
    more = [f"Blue: the right version. Orange-red: the same run with the mistake. {key}"]
    more += [sentence(row, result.n) for row in result.rows[:1]]
    n = f"n = {result.n} seeds, in interleaved rounds" if result.n > 1 else "n = 1 seed: no interval"
    figure, all_axes = style.panels(result, title, [height for height, *_ in panels], 0.3, more, n)
    for axes, (_, panel, *about) in zip(all_axes, panels, strict=True):
        panel(axes, result, *about)
    return figure


def panels_of(result) -> list[tuple]:
    """(height in inches, the function that draws it, its data), from the top."""
    shows, wrong = result.mistake.lab.shows, result.records["wrong"][0]
    if shows == "places":
        return [(RANK * (2 * result.suite.first.config.num_devices + 1), draw_places)]
    measures = [(BARS, draw_bars, row) for row in result.rows[:2]]
    if shows == "ranks" and ranks_metric(wrong, wrong.observed):
        return [*measures[:1], (CURVE, draw_ranks)]
    if shows == "files" and files_of(result.records["wrong"]):
        return [*measures[:1], (BARS, draw_files)]
    if shows in ("train_loss", "metric") and len(wrong.epochs) > 1:
        return [*measures[:1], (CURVE, draw_curves, shows)]
    return measures


def draw_bars(axes, result, row) -> None:
    for y, (look, values) in enumerate(zip(LOOKS.values(), (row.right, row.wrong), strict=True)):
        axes.barh(y, statistics.fmean(values), 0.6, **style.bar(look))
        style.draw_dots(axes, values, y, 0.15)
        axes.annotate(row.sides[y], (max([0, *values]), y), (9, 0), textcoords="offset points", va="center",
                      size=style.TEXT)  # fmt: skip
    style.name_rows(axes, LOOKS)
    axes.set_xlim(left=min([0, *row.right, *row.wrong]))
    axes.margins(x=0.2)
    style.finish(axes, row.measure.name)


def draw_curves(axes, result, shows: str) -> None:
    """The metric or the training loss after each epoch, of both versions; the mean over the epochs of all seeds."""
    metric = result.suite.metric
    key, shown, label = shows, float, "training loss"
    if shows == "metric":
        key, shown, label = metric.key, metric.displayed, style.held_out(metric)
    for side, look in LOOKS.items():
        seeds = [style.finite([row[key] for row in record.epochs]) for record in result.records[side]]
        seeds = [list(map(shown, curve)) for curve in seeds]
        for curve in seeds:
            axes.plot(range(1, len(curve) + 1), curve, color=look.colour, linewidth=0.6, alpha=0.5)
        mean = [statistics.fmean(at) for at in zip(*seeds, strict=False)]
        axes.plot(range(1, len(mean) + 1), mean, color=look.colour, linestyle=look.line, marker=look.marker, label=side)
    axes.xaxis.get_major_locator().set_params(integer=True)
    style.finish(axes, "epoch", label, grid="y", legend=2)


def draw_ranks(axes, result) -> None:
    metric = result.suite.metric
    form = ".1f" if metric.percent else ".3f"
    for shift, (side, look) in zip((-0.2, 0.2), LOOKS.items(), strict=True):
        record = result.records[side][0]
        values = ranks_metric(record, record.observed)
        places = [rank + shift for rank in range(len(values))]
        axes.bar(places, values, 0.36, label=side, **style.bar(look))
        for x, value in zip(places, values, strict=True):
            axes.annotate(format(value, form), (x, value), (0, 2), textcoords="offset points", ha="center",
                          size=style.SMALL)  # fmt: skip
    axes.set_xticks(range(len(values)), [f"rank {rank}" for rank in range(len(values))])
    axes.set_ylim(0, 112 if metric.percent else 1.12 * axes.get_ylim()[1])
    style.finish(axes, y=f"{metric.name}, last epoch", grid="y", legend=2)


def draw_files(axes, result) -> None:
    counts = files_of(result.records["wrong"])
    axes.barh(list(counts), list(counts.values()), 0.6, **style.bar(LOOKS["wrong"]))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    style.finish(axes, "number of writes after which the file contained the statistics of")


def draw_places(axes, result) -> None:
    """A row for each rank of both versions: seconds from the command, and its line when the run was ended."""
    right, wrong = result.records["right"][0], result.records["wrong"][0]
    ranks, began = wrong.config.num_devices, datetime.datetime.fromisoformat(right.started_at).timestamp()
    rows = [(f"right, rank {p.rank}", p.moments["last_timed_step"] - began, 0.0, "done") for p in right.samples]
    end = wrong.failure["after_s"]
    stood, where = min(wrong.config.timeout, end), wrong.failure.get("where") or [None] * ranks
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
    style.finish(axes, "seconds from the command")


def place(where: dict | None) -> str:
    if not where:
        return "location unknown"
    waits = " in a collective" if where["collective"] else ""
    return f"{where['file'].rpartition('/')[2]}:{where['line']} ({where['function']}){waits}"


FIGURES = {"lab": {"lab": draw}}
