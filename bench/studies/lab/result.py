"""The museum of mistakes: each known mistake beside the right version, paired by seed.

In: a suite of kind "lab" with two programs, "right: <mistake>" and "wrong: <mistake>". Out: a LabResult. Each lab has
one figure that decides, and the direction in which the mistake moves it, both said before the runs. The others stand
beside it as they come out. A run that hangs is a result here: its failed record is one of the lab's.
"""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bench import formulas
from bench.analysis import comparison, stats
from bench.analysis.certificate import Certificate, certify
from bench.analysis.suite import Suite, role_of
from bench.analysis.words import with_span
from bench.errors import UserError
from bench.mistakes import MISTAKES, Mistake
from bench.record.observed import Finding, find, observed_of, part_of

SIDES = ("right", "wrong")
BY_MISTAKE = "it is what the mistake changes"


@dataclass(frozen=True)
class Figure:
    """One number of a run. name: with its unit. read: record -> number, None where it is not known. moves: "up" or
    "down", what the mistake is expected to do to it; "" where nothing was said beforehand. form: as for format().
    ratio: two of them are compared by their ratio, and not by their difference."""

    name: str
    read: Callable[[dict], float | None]
    moves: str = ""
    form: str = ".2f"
    ratio: bool = False


# --- what is read from a record -----------------------------------------------------------------------------------


def rows_of(record: dict) -> list[dict]:
    """The epochs; none of a run that failed or trained none."""
    return record.get("accuracy", {}).get("epochs", [])


def observed(*path: str) -> Callable[[dict], float | None]:
    """A reader of what was observed, one key below the other."""
    return lambda record: part_of(observed_of(record), path)


def percent_of(*path: str) -> Callable[[dict], float | None]:
    """A reader of a share, 0..1, that was observed: in per cent."""

    def read(record: dict) -> float | None:
        share = observed(*path)(record)
        return None if share is None else 100 * share

    return read


def top1(record: dict) -> float | None:
    """Per cent, after the last epoch, as rank 0 reports it."""
    value = record.get("accuracy", {}).get("top1")
    return None if value is None else 100 * value


def of_epoch(key: str, number: int) -> Callable[[dict], float | None]:
    """A reader of one number of an epoch; number: 0 the first, -1 the last."""
    return lambda record: rows_of(record)[number].get(key) if rows_of(record) else None


def throughput(record: dict) -> float | None:
    """Images a second, over all devices."""
    return record["summary"].get("throughput_images_per_s")


def sets_of_weights(record: dict) -> float | None:
    """How many different models the ranks hold at the end."""
    return len({part["final_weights_sha256"] for part in record["samples"]}) or None


def ranks_top1(record: dict) -> list[float]:
    """Per cent, after the last epoch, as each rank reports it."""
    return [100 * epochs[-1] for epochs in observed("reported", "top1")(record) or [] if epochs]


def spread(record: dict) -> float | None:
    """Percentage points between the highest and the lowest top-1 that a rank reports."""
    values = ranks_top1(record)
    return max(values) - min(values) if values else None


def writers(record: dict) -> float | None:
    """The most ranks that wrote one file."""
    files = observed("writers")(record)
    return None if files is None else max(map(len, files.values()), default=0)


def streams(record: dict) -> float | None:
    """Different streams of random crops among the ranks."""
    found = observed("augmentation", "streams")(record)
    return None if found is None else len(set(found))


def loaded(record: dict) -> float | None:
    """Per cent of the model's tensors that a checkpoint filled, of rank 0's first load."""
    loads = observed("loads")(record)
    if not loads or not loads[0]:
        return None
    load = loads[0][0]
    placed = load["keys"] - load["unexpected"]
    return 100 * placed / max(1, placed + load["missing"])


def waits(record: dict) -> float | None:
    """Lines of the script that make the host wait for the device, counted a step."""
    found = observed("host_syncs")(record)
    return None if found is None else sum(line["per_step"] for line in found)


def hung(record: dict) -> float:
    """1 for a run that stood still until it was ended."""
    return float(record["status"] == "failed" and record["failure"]["kind"] == "hung")


# --- the labs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lab:
    """question: what the lab asks. signature: what a person would see. figures: the first decides. changes: facts of
    the certificate that the mistake itself changes. on_gpu: the figures there, where they are others."""

    question: str
    signature: str
    figures: tuple[Figure, ...]
    changes: tuple[str, ...] = ()
    on_gpu: tuple[Figure, ...] = ()

    def figures_on(self, device: str) -> tuple[Figure, ...]:
        """The figures on a device, "cpu" or "cuda"; the first decides."""
        return self.on_gpu if self.on_gpu and device == "cuda" else self.figures


