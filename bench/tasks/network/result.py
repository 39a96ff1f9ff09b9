"""Metrics of `bench network`: bandwidths, and alpha and beta with their intervals; as text, tables and a figure."""

from dataclasses import dataclass
from functools import cached_property

from bench import formulas
from bench.analysis import style
from bench.analysis.tables import Grid
from bench.cluster.plan import repeated
from bench.config.fields import variable_of
from bench.config.options import FIELDS
from bench.record.describe import machine_line, stand_in, where
from bench.record.disturbance import disturbances_of, in_words
from bench.tasks.network.plan import as_flag, in_bytes
from bench.tasks.network.record import BACKENDS, NetworkRecord, Operation, Times, peaks

CONFIDENCE = 0.95
MIN_SIZES = 3
BENT = 0.25  # relative error above which a line does not describe the times
WORDS = {"ping_pong": "point to point", "all_reduce": "all-reduce", "all_gather": "all-gather",
         "reduce_scatter": "reduce-scatter"}  # fmt: skip
SHOWN = ("device", "share_gpu", "hosts", "iface", "launcher", "dist_url", "threads", "timeout")  # options in `repeat`
STYLES = {"ping_pong": ("o", ":"), "all_gather": ("s", "--"), "reduce_scatter": ("v", "-.")}  # marker and line
BESIDE = 1.1  # distance between the marks of two operations, as a factor
PANEL = 2.6  # inches
TITLE = "Messages: time and bandwidth over size"

Interval = tuple[float, float | None, float | None]  # estimate, low, high; None with too few rounds


@dataclass(frozen=True)
class Fit:
    """alpha in seconds, beta in seconds per byte. off: the largest relative error of the line, at ``off_at`` bytes."""

    alpha: Interval
    beta: Interval
    off: float
    off_at: int


@dataclass(frozen=True, eq=False)
class Series:
    record: NetworkRecord
    operation: Operation

    @property
    def title(self) -> str:
        return f"{self.record.name}, {WORDS[self.operation.name]}"

    @property
    def of_all(self) -> bool:
        """Whether all ranks take part, in a ring."""
        return self.operation.name != "ping_pong"

    @property
    def halves(self) -> int:
        """2 for half of an all-reduce: an all-gather or a reduce-scatter."""
        return 2 if self.operation.name in ("all_gather", "reduce_scatter") else 1

    @property
    def ranks(self) -> int:
        return len(self.operation.ranks)

    def seconds(self, times: Times) -> Interval:
        return formulas.median_interval(times.seconds, CONFIDENCE)

    def bandwidths(self, times: Times) -> tuple[Interval, Interval]:
        """Algorithm and bus bandwidth in bytes per second, at the median time and at the ends of its interval."""
        middle, low, high = self.seconds(times)
        ends = [None if s is None else formulas.algorithm_bandwidth(times.nbytes, s) for s in (middle, high, low)]
        bus = [None if s is None else self.bus_bandwidth(times.nbytes, s) for s in (middle, high, low)]
        return tuple(ends), tuple(bus)

    def bus_bandwidth(self, nbytes: int, seconds: float) -> float:
        """Bytes per second over a link; point to point it equals the algorithm bandwidth."""
        return formulas.bus_bandwidth(nbytes, seconds, self.ranks, self.operation.name)

    @cached_property
    def fit(self) -> Fit | None:
        """alpha and beta; None with fewer than MIN_SIZES sizes, through which any line fits.

        Each round gives a line through all sizes. The estimates are the medians over the rounds, with their exact
        intervals. Errors are relative to the median times, the same for all rounds.
        """
        sizes = [times.nbytes for times in self.operation.times]
        if len(sizes) < MIN_SIZES:
            return None
        middles = [self.seconds(times)[0] for times in self.operation.times]
        rounds = zip(*(times.seconds for times in self.operation.times), strict=True)
        lines = [formulas.fit_line(sizes, list(times), middles) for times in rounds]
        if self.of_all:  # those of the links of a ring
            lines = [formulas.ring_alpha_beta(*(self.halves * x for x in line), self.ranks) for line in lines]
        alpha, beta = (formulas.median_interval([line[i] for line in lines], CONFIDENCE) for i in (0, 1))
        off = [self.modelled(size, alpha[0], beta[0]) / middle - 1 for size, middle in zip(sizes, middles, strict=True)]
        worst = max(range(len(off)), key=lambda i: abs(off[i]))
        return Fit(alpha, beta, off[worst], sizes[worst])

    def modelled(self, nbytes: float, alpha_s: float, beta_s: float) -> float:
        """Seconds by the alpha-beta model."""
        if self.of_all:
            return formulas.ring_all_reduce_s(nbytes, self.ranks, alpha_s, beta_s) / self.halves
        return alpha_s + beta_s * nbytes


