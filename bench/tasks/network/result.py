"""What the times of messages say: bandwidths, and alpha and beta with their intervals; in tables and in words."""

from dataclasses import dataclass
from functools import cached_property

from bench import formulas
from bench.analysis.tables import Grid
from bench.config.fields import variable_of
from bench.config.options import FIELDS
from bench.launch.cluster.plan import repeated
from bench.record.describe import machine_line, stand_in, where
from bench.record.disturbance import disturbances_of, in_words
from bench.tasks.network import plan
from bench.tasks.network.record import NetworkRecord, Operation, Times

CONFIDENCE = 0.95
MIN_SIZES = 3
BENT = 0.25  # a line that is further off than this, relative to the time, is no description of the times
WORDS = {"ping_pong": "point to point", "all_reduce": "all-reduce"}
# Options that bear on messages, and are said where they are given.
SHOWN = ("device", "share_gpu", "hosts", "iface", "launcher", "dist_url", "threads", "timeout")  # fmt: skip

Interval = tuple[float, float | None, float | None]  # estimate, low, high; None with too few rounds


@dataclass(frozen=True, eq=False)
class Series:
    """One operation of one backend over the sizes of its messages."""

    record: NetworkRecord
    operation: Operation

    @property
    def title(self) -> str:
        """Backend and operation."""
        return f"{self.record.name}, {WORDS[self.operation.name]}"

    @property
    def reduces(self) -> bool:
        """Whether it is an all-reduce."""
        return self.operation.name == "all_reduce"

    @property
    def ranks(self) -> int:
        """How many take part."""
        return len(self.operation.ranks)

    @property
    def rounds(self) -> int:
        """How often each size was timed."""
        return self.record.plan.rounds

    def seconds(self, times: Times) -> Interval:
        """The median over rounds with its exact interval."""
        return formulas.median_interval(times.seconds, CONFIDENCE)

    def bandwidths(self, times: Times) -> tuple[Interval, Interval]:
        """Algorithm and bus bandwidth in bytes per second, at the median time and at the ends of its interval."""
        middle, low, high = self.seconds(times)
        ends = [None if s is None else formulas.algorithm_bandwidth(times.nbytes, s) for s in (middle, high, low)]
        bus = [None if s is None else self.bus_bandwidth(times.nbytes, s) for s in (middle, high, low)]
        return tuple(ends), tuple(bus)

    def bus_bandwidth(self, nbytes: int, seconds: float) -> float:
        """Bytes per second over a link; of a message from one rank to another that is the algorithm's."""
        if self.reduces:
            return formulas.bus_bandwidth(nbytes, seconds, self.ranks)
        return formulas.algorithm_bandwidth(nbytes, seconds)

    @cached_property
    def fit(self) -> "Fit | None":
        """alpha and beta; None with fewer sizes than MIN_SIZES, through which any line fits.

        Each round, which has every size once, gives a line; the median of the rounds' values is the estimate, and its
        exact interval theirs. Errors are relative to the median times, the same for all rounds.
        """
        sizes = [times.nbytes for times in self.operation.times]
        if len(sizes) < MIN_SIZES:
            return None
        middles = [self.seconds(times)[0] for times in self.operation.times]
        rounds = zip(*(times.seconds for times in self.operation.times), strict=True)
        lines = [self.alpha_beta(*formulas.fit_line(sizes, list(times), middles)) for times in rounds]
        alpha, beta = (formulas.median_interval([line[i] for line in lines], CONFIDENCE) for i in (0, 1))
        off = [self.modelled(size, alpha[0], beta[0]) / middle - 1 for size, middle in zip(sizes, middles, strict=True)]
        worst = max(range(len(off)), key=lambda i: abs(off[i]))
        return Fit(alpha, beta, off[worst], sizes[worst])

    def alpha_beta(self, constant_s: float, per_byte_s: float) -> tuple[float, float]:
        """alpha and beta of a line: of an all-reduce they are those of the links of a ring."""
        if self.reduces:
            return formulas.ring_alpha_beta(constant_s, per_byte_s, self.ranks)
        return constant_s, per_byte_s

    def modelled(self, nbytes: float, alpha_s: float, beta_s: float) -> float:
        """Seconds by the model of a link."""
        if self.reduces:
            return formulas.ring_all_reduce_s(nbytes, self.ranks, alpha_s, beta_s)
        return alpha_s + beta_s * nbytes


