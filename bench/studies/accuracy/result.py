"""Do all modes learn the same? Top-1 accuracy after a whole training, paired by seed: a round has one seed for all.

In: a suite of kind "accuracy". Out: an AccuracyResult. The last epoch counts, never the best one: that would be chosen
after looking. A difference is in percentage points, a mode less the base, and no throughput is compared here: these
runs' steps are trained, validated and warmed up otherwise than those of `bench compare`.
"""

import math
import statistics
from dataclasses import dataclass

from bench import formulas
from bench.analysis import comparison, stats
from bench.analysis.certificate import Certificate, certify
from bench.analysis.suite import Suite
from bench.analysis.words import with_span
from bench.errors import UserError

# Percentage points: two modes that differ by less in their mean accuracy are equal for a user. It is a constant, and no
# option, so that nobody can choose it after the runs. On 360 held-out digits it is 3.6 images.
MARGIN = 1.0


@dataclass(frozen=True)
class Row:
    """One mode. top1: per cent, after the last epoch, one a seed. against_base: None for the base itself."""

    role: str
    top1: list[float]
    best: float  # per cent: of any epoch of any seed
    seconds_to_target: list[float | None]  # of training and validation, one a seed; None: it did not get there
    against_base: stats.Equivalence | None
    differences: list[float]  # percentage points, one a seed; none for the base

    @property
    def mean(self) -> tuple[float, float | None, float | None]:
        """The mean top-1 over seeds."""
        return mean_of(self.top1)

    @property
    def reached(self) -> int:
        """Seeds that reached the target."""
        return sum(seconds is not None for seconds in self.seconds_to_target)

    @property
    def median_seconds(self) -> float | None:
        """The median time to the target; one that did not get there took longer than all. None: half did not."""
        median = statistics.median(math.inf if s is None else s for s in self.seconds_to_target)
        return None if math.isinf(median) else median


@dataclass(frozen=True)
class AccuracyResult:
    """A suite compared. rows: the base first. target: a fraction, or None where the runs had none."""

    suite: Suite
    base: str
    certificate: Certificate
    rows: list[Row]
    target: float | None

    def answer(self) -> list[str]:
        """In words: one sentence a mode, then what the verdict means."""
        found = [words_of(row.role, self.base, row.against_base) for row in self.rows if row.against_base]
        if not found:
            return [f"{self.base} alone was run: nothing to compare"]
        meaning = '"Not shown" says that n is too small to tell, and not that there is a difference.'
        return [*found, f"Margin, fixed before the runs: {margin_words()}. {meaning}"]


def margin_words() -> str:
    """The margin as it is printed before the runs and beside every verdict."""
    return f"±{MARGIN:g} percentage point{'' if MARGIN == 1 else 's'} of top-1"


def mean_of(values: list[float]) -> tuple[float, float | None, float | None]:
    """The mean over seeds with Student's 95 % interval, which one seed has not."""
    if len(values) == 1:
        return values[0], None, None
    return formulas.mean_interval(values, stats.t_quantile(len(values) - 1, 0.95))


def words_of(name: str, base: str, found: stats.Equivalence) -> str:
    """The verdict on a paired difference, with its numbers."""
    if found.low is None:
        return f"{name} against {base}: {points(found.mean_difference)} points with one seed: no interval"
    wide, narrow = (f"{points(a)} to {points(b)}" for a, b in ((found.low95, found.high95), (found.low, found.high)))
    difference = f"{points(found.mean_difference)} points, 95 % interval {wide}, 90 % {narrow}, n = {found.n} seeds"
    return f"{name} against {base}: {verdict_of(found)} ({difference})"


def verdict_of(found: stats.Equivalence) -> str:
    """The word, with its unit.

    >>> verdict_of(stats.equivalence([0.1, -0.2, 0.0, 0.1], MARGIN)), verdict_of(stats.equivalence([2, 3, 2.5], MARGIN))
    ('equivalent within ±1 point', 'different')
    """
    return f"{found.verdict} point{'' if found.margin == 1 else 's'}" if found.equivalent else found.verdict


def points(value: float) -> str:
    """Percentage points with their sign, and a true minus.

    >>> points(-0.123), points(0.5)
    ('−0.12', '+0.50')
    """
    return f"{value:+.2f}".replace("-", "−")


def compare_accuracy(suite: Suite) -> AccuracyResult:
    """Compare the modes of an accuracy suite, paired by seed.

    Raises UserError when it has no whole round, when its records are of different workloads, or when one of them was
    not validated.
    """
    comparison.require_rounds(suite)
    comparison.require_one_workload(suite)
    for record in (record for records in suite.roles.values() for record in records):
        if "top1" not in record.get("accuracy", {}):
            raise UserError(f"suite {suite.id}: {record['run_id']} was not validated: there is no accuracy to compare")
    base = next(iter(suite.roles))
    rows = [row_of(role, records, suite.roles[base]) for role, records in suite.roles.items()]
    return AccuracyResult(suite, base, certify(suite.roles, suite.kind), rows, suite.first["accuracy"].get("target"))


def row_of(role: str, records: list[dict], base: list[dict]) -> Row:
    """One mode's row. base: the records of the same rounds that it is compared with; its own for the base."""
    top1, others = ([100 * record["accuracy"]["top1"] for record in side] for side in (records, base))
    differences = [] if records is base else [mine - other for mine, other in zip(top1, others, strict=True)]
    return Row(
        role,
        top1,
        100 * max(record["accuracy"]["best_top1"] for record in records),
        [record["accuracy"].get("time_to_accuracy_s") for record in records],
        stats.equivalence(differences, MARGIN) if differences else None,
        differences,
    )


def heads(result: AccuracyResult) -> list[tuple[str, bool]]:
    """The columns of the table: (name, whether its cells are numbers)."""
    where = "CPU" if result.suite.device == "cpu" else "GPU"
    target = "target" if result.target is None else f"{100 * result.target:g} %"
    return [
        ("mode", False), ("seeds", True), ("top-1 %, last epoch [95 % interval]", True), ("best %", True),
        (f"reached {target}", True), (f"median s to {target} ({where}, with validation)", True),
        (f"points against {result.base} [95 %]", True), ("[90 %]", True),
        (f"verdict, margin ±{MARGIN:g}", False),
    ]  # fmt: skip


def cells(result: AccuracyResult, row: Row) -> list[str]:
    """A mode's row of that table."""
    n, found = len(row.top1), row.against_base
    reached, seconds = f"{row.reached} of {n}", row.median_seconds
    if result.target is None:
        reached, time = "no target", ""
    else:
        time = "not reached" if seconds is None else f"{seconds:.1f}"
    against = ["", "", "base"]
    if found:
        interval = "no interval" if found.low is None else f"{points(found.low)} to {points(found.high)}"
        mean = points(found.mean_difference)
        wide = mean if found.low95 is None else f"{mean} [{points(found.low95)} to {points(found.high95)}]"
        against = [wide, interval, verdict_of(found) + ("" if result.certificate.fair else " (unfair)")]
    return [row.role, str(n), with_span(*row.mean, ".2f"), f"{row.best:.2f}", reached, time, *against]