def series_of(records: list[NetworkRecord]) -> list[Series]:
    return [Series(record, operation) for record in records for operation in record.operations]


# --- in words -----------------------------------------------------------------------------------------------------


def answer(records: list[NetworkRecord]) -> list[str]:
    lines = []
    for series in series_of(records):
        lines.append(speed_line(series))
        lines += [fit_line(series)] if series.fit else []
    for series in series_of(records):
        if left := series.operation.left_out:
            sizes = ", ".join(in_bytes(nbytes) for nbytes, _ in left)
            lines.append(f"{series.title}: no time for {sizes} (one of the first would take {left[0][1]:.3g} s): "
                         "give a larger MAX_MINUTES")  # fmt: skip
    for record in records:
        lines += [f"{record.name}, {WORDS[name]}: not supported by this torch ({why})"
                  for name, why in (record.form.unsupported or {}).items()]  # fmt: skip
    return lines + [peak_line(record) for record in records if record.form.products]


def peak_line(record: NetworkRecord) -> str:
    found = ", ".join(
        f"{precision} {three(1e-12 * min(rates))}" for precision, (_, rates) in best_products(record).items()
    )
    slowest = f", the slowest of {record.world_size}" if record.world_size > 1 else ""
    return f"matrix products, TFLOP/s per device{slowest}: {found}; for MFU give it as PEAK_TFLOPS"


def best_products(record: NetworkRecord) -> dict[str, tuple[int, list[float]]]:
    """Precision -> (n, FLOP/s of each rank's device), of the size at which the slowest device is fastest."""
    return {precision: max(sizes.items(), key=lambda size: min(size[1])) for precision, sizes in peaks(record).items()}


def speed_line(series: Series) -> str:
    first, last = series.operation.times[0], series.operation.times[-1]
    time, size = with_span(series.seconds(first), 1e6), in_bytes(first.nbytes)
    bandwidth = f"{with_span(series.bandwidths(last)[1], 1e-9)} GB/s with {in_bytes(last.nbytes)}"
    if series.of_all:
        return f"{series.title} of {series.ranks} ranks: {time} µs for {size}; bus bandwidth {bandwidth}"
    a, b = series.operation.ranks
    return f"{series.title}, rank {a} to rank {b}: latency {time} µs, half a round trip of {size}; {bandwidth}"


def fit_line(series: Series) -> str:
    fit = series.fit
    alpha, beta = (with_span(value, 1.0) for value in (fit.alpha, fit.beta))
    off = f"{100 * abs(fit.off):.0f} % {'below' if fit.off < 0 else 'above'} the time at {in_bytes(fit.off_at)}"
    line = f"{series.title}: alpha = {alpha} s, beta = {beta} s per byte; largest error of this fit: {off}"
    return line + (", so the times do not follow a straight line" if abs(fit.off) > BENT else "")


def with_span(value: Interval, scale: float) -> str:
    middle, low, high = (None if x is None else three(x * scale) for x in value)
    return middle if low is None else f"{middle} [{low} to {high}]"