@dataclass(frozen=True)
class Fit:
    """alpha in seconds and beta in seconds per byte. off: by how much of the time the line is off where it is most, at
    ``off_at`` bytes."""

    alpha: Interval
    beta: Interval
    off: float
    off_at: int

    @property
    def bent(self) -> bool:
        """Whether the times are no straight line."""
        return abs(self.off) > BENT


def series_of(records: list[NetworkRecord]) -> list[Series]:
    """What one command measured: every operation of every backend."""
    return [Series(record, operation) for record in records for operation in record.operations]


# --- in words -----------------------------------------------------------------------------------------------------


def answer(records: list[NetworkRecord]) -> list[str]:
    """Latency, bandwidth, alpha and beta of each series, a sentence each; what was left out."""
    lines = []
    for series in series_of(records):
        lines.append(bandwidth_line(series) if series.reduces else latency_line(series))
        lines += [fit_line(series)] if series.fit else []
    for series in series_of(records):
        if left := series.operation.left_out:
            sizes = ", ".join(plan.in_bytes(nbytes) for nbytes, _ in left)
            lines.append(f"{series.title}: no time for {sizes} (one of the first would take {seconds(left[0][1])}): "
                         "give a larger MAX_MINUTES")  # fmt: skip
    return lines


def latency_line(series: Series) -> str:
    """Half a round trip of the smallest message, and the bandwidth of the largest."""
    first, last = series.operation.times[0], series.operation.times[-1]
    a, b = series.operation.ranks
    return (
        f"{series.title}, rank {a} to rank {b}: latency {with_span(series.seconds(first), 1e6)} µs, half a round trip "
        f"of {plan.in_bytes(first.nbytes)}; {with_span(series.bandwidths(last)[0], 1e-9)} GB/s with "
        f"{plan.in_bytes(last.nbytes)}"
    )


def bandwidth_line(series: Series) -> str:
    """The time of the smallest and the bandwidth of the largest all-reduce."""
    first, last = series.operation.times[0], series.operation.times[-1]
    return (
        f"{series.title} of {series.ranks} ranks: {with_span(series.seconds(first), 1e6)} µs for "
        f"{plan.in_bytes(first.nbytes)}; bus bandwidth {with_span(series.bandwidths(last)[1], 1e-9)} GB/s with "
        f"{plan.in_bytes(last.nbytes)}"
    )


def fit_line(series: Series) -> str:
    """alpha and beta in seconds and seconds per byte, and how well they describe the times."""
    fit = series.fit
    alpha, beta = (with_span(value, 1.0) for value in (fit.alpha, fit.beta))
    off = f"{100 * abs(fit.off):.0f} % {'below' if fit.off < 0 else 'above'} the time at {plan.in_bytes(fit.off_at)}"
    line = f"{series.title}: alpha = {alpha} s, beta = {beta} s per byte; at worst the line is {off}"
    return line + (": the times are no straight line" if fit.bent else "")


def with_span(value: Interval, scale: float) -> str:
    """A value with its interval, scaled; three digits of each."""
    middle, low, high = (None if x is None else three(x * scale) for x in value)
    return middle if low is None else f"{middle} [{low} to {high}]"


def three(value: float) -> str:
    """Three digits, as a power of ten only where it is far below 1.

    >>> three(1234.5), three(0.01234), three(1.234e-9)
    ('1234', '0.0123', '1.23e-09')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A time in the unit in which it is short.

    >>> seconds(12.5), seconds(0.0123), seconds(4.2e-5)
    ('12.5 s', '12.3 ms', '42 µs')
    """
    for unit, word in ((1.0, "s"), (1e-3, "ms")):
        if value >= unit:
            return f"{value / unit:.3g} {word}"
    return f"{value * 1e6:.3g} µs"


