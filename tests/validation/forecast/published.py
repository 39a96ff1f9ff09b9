"""The forecast compared with published tables of throughput: each from its own row of one device.

A table (results/published) has rows of one device and rows of many. A row of one device says how long a step is; how
it divides follows from the model alone, whose file (results/published/models) has each layer's multiplications:

- forward takes a third of the step, backward two: it multiplies once for the layer's input, once for its weights;
- in each a layer takes as long as its share of the multiplications; norms and the optimizer take nothing;
- a gradient is ready when its layer's share of backward is over, from the last layer to the first.

Every other row is then forecast. Nothing is fitted: rates are those that the table names; latencies, and what is inside
a node, are said in its file as assumed. The step has no spread, so no time is lost to a slowest rank.
"""

import csv
import dataclasses
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench.analysis import style
from bench.analysis.tables import Grid
from bench.config.fields import base_type
from bench.config.options import FIELDS, RunConfig
from bench.files import PROJECT
from bench.predict.step import engines
from bench.predict.step import link as links
from bench.predict.step.fit import RANGES, Fit, Point
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile, Tensor

FOLDER = PROJECT / "results" / "published"
PICTURE, FITTED = "published", "published-fitted"
BACKWARD = 2  # times the multiplications of forward
PARTS = ("title", "source", "seen", "stated", "assumed", "left out")  # of a table's head


@dataclass(frozen=True)
class Row:
    """One throughput. link, inside: as LINK and LINK_INSIDE; "" where nothing is sent there. heads: "tcp" where the
    heads of TCP and Ethernet are sent, too, "none" where not."""

    program: str
    model: str
    mode: str
    options: str
    precision: str
    batch: int
    device: str
    devices: int
    per_node: int
    network: str
    link: str
    heads: str
    inside: str
    images_per_s: float

    @property
    def nodes(self) -> int:
        """That it needs."""
        return math.ceil(self.devices / self.per_node)

    @property
    def config(self) -> RunConfig:
        """The engine with its options."""
        pairs = [pair.split("=") for pair in self.options.split()]
        values = {name: base_type(FIELDS[name])(value) for name, value in pairs}
        return RunConfig(mode=self.mode, num_devices=2, **values)

    @property
    def carried_by(self) -> Link:
        """What carries its messages."""
        return self.between if self.nodes > 1 else links.parse_link(self.inside, "nccl", inside=True)

    @property
    def between(self) -> Link:
        """The link of its nodes."""
        between = links.parse_link(self.link, "nccl", inside=self.heads != "tcp")
        if self.per_node == 1:
            return between
        return between.with_inside(self.per_node, links.parse_link(self.inside, "nccl", inside=True))

    @property
    def step_s(self) -> float:
        return self.devices * self.batch / self.images_per_s


@dataclass(frozen=True)
class Table:
    """A published table. head: what its file says of it, by PARTS."""

    name: str
    head: dict[str, str]
    rows: tuple[Row, ...]

    def alone(self, row: Row) -> Row:
        """The row of one device that a row belongs to; without one, that of the fewest. Raises ValueError where there
        are several of it."""
        found = self.like(row)
        (alone,) = [each for each in found if each.devices == found[0].devices]
        return alone

    def like(self, row: Row) -> list[Row]:
        """The rows of one node that differ from a row in the number of devices only, fewest first; without them, those
        of the fewest nodes. On one device there is no mode."""
        same, modes = ("program", "model", "precision", "batch", "device"), ("mode", "options")
        found = []
        for each in self.rows:
            names = same if each.devices == 1 else same + modes
            if all(getattr(each, name) == getattr(row, name) for name in names):
                found.append(each)
        fewest = min(each.nodes for each in found)
        return sorted((each for each in found if each.nodes == fewest), key=lambda each: each.devices)


@dataclass(frozen=True)
class Judged:
    """A row of many devices, and what is said of it. off: predicted over published, less 1; linear_off: the same of as
    many devices that need nothing of each other."""

    table: Table
    row: Row
    predicted: float
    off: float
    linear_off: float

    @property
    def efficiency(self) -> float:
        """As published: over as many devices that need nothing of each other."""
        return 1 / (1 + self.linear_off)


@dataclass(frozen=True)
class Learned:
    """A row of several nodes, forecast from the rows of one node. off: predicted over published, less 1; low, high: the
    ends of the interval in the same way; linear_off: of the largest given row, scaled linearly."""

    table: Table
    row: Row
    given: tuple[int, ...]
    off: float
    low: float
    high: float
    linear_off: float

    @property
    def covered(self) -> bool:
        return self.low <= 0 <= self.high

    @property
    def better(self) -> bool:
        return abs(self.off) < abs(self.linear_off)