TOP1 = Figure("top-1 %, last epoch", top1)
LOSS = Figure("training loss, last epoch", of_epoch("train_loss", -1), form=".3f")
SPEED = Figure("images/s", throughput, form=".1f", ratio=True)
WAITS = Figure("waits of the host for the device a step", waits, "up")


def moving(figure: Figure, moves: str) -> Figure:
    """The same figure with an expectation."""
    return dataclasses.replace(figure, moves=moves)


LABS = {
    "unsynced-init": Lab(
        "What do ranks train that start from different weights?",
        "Nothing complains. The loss falls more slowly, and the accuracy of the saved model is below what the loss "
        "promises; each rank's weights have another hash.",
        (Figure("different sets of weights at the end", sets_of_weights, "up", ".0f"), TOP1, LOSS),
        ("initial weights",),
    ),
    "whole-data": Lab(
        "What is an epoch when every rank reads everything?",
        "An epoch takes N times as long as it should, the loader is N times as long, and the accuracy of an epoch is "
        "flattering: N epochs of work went into it.",
        (Figure("images trained on in the first epoch", of_epoch("images_seen", 0), "up", ".0f"),
         Figure("% of a step's images that are in it more than once", percent_of("data", "shared_in_a_step")), TOP1),
        ("images of the first steps", "warm-up and timed steps"),
    ),
    "no-reshuffle": Lab(
        "What does a sampler without set_epoch draw in the second epoch?",
        "The training loss has the same ups and downs in every epoch: batch k is the same images each time.",
        (Figure("% of the second epoch's neighbours that were neighbours in the first",
                percent_of("data", "same_neighbours"), "up", ".1f"),
         TOP1, LOSS),
        ("images of the first steps",),
    ),
    "rank-metrics": Lab(
        "What is printed when the counts are not summed over ranks?",
        "Each rank's log has another accuracy, and its steps are coarser: a share of the images was counted.",
        (Figure("points between the highest and the lowest rank's top-1", spread, "up"),
         Figure("validation images behind the reported figure", of_epoch("images", -1), "down", ".0f")),
    ),
    "many-writers": Lab(
        "Whose is a checkpoint that every rank writes?",
        "Mostly nothing is seen. Now and then a job cannot be resumed, or goes on a little worse than it was.",
        (Figure("ranks that write the same file", writers, "up", ".0f"),),
    ),
    "rank0-collective": Lab(
        "What happens when only rank 0 enters a collective?",
        "The job stands still after the epoch: no error, no output, processors or GPUs at full load or at none, until "
        "somebody ends it.",
        (Figure("runs that stand still until they are ended", hung, "up", ".0f"),),
    ),
    "lr-not-scaled": Lab(
        "What does a larger global batch learn at the learning rate of a small one?",
        "Throughput rises with the devices, and the loss after the same epochs is higher than on one.",
        (moving(LOSS, "up"), TOP1),
        ("learning rate",),
    ),
    "same-augmentation": Lab(
        "How many different random crops are in a global batch?",
        "Nothing in a single run. Side by side the ranks' images are moved alike, and N ranks augment like one.",
        (Figure("different streams of random crops", streams, "down", ".0f"), TOP1, LOSS),
    ),
    "gradient-sum": Lab(
        "How long is a step when gradients are summed over ranks?",
        "What trained well on one device diverges or learns worse on several, and is mended by an LR divided by N.",
        (Figure("exchanged gradient over the mean of the ranks' own", observed("gradient", "over_mean"), "up", ".3f"),
         LOSS, TOP1),
        ("gradient",),
    ),
    "strict-false": Lab(
        "What is left of pretrained weights whose names have a prefix?",
        "The first epoch begins with the loss of random weights, although a checkpoint was named and no error came.",
        (Figure("training loss, first epoch", of_epoch("train_loss", 0), "up", ".3f"),
         Figure("% of the model's tensors that the file filled", loaded, form=".1f"), TOP1),
        ("initial weights",),
    ),
    "local-norm": Lab(
        "What do batch norms learn from a few images a device?",
        "The loss is noisy and higher than on one device with the same global batch.",
        (moving(LOSS, "up"), TOP1, SPEED),
        ("norm", "images a norm layer sees", "buffers"),
    ),
    "host-sync": Lab(
        "How often does the host wait for the device?",
        "On a GPU: steps take longer, and its load has gaps. On a CPU the device is the host, and nothing is lost.",
        (WAITS, SPEED), ("extra work a step",), (moving(SPEED, "down"), WAITS),
    ),
    "lost-remainder": Lab(
        "How many images does nobody see?",
        "An epoch is a few steps shorter than images over global batch.",
        (Figure("images never seen in any epoch", observed("data", "never_seen"), "up", ".0f"), TOP1),
        ("images of the first steps", "warm-up and timed steps"),
    ),
}  # fmt: skip