def three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


# --- in tables ----------------------------------------------------------------------------------------------------


def sizes_grid(series: Series) -> Grid:
    head = [("message", True), ("in a row", True), ("n", True), ("time, ms [95 %]", True),
            ("algorithm bandwidth,\nGB/s [95 %]", True), ("bus bandwidth,\nGB/s [95 %]", True)]  # fmt: skip
    rows = []
    for times in series.operation.times:
        rows.append([
            in_bytes(times.nbytes), str(times.in_a_row), str(len(times.seconds)), with_span(series.seconds(times), 1e3),
            *(with_span(bandwidth, 1e-9) for bandwidth in series.bandwidths(times)),
        ])  # fmt: skip
    if not series.of_all:  # both bandwidths are equal
        head, rows = head[:-1], [row[:-1] for row in rows]
    return Grid(head, rows, f"{series.title}; median over rounds")


def fits_grid(records: list[NetworkRecord]) -> Grid:
    head = [("operation", False), ("alpha, µs [95 %]", True), ("beta, ns per byte [95 %]", True),
            ("1 / beta,\nGB/s", True), ("largest error\nof the fit", True)]  # fmt: skip
    rows = []
    for series in (each for each in series_of(records) if each.fit):
        fit = series.fit
        rows.append([
            series.title, with_span(fit.alpha, 1e6), with_span(fit.beta, 1e9),
            three(1e-9 / fit.beta[0]) if fit.beta[0] > 0 else "", f"{100 * abs(fit.off):.0f} %",
        ])  # fmt: skip
    return Grid(head, rows, "Time of a message: alpha + beta × bytes; of an all-reduce of n ranks: 2 (n − 1) alpha + "
                "2 (n − 1) / n × beta × bytes; of an all-gather or reduce-scatter: half of that")  # fmt: skip


def products_grid(record: NetworkRecord) -> Grid:
    head = [("precision", False), ("n", True), ("TFLOP/s per device,\nslowest to fastest", True)]
    rows = [
        [precision, str(n), " to ".join(dict.fromkeys(three(1e-12 * rate) for rate in (min(rates), max(rates))))]
        for precision, sizes in peaks(record).items()
        for n, rates in sizes.items()
    ]
    return Grid(head, rows, "Product of two n × n matrices in torch, while all ranks compute")


def grids(records: list[NetworkRecord]) -> list[Grid]:
    products = [products_grid(record) for record in records if record.form.products]
    fits = [grid for grid in [fits_grid(records)] if grid.rows]  # none with fewer than MIN_SIZES sizes
    return [*map(sizes_grid, series_of(records)), *fits, *products]


# --- provenance ---------------------------------------------------------------------------------------------------


def provenance_lines(records: list[NetworkRecord]) -> list[str]:
    first = records[0]
    n = first.plan.rounds
    line = f"{stand_in(first)}; n = {n} round{'' if n == 1 else 's'}"
    if formulas.median_depth(n, CONFIDENCE) == 0:
        line += ": too few for a 95 % CI"
    return [where_of(records), machine_line(first).removesuffix(f"; {where(first)}"), line]


def where_of(records: list[NetworkRecord]) -> str:
    first = records[0]
    return f"{first.world_size} processes{f', {where(first)}' if where(first) else ' of one machine'}"


def disturbed(records: list[NetworkRecord]) -> list[str]:
    found = [(record.name, disturbances_of(record)) for record in records]
    return [f"{name} was disturbed: {in_words(shares)} while it was measured" for name, shares in found if shares]