def head_and_rows(path: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    """A file's lines ``# NAME: WORDS``, and its rows."""
    lines = path.read_text().splitlines()
    head = dict(line.removeprefix("# ").partition(": ")[::2] for line in lines if line.startswith("# "))
    return head, list(csv.DictReader(line for line in lines if not line.startswith("# ")))


def read(folder: Path = FOLDER) -> list[Table]:
    """All tables, by name."""
    tables = []
    for path in sorted(folder.glob("*.csv")):
        head, rows = head_and_rows(path)
        types = {"batch": int, "devices": int, "per_node": int, "images_per_s": float}
        made = [Row(**{name: types.get(name, str)(value) for name, value in row.items()}) for row in rows]
        tables.append(Table(path.stem, head, tuple(made)))
    return tables


def profile_of(row: Row, folder: Path = FOLDER) -> Profile:
    """The step of a row, mostly of one device, divided by the model's multiplications."""
    head, layers = head_and_rows(folder / "models" / f"{row.model}.csv")
    step_s, times = row.step_s, [int(layer["multiplications"]) for layer in layers]
    forward_s, all_times = step_s / (1 + BACKWARD), sum(times)
    backward_s, before, tensors = step_s - forward_s, 0, []
    for layer, own in zip(layers, times, strict=True):
        shape, share = tuple(map(int, layer["shape"].split("x"))), before / all_times
        tensors.append(Tensor(layer["parameter"], shape, "", forward_s * share, backward_s * (1 - share)))
        before += own
    pairs = [part.split() for part in head["buffers"].split(", ") if part]
    buffers = tuple((kind, int(size)) for kind, size in pairs)
    return Profile(row.program, row.model, row.device, "cuda", "images", row.batch, forward_s, backward_s, 0.0, 0.0,
                   (1.0,), tuple(tensors), buffers)  # fmt: skip


def judged(tables: list[Table], folder: Path = FOLDER) -> list[Judged]:
    """Every row of more devices than the fewest, of every table."""
    found = []
    for table in tables:
        for row in table.rows:
            alone = table.alone(row)
            if row.devices == alone.devices:
                continue
            step = engines.ENGINES[row.mode](profile_of(alone, folder), row.config, row.devices, row.carried_by)
            predicted, linear = row.devices * row.batch / step.seconds, row.devices * row.batch / alone.step_s
            found.append(Judged(table, row, predicted, predicted / row.images_per_s - 1, linear / row.images_per_s - 1))
    return found


def learned(
    tables: list[Table], folder: Path = FOLDER, most: int | None = None, ranges: dict | None = None
) -> list[Learned]:
    """Every row of several nodes, from its rows of one node. most: only rows with at most this many devices are given,
    and all others are forecast. ranges: other than ``RANGES``."""
    found, fits = [], {}
    for table in tables:
        for row in table.rows:
            node = table.like(row)
            given = [each for each in node if each.devices <= (most or node[-1].devices)] or node[:1]
            if row in (given if most else node):
                continue
            key = table.name, dataclasses.replace(row, devices=0, images_per_s=0.0)
            if key not in fits:
                link = row.between if row.link else row.carried_by.with_inside(row.per_node, row.carried_by)
                steps = {each.devices: [] for each in given}
                for each in given:
                    steps[each.devices].append(each.step_s)
                points = [Point(count, tuple(each)) for count, each in steps.items()]
                fits[key] = Fit(profile_of(given[0], folder), row.config, link, points, RANGES | (ranges or {}))
            ends = fits[key].step(row.config, row.devices)
            high, middle, low = (row.step_s / seconds - 1 for seconds in ends)
            linear = row.step_s / fits[key].points[-1].step_s - 1
            counts = tuple(point.ranks for point in fits[key].points)
            found.append(Learned(table, row, counts, middle, low, high, linear))
    return found


# --- in tables and in words ---------------------------------------------------------------------------------------


def grid(found: list[Judged]) -> Grid:
    """A row for each published one."""
    head = [("table", False), ("program", False), ("model", False), ("mode", False), ("GPU", False),
            ("nodes × GPUs", True), ("between nodes", False), ("published,\nimages/s", True),
            ("published,\npredicted", True), ("off by", True), ("linear\nscaling:\noff by", True)]  # fmt: skip
    rows = [
        [each.table.name, each.row.program, each.row.model, each.row.mode, each.row.device,
         f"{each.row.nodes} × {each.row.devices // each.row.nodes}", each.row.network,
         style.number(each.row.images_per_s), style.number(each.predicted), signed(each.off), signed(each.linear_off)]
        for each in found
    ]  # fmt: skip
    return Grid(head, rows, "published throughput and what the forecast says of it, from each table's one device")


def summary(found: list[Judged]) -> Grid:
    """How far off, without the sign: all rows, those of one node and of several, and beside them linear scaling."""
    head = [("rows", False), ("n", True), *((f"{what}:\n{name}", True) for what in ("forecast", "linear scaling")
                                            for name in ("median", "worst"))]  # fmt: skip
    kinds = {"all": found, "one node": [each for each in found if each.row.nodes == 1],
             "several nodes": [each for each in found if each.row.nodes > 1]}  # fmt: skip
    return Grid(head, [[name, str(len(rows)), *sizes([each.off for each in rows]),
                        *sizes([each.linear_off for each in rows])] for name, rows in kinds.items() if rows],
                "predicted against published, how far off")  # fmt: skip


def answer(found: list[Judged]) -> list[str]:
    """How many rows of how many tables, how far off, and to which side."""
    fast, names = sum(each.off > 0 for each in found), {each.table.name for each in found}
    median, worst = sizes([each.off for each in found])
    linear, _ = sizes([each.linear_off for each in found])
    counts = f"{numbered(len(found), 'published row')} of {numbered(len(names), 'table')}"
    return [
        f"{counts}: off by {median} at the median and {worst} at worst; predicted faster than published: {fast}",
        f"linear scaling would be off by {linear} at the median",
    ]


def learned_grid(found: list[Learned]) -> Grid:
    """A row for each published one of several nodes."""
    head = [("table", False), ("program", False), ("model", False), ("nodes × GPUs", True), ("between nodes", False),
            ("given", True), ("published,\nimages/s", True), ("predicted [95 %]", True), ("off by", True),
            ("linear\nscaling:\noff by", True)]  # fmt: skip
    rows = []
    for each in found:
        row, rate = each.row, each.row.images_per_s
        predicted, low, high = (style.number(rate * (1 + off)) for off in (each.off, each.low, each.high))
        rows.append([each.table.name, row.program, row.model, f"{row.nodes} × {row.devices // row.nodes}", row.network,
                     ", ".join(map(str, each.given)), style.number(rate), f"{predicted} [{low}–{high}]",
                     signed(each.off) + ("" if each.covered else " (outside)"), signed(each.linear_off)])  # fmt: skip
    return Grid(head, rows, "several nodes, forecast from the rows of one node")


FIGURES = ("median", "worst", "linear scaling: median", "better than linear scaling", "in the interval",
           "half of the interval: median")  # fmt: skip


def figures_of(found: list[Learned]) -> list[float]:
    """FIGURES, in per cent."""
    offs, linear = ([abs(getattr(each, name)) for each in found] for name in ("off", "linear_off"))
    shares = [statistics.fmean(getattr(each, name) for each in found) for name in ("better", "covered")]
    width = statistics.median((each.high - each.low) / 2 for each in found)
    return [100 * value for value in (statistics.median(offs), max(offs), statistics.median(linear), *shares, width)]


def learned_summary(found: dict[str, list[Learned]]) -> Grid:
    """FIGURES of each set of rows, in per cent. found: its name -> the rows."""
    head = [("given", False), ("rows", True), *((name, True) for name in FIGURES)]
    rows = [[name, str(len(some)), *(f"{value:.1f} %" for value in figures_of(some))] for name, some in found.items()]
    return Grid(head, rows, "fitted to rows of few devices: how far off the others are, and how wide the interval is")


def sensitivity(tables: list[Table], folder: Path = FOLDER) -> Grid:
    """The same with other ranges; in brackets, the least and the most of each figure without one of the tables."""
    changes = {"as they are": {}}
    for name, (low, high) in RANGES.items():
        changes |= {f"{name}, up to {100 * factor * high:g} %": {name: (low, factor * high)} for factor in (0.5, 2)}
    changes |= {f"between, from {100 * low:g} %": {"between": (low, 1.0)} for low in (0.25, 0.5, 0.7)}
    rows = []
    for words, ranges in changes.items():
        found = learned(tables, folder, ranges=ranges)
        parts = [[each for each in found if each.table is not table] for table in tables]
        without = [figures_of(part) for part in parts if part] or [figures_of(found)]
        columns = zip(figures_of(found), *without, strict=True)
        rows.append([words, *(f"{value:.1f} % ({min(others):.1f}–{max(others):.1f})" for value, *others in columns)])
    return Grid([("range", False), *((name, True) for name in FIGURES)], rows,
                "each range halved and doubled; in brackets, with one table left out")  # fmt: skip


def numbered(count: int, noun: str) -> str:
    """
    >>> numbered(1, "row"), numbered(2, "row")
    ('1 row', '2 rows')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def sizes(offs: list[float]) -> list[str]:
    """Median and worst without their sign.

    >>> sizes([-0.3, 0.1, 0.2])
    ['20.0 %', '30.0 %']
    """
    without_sign = [abs(off) for off in offs]
    return [f"{100 * value:.1f} %" for value in (statistics.median(without_sign), max(without_sign))]


def signed(share: float) -> str:
    """
    >>> signed(-0.0312)
    '-3.1 %'
    """
    return f"{100 * share:+.1f} %"