# --- the comparison -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A figure on both sides, one value a seed. change: the mean difference, wrong less right, or the geometric mean of
    the ratios, wrong over right; low, high: its 95 % interval by Student's t, None with one seed."""

    figure: Figure
    right: list[float]
    wrong: list[float]
    change: float
    low: float | None
    high: float | None

    @property
    def direction(self) -> str:
        """Where the mistake moved the figure: "up", "down", or "" where the interval holds no change."""
        low, high = (self.change, self.change) if self.low is None else (self.low, self.high)
        nothing = 1 if self.figure.ratio else 0
        return "up" if low > nothing else "down" if high < nothing else ""

    @property
    def seen(self) -> str:
        """The direction in words. What was not said beforehand is not shown by one seed."""
        if self.low is None and not self.figure.moves:
            return "one seed shows nothing"
        return self.direction or "no effect shown here"

    @property
    def as_expected(self) -> bool:
        """Whether the direction that was said beforehand was seen."""
        return self.direction == self.figure.moves

    @property
    def sides(self) -> list[str]:
        """The mean over the seeds, right and wrong."""
        return [format(statistics.fmean(side), self.figure.form) for side in (self.right, self.wrong)]

    @property
    def change_words(self) -> str:
        """The change with its interval."""
        if self.figure.ratio:
            return "× " + with_span(self.change, self.low, self.high)
        return with_span(self.change, self.low, self.high, "+" + self.figure.form).replace("-", "−")


@dataclass(frozen=True)
class LabResult:
    """A lab's suite compared. records: side -> one a seed. rows: the figure that decides first; without those that were
    not observed. findings: side -> what the detectors found in any of its runs, once each."""

    suite: Suite
    name: str
    lab: Lab
    mistake: Mistake
    certificate: Certificate
    records: dict[str, list[dict]]
    rows: list[Row]
    findings: dict[str, list[Finding]]

    @property
    def n(self) -> int:
        """Seeds."""
        return len(self.records["right"])

    @property
    def found(self) -> bool:
        """Whether the detectors name the mistake in the wrong version."""
        return any(finding.name == self.name for finding in self.findings["wrong"])

    def answer(self) -> list[str]:
        """In words: what decides, what else was seen, what the detectors say."""
        lines = [sentence(row, self.n) for row in self.rows] or ["nothing of it was observed: run it with WATCH=1"]
        held = ", ".join(f"{what} × {times}" for what, times in files_of(self.records["wrong"]).items())
        lines += [f"whose statistics the file had after each write of the wrong version: {held}"] if held else []
        return lines + places(self.records["wrong"]) + [self.detected()]

    def detected(self) -> str:
        """What `bench check` says of both sides."""
        named = [f"{f.name} ({f.evidence})" for f in self.findings["wrong"]]
        wrong = f"found in the wrong version: {'; '.join(named)}" if named else "nothing found in the wrong version"
        right = ", ".join(finding.name for finding in self.findings["right"]) or "nothing"
        return f"bench check: {wrong}; in the right version: {right}"


def sentence(row: Row, n: int) -> str:
    """A figure in words.

    >>> figure = Figure("images never seen", lambda record: None, "up", ".0f")
    >>> sentence(Row(figure, [0, 0], [29, 29], 29.0, 29.0, 29.0), 2)
    'images never seen: 0 → 29, +29 [+29 to +29] (n = 2 seeds): up, as expected'
    """
    figure, seeds = row.figure, f"n = {n} seeds" if n > 1 else "one seed: no interval"
    word = row.seen
    if figure.moves:
        word += ", as expected" if row.as_expected else f", NOT as expected ({figure.moves})"
    return f"{figure.name}: {' → '.join(row.sides)}, {row.change_words} ({seeds}): {word}"


def files_of(records: list[dict]) -> dict[str, int]:
    """What the files that several ranks wrote held, and how often, over all runs; empty where nobody looked."""
    counts = Counter()
    for part in (part for record in records for part in record["samples"]):
        counts.update(part.get("lab", {}).get("files", {}))
    return dict(sorted(counts.items()))