def repeat(records: list[NetworkRecord]) -> str:
    """The make command that repeats the measurement."""
    first, asked = records[0].config, records[0].plan
    budget = asked.budget_s * len(records) / 60
    said = ["make network", f"GPUS={first.num_devices}"]
    said += [
        f"{variable_of(FIELDS[name])}={int(v) if isinstance(v, bool) else v}"
        for name in SHOWN
        if (v := getattr(first, name)) != FIELDS[name].default and not chosen(records, name)
    ]
    said += [f"SIZES={as_flag(asked.sizes)}", f"REPEATS={asked.rounds}", f"MAX_MINUTES={budget:g}"]
    said.append(f"BACKENDS={','.join(record.backend for record in records)}")
    return repeated(" ".join(said), records[0].network, first.hosts)


def chosen(records: list[NetworkRecord], name: str) -> bool:
    """Whether the backend chose an option, and not the user."""
    return name in ("launcher", "threads") or (name == "device" and len({r.config.device for r in records}) > 1)


# --- figure -------------------------------------------------------------------------------------------------------


def figures(records: list[NetworkRecord]) -> dict:
    return {"network": draw(records)}


@style.styled
def draw(records: list[NetworkRecord]):
    found = series_of(records)
    foot = [
        "Mark: median over rounds, drawn beside its size. Bar: its exact 95 % CI. Line: the fitted alpha and beta.",
        *disturbed(records),
        *provenance_lines(records)[1:],
    ]
    paper = style.canvas(None, f"{TITLE}: {where_of(records)}", 2 * PANEL + 0.2 * len(found), None, tuple(foot))
    above, below = style.axes_on(paper, 2, sharex=True)
    for series in found:
        draw_series(above, series, lambda series, nbytes, seconds: 1e3 * seconds, legend_of(series))
        draw_series(below, series, lambda series, nbytes, seconds: 1e-9 * series.bus_bandwidth(nbytes, seconds))
    sizes = sorted({times.nbytes for series in found for times in series.operation.times})
    for axes, label in ((above, "ms"), (below, "bus bandwidth, GB/s")):
        axes.set(xscale="log", yscale="log", ylabel=label)
        style.horizontal_grid(axes)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    shown = sizes[:: max(1, -(-len(sizes) // 6))]
    below.set_xticks(shown, [in_bytes(size).replace(" ", "\n") for size in shown], size=style.SMALL)
    below.set_xlabel("message")
    style.legend_above(above, 1)
    return paper.figure


def draw_series(axes, series: Series, value, label: str = "") -> None:
    look = BACKENDS[series.record.backend].look
    marker, line = STYLES.get(series.operation.name, (look.marker, look.line))
    face = look.colour if series.of_all else style.WHITE
    beside = BESIDE ** (list(WORDS).index(series.operation.name) - 1)
    for times in series.operation.times:
        ends = [value(series, times.nbytes, s) for s in series.seconds(times)[1:] if s is not None]
        axes.plot(
            [beside * times.nbytes] * len(ends), ends, color=look.colour, linewidth=3, alpha=0.5, solid_capstyle="butt"
        )
    marks = [value(series, times.nbytes, series.seconds(times)[0]) for times in series.operation.times]
    sizes = [times.nbytes for times in series.operation.times]
    axes.plot([beside * size for size in sizes], marks, marker, color=look.colour, markerfacecolor=face)
    if series.fit:
        first, steps = sizes[0], 60
        fine = [first * (sizes[-1] / first) ** (i / steps) for i in range(steps + 1)]
        modelled = [series.modelled(size, series.fit.alpha[0], series.fit.beta[0]) for size in fine]
        drawn = [(size, value(series, size, s)) for size, s in zip(fine, modelled, strict=True) if s > 0]
        axes.plot(*zip(*drawn, strict=True), linestyle=line, color=look.colour, linewidth=1.2)
    axes.plot([], [], marker, linestyle=line, color=look.colour, markerfacecolor=face, label=label or None)


def legend_of(series: Series) -> str:
    if not series.fit:
        return series.title
    alpha, beta = series.fit.alpha[0] * 1e6, series.fit.beta[0] * 1e9
    return f"{series.title}: alpha {style.number(alpha)} µs, beta {style.number(beta)} ns per byte"
