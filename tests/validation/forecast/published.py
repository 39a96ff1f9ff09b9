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
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile, Tensor

FOLDER = PROJECT / "results" / "published"
PICTURE = "published"
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
        inside = links.parse_link(self.inside, "nccl", inside=True)
        if self.nodes == 1:
            return inside
        between = links.parse_link(self.link, "nccl", inside=self.heads != "tcp")
        return between.with_inside(self.per_node, inside)


@dataclass(frozen=True)
class Table:
    """A published table. head: what its file says of it, by PARTS."""

    name: str
    head: dict[str, str]
    rows: tuple[Row, ...]

    def alone(self, row: Row) -> Row:
        """The row of one device that a row belongs to. Raises ValueError where there is none, or more than one."""
        same = ("program", "model", "precision", "batch", "device")
        (found,) = [each for each in self.rows if each.devices == 1
                    and all(getattr(each, name) == getattr(row, name) for name in same)]  # fmt: skip
        return found


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
    """The step of a row of one device, divided by the model's multiplications."""
    head, layers = head_and_rows(folder / "models" / f"{row.model}.csv")
    step_s, times = row.batch / row.images_per_s, [int(layer["multiplications"]) for layer in layers]
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
    """Every row of many devices of every table. Raises ValueError for one without its row of one device."""
    found = []
    for table in tables:
        for row in table.rows:
            if row.devices == 1:
                continue
            alone = table.alone(row)
            step = engines.ENGINES[row.mode](profile_of(alone, folder), row.config, row.devices, row.carried_by)
            predicted, linear = row.devices * row.batch / step.seconds, row.devices * alone.images_per_s
            found.append(Judged(table, row, predicted, predicted / row.images_per_s - 1, linear / row.images_per_s - 1))
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