def places(records: list[dict]) -> list[str]:
    """Where the ranks of runs that hung stood, and how long that took to be found; empty where none did."""
    ended = [record["failure"] for record in records if record["status"] == "failed"]
    if not ended:
        return []
    seconds = [failure["after_s"] for failure in ended]
    took = f"{min(seconds):.1f} to {max(seconds):.1f}" if len(seconds) > 1 else f"{seconds[0]:.1f}"
    limit = records[0]["config"]["timeout"]
    return [ended[0]["message"], f"found, named and ended {took} s after the command, with TIMEOUT={limit:g}"]


def name_of(suite: Suite) -> str:
    """The mistake that a lab is about, by its right version's role; "" where there is none."""
    roles = [*suite.roles, *map(role_of, suite.failed)]
    return next((role.partition(": ")[2] for role in roles if role.partition(": ")[0] in SIDES), "")


def hangs_on_purpose(record: dict) -> bool:
    """Whether a failed record is a result of a lab, and no accident."""
    return record["config"]["mistake"] == "rank0-collective" and hung(record) == 1.0


def compare_lab(suite: Suite) -> LabResult:
    """Compare the two versions of a lab. Raises UserError when it has no whole round, is no lab, or when a run has not
    the figure that decides: a training went astray, or was not watched."""
    comparison.require_rounds(suite)
    comparison.require_one_workload(suite)
    name = name_of(suite)
    if name not in LABS:
        raise UserError(f"suite {suite.id} is of no known mistake: it has the programs {', '.join(suite.roles)}")
    records = {side: suite.roles.get(f"{side}: {name}", []) for side in SIDES}
    ended = {r["config"]["round"]: r for r in suite.failed if role_of(r) == f"wrong: {name}" and hangs_on_purpose(r)}
    if not records["wrong"] and ended:
        rounds = [number for number in suite.rounds if number in ended]
        records = {"right": [records["right"][suite.rounds.index(n)] for n in rounds],
                   "wrong": [ended[number] for number in rounds]}  # fmt: skip
    if not all(records.values()):
        raise UserError(f"suite {suite.id}: one of its two versions has no record that can be used: run it again")
    lab, seen = LABS[name], {side: findings_of(records[side]) for side in SIDES}
    decides, *others = [row_of(figure, records) for figure in lab.figures_on(suite.device)]
    if decides is None:
        raise UserError(f"suite {suite.id}: not every run has the figure that decides: {lab.figures[0].name}")
    rows = [decides, *filter(None, others)]
    return LabResult(suite, name, lab, MISTAKES[name], certificate_of(suite, lab), records, rows, seen)


def certificate_of(suite: Suite, lab: Lab) -> Certificate:
    """The certificate, in which what the mistake itself changes is no unfairness."""
    facts = [dataclasses.replace(fact, status="inherent", why=BY_MISTAKE)
             if fact.name in lab.changes and fact.status == "differs" else fact
             for fact in certify(suite.roles, suite.kind).facts]  # fmt: skip
    return Certificate(facts)


def row_of(figure: Figure, records: dict[str, list[dict]]) -> Row | None:
    """A figure over the seeds; None where any run does not have it."""
    values = {side: [figure.read(record) for record in records[side]] for side in SIDES}
    if any(value is None for side in SIDES for value in values[side]):
        return None
    right, wrong = ([float(value) for value in values[side]] for side in SIDES)
    if figure.ratio:
        found = stats.compare_rounds(right, wrong)
        return Row(figure, right, wrong, found.ratio, found.low, found.high)
    differences = [b - a for a, b in zip(right, wrong, strict=True)]
    if len(differences) == 1:
        return Row(figure, right, wrong, differences[0], None, None)
    return Row(figure, right, wrong, *formulas.mean_interval(differences, stats.t_quantile(len(right) - 1, 0.95)))


def findings_of(records: list[dict]) -> list[Finding]:
    """The detectors' findings in these records, each mistake once."""
    by_name = {finding.name: finding for record in reversed(records) for finding in find(observed_of(record))}
    return sorted(by_name.values(), key=lambda finding: [*MISTAKES, finding.name].index(finding.name))


HEADS = [("figure", False), ("right", True), ("wrong", True), ("wrong − right, or × [95 %]", True), ("n", True),
         ("expected", False), ("seen", False)]  # fmt: skip


def cells(result: LabResult, row: Row) -> list[str]:
    """A figure's row of the table with HEADS: (name, whether its cells are numbers)."""
    expected = row.figure.moves or "nothing said"
    return [row.figure.name, *row.sides, row.change_words, str(result.n), expected, row.seen]


def about(name: str) -> list[tuple[str, str]]:
    """What is said of a mistake beside its figures: (heading, text)."""
    mistake = MISTAKES[name]
    return [("What a person would see", LABS[name].signature), ("Consequence", mistake.consequence),
            ("Remedy", mistake.remedy)]  # fmt: skip