# --- in tables ----------------------------------------------------------------------------------------------------


def sizes_grid(series: Series) -> Grid:
    """A row for each size."""
    head = [("message", True), ("in a row", True), ("n", True), ("time, ms [95 %]", True),
            ("algorithm bandwidth,\nGB/s [95 %]", True), ("bus bandwidth,\nGB/s [95 %]", True)]  # fmt: skip
    rows = []
    for times in series.operation.times:
        algorithm, bus = series.bandwidths(times)
        rows.append([
            plan.in_bytes(times.nbytes), str(times.in_a_row), str(len(times.seconds)),
            with_span(series.seconds(times), 1e3), with_span(algorithm, 1e-9),
            with_span(bus, 1e-9) if series.reduces else "",
        ])  # fmt: skip
    if not series.reduces:
        head, rows = head[:-1], [row[:-1] for row in rows]
    return Grid(head, rows, f"{series.title}; median over rounds")


def fits_grid(records: list[NetworkRecord]) -> Grid:
    """alpha and beta of every series."""
    head = [("what", False), ("alpha, µs [95 %]", True), ("beta, ns per byte [95 %]", True),
            ("1 / beta,\nGB/s", True), ("line off by", True)]  # fmt: skip
    rows = []
    for series in (each for each in series_of(records) if each.fit):
        fit = series.fit
        rows.append([
            series.title, with_span(fit.alpha, 1e6), with_span(fit.beta, 1e9),
            three(1e-9 / fit.beta[0]) if fit.beta[0] > 0 else "", f"{100 * abs(fit.off):.0f} %",
        ])  # fmt: skip
    return Grid(head, rows, "Time of a message: alpha + beta × bytes; of an all-reduce of n ranks: 2 (n − 1) alpha + "
                "2 (n − 1) / n × beta × bytes")  # fmt: skip


def grids(records: list[NetworkRecord]) -> list[Grid]:
    """All tables."""
    return [*map(sizes_grid, series_of(records)), fits_grid(records)]


# --- where it was taken -------------------------------------------------------------------------------------------


def standing(records: list[NetworkRecord]) -> list[str]:
    """Between what the messages went, on which machine, what stood for a device, and n."""
    first = records[0]
    n = first.plan.rounds
    line = f"{stand_in(first)}; n = {n} round{'' if n == 1 else 's'}"
    if formulas.median_depth(n, CONFIDENCE) == 0:
        line += ": too few for an interval of 95 %"
    return [where_of(records), machine_line(first).removesuffix(f"; {where(first)}"), line]


def where_of(records: list[NetworkRecord]) -> str:
    """Between what the messages went."""
    first = records[0]
    return f"{first.world_size} processes{f', {where(first)}' if where(first) else ' of one machine'}"


def disturbed(records: list[NetworkRecord]) -> list[str]:
    """Which backends were disturbed, and by what. On one machine the ranks' own work is no disturbance."""
    found = [(record.name, disturbances_of(record)) for record in records]
    return [f"{name} was disturbed: {in_words(shares)} while it was measured" for name, shares in found if shares]


def repeat(records: list[NetworkRecord]) -> str:
    """The make command that measures the same again."""
    first, asked = records[0].config, records[0].plan
    budget = asked.budget_s * len(records) / 60
    said = ["make network", f"GPUS={first.num_devices}"]
    said += [
        f"{variable_of(FIELDS[name])}={int(v) if isinstance(v, bool) else v}"
        for name in SHOWN
        if (v := getattr(first, name)) != FIELDS[name].default and not chosen(records, name)
    ]
    said += [f"SIZES={plan.as_flag(asked.sizes)}", f"REPEATS={asked.rounds}", f"MAX_MINUTES={budget:g}"]
    said.append(f"BACKENDS={','.join(record.backend for record in records)}")
    return repeated(" ".join(said), records[0].network, first.hosts)


def chosen(records: list[NetworkRecord], name: str) -> bool:
    """Whether an option is the backend's choice, and nobody's wish."""
    return name == "launcher" or name == "threads" or (name == "device" and len({r.config.device for r in records}) > 1)
