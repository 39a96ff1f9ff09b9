"""Tables: one Grid for every table; printed on the terminal here, and rendered on the page by its template."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.analysis import stats, words
from bench.analysis.certificate import Certificate
from bench.errors import shortened
from bench.profile.memory_parts import BESIDES, TENSORS
from bench.record import describe
from bench.record.disturbance import disturbances_of
from bench.record.view import Record

STATUS_ORDER = {"differs": 0, "not recorded": 1, "inherent": 2}
FLOPS = {"tflops": "TFLOP/s\nper device", "mfu": "MFU", "hfu": "HFU"}  # columns by ``describe.utilization``
JOULES = "J per\nexample"
RATE = 4  # the column of the throughput in ``describe.row``


@dataclass(frozen=True)
class Grid:
    head: list[tuple[str, bool]]  # name, and whether its cells are numbers
    rows: list[list[str]]
    caption: str = ""
    grey: frozenset[int] = frozenset()  # indices of the rows of disturbed runs


def terminal(stream=None) -> Console:
    """The console for tables and sentences. In a file or pipe it is as wide as a table, and a sentence is one line."""
    plain = {"file": stream, "highlight": False, "markup": False}
    console = Console(**plain)
    return console if console.is_terminal else Console(**plain, width=120, soft_wrap=True)


def print_named(console: Console, name: str, text: str) -> None:
    console.print(Text.assemble((name, "bold"), f": {text}"))


def print_grid(console: Console, grid: Grid, style: str = "") -> None:
    """Numbers stay on one line, words wrap on a narrow terminal, and nothing is cut off."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, style=style)
    for column, (name, number) in enumerate(grid.head):
        cells, whole = [row[column] for row in grid.rows], number and "memory" not in name
        pieces = [piece for cell in cells for piece in ([cell] if whole else cell.split())]
        least = max(map(len, [*pieces, *name.split()]), default=0)
        table.add_column(Text(name), justify="right" if number else "left", min_width=least)
    for number, row in enumerate(grid.rows):
        table.add_row(*map(Text, row), style="dim" if number in grid.grey else style)
    print_table(console, table)


def print_captioned(console: Console, grid: Grid) -> None:
    console.print(grid.caption)
    print_grid(console, grid)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line)


def print_table(console: Console, table: Table) -> None:
    """Print a table, without trailing blanks if the output is not a terminal."""
    if console.is_terminal:
        console.print(table, crop=False)
        return
    with console.capture() as capture:
        console.print(table, soft_wrap=False, crop=False)
    for line in capture.get().splitlines():
        console.out(line.rstrip())


def runs_grid(records: list[Record], base: Record | None = None) -> Grid:
    """One row per run; with ``base``, a column with the speedup against it, by the median steps."""
    head, rows = runs_head(f"{records[0].workload.units}/s"), [describe.row(record) for record in records]
    if base is not None:
        head.append(("speedup vs\nthis run\n(median step)", True))
        rows = [[*row, describe.ratio(record, base)] for row, record in zip(rows, records, strict=True)]
    return with_columns(Grid(head, rows, grey=disturbed_rows(records)), measured_columns(records))


def single_runs_grid(records: list[Record]) -> Grid:
    """Single runs, which may differ in model, data and options: these get their own columns."""
    units, rows = {record.workload.units for record in records}, []
    options = describe.options_cells(records)
    for record, given in zip(records, options, strict=True):
        name, *cells = describe.row(record)
        if len(units) > 1 and record.ok:
            cells[RATE - 1] += f" {record.workload.units}"
        given = [given] if any(options) else []
        rows.append([name, *given, describe.model_of(record.config), describe.data_of(record.config), *cells])
    mode, *head = runs_head(f"{units.pop()}/s" if len(units) == 1 else "throughput\nper second")
    given = [("options", False)] if any(options) else []
    head = [mode, *given, ("model", False), ("data", False), *head]
    grid = Grid(head, rows, "One run each: no confidence interval, no verdict", disturbed_rows(records))
    return with_columns(grid, measured_columns(records))


def with_columns(grid: Grid, columns: dict[str, list[str]]) -> Grid:
    """The table with more columns of numbers (title -> cells). A column without any value is left out."""
    found = {title: cells for title, cells in columns.items() if any(cells)}
    rows = [[*row, *(cells[place] for cells in found.values())] for place, row in enumerate(grid.rows)]
    return replace(grid, head=[*grid.head, *((title, True) for title in found)], rows=rows)


def flops_columns(found: list[dict[str, float]], titles: dict[str, str] = FLOPS) -> dict[str, list[str]]:
    """found: as ``describe.utilization`` of each row."""
    return {title: [describe.flops_cell(name, row.get(name)) for row in found] for name, title in titles.items()}


def measured_columns(records: list[Record]) -> dict[str, list[str]]:
    """TFLOP/s, MFU, HFU and energy of single runs."""
    energy = [describe.energy_cell([record]) for record in records]
    return flops_columns([describe.utilization(record) for record in records]) | {JOULES: energy}


def runs_head(rate: str) -> list[tuple[str, bool]]:
    return [("mode", False), ("devices", True), ("processes\n× threads", True), ("global\nbatch", True), (rate, True),
            ("step ms\nmedian [p5–p95]", True), ("n", True), ("peak memory\nGiB per device", True)]  # fmt: skip


def disturbed_rows(records: list[Record]) -> frozenset[int]:
    return frozenset(place for place, record in enumerate(records) if record.ok and disturbances_of(record))


def programs_grid(suite, caption: str) -> Grid:
    head = [
        ("configuration", False), ("devices", True), ("processes × threads", True), ("global batch", True),
        (f"{suite.units}/s", True), ("lowest to highest", True), ("step ms, median", True),
        ("peak memory, GiB per device", True), ("n", True),
    ]  # fmt: skip
    rows = []
    for program in suite.programs.values():
        values, first = program.throughputs, program.first
        step_s = statistics.median(record.step_time["median"] for record in program.records)
        rows.append([
            program.label, describe.devices_cell(first), f"{first.world_size} × {first.samples[0].threads}",
            str(first.global_batch), f"{statistics.geometric_mean(values):.1f}",
            f"{min(values):.1f} to {max(values):.1f}", f"{1e3 * step_s:.1f}",
            describe.memory_cell(first.peak_memory), str(len(program.records)),
        ])  # fmt: skip
    return with_utilization(Grid(head, rows, caption), suite.programs.values())


def with_utilization(grid: Grid, programs: Iterable) -> Grid:
    programs = list(programs)
    energy = [describe.energy_cell(each.records) for each in programs]
    return with_columns(grid, flops_columns([mean_utilization(each) for each in programs]) | {JOULES: energy})


def mean_utilization(program) -> dict[str, float]:
    return describe.utilization(program.first, statistics.geometric_mean(program.throughputs))


def memory_grid(
    devices: list[tuple[str, dict[str, float]]], caption: str = "", more: dict | None = None, examples: str = "images"
) -> Grid:
    """A row a kind of memory, in GiB. devices: (name, GiB by kind). more: name of another row -> its cells."""
    every = dict.fromkeys([*TENSORS, *BESIDES, *(kind for _, parts in devices for kind in parts)])
    rows = []
    for kind in every:
        if any(round(parts.get(kind, 0), 3) for _, parts in devices):
            cells = [f"{parts[kind]:.3f}" if kind in parts else "" for _, parts in devices]
            rows.append([examples if kind == "images" else kind, *cells])
    rows.append(["sum", *(f"{sum(parts.values()):.3f}" for _, parts in devices)])
    rows += [[name, *cells] for name, cells in (more or {}).items()]
    return Grid([("GiB", False), *((name, True) for name, _ in devices)], rows, caption)


def measured_memory(records: list[Record]) -> Grid:
    devices = [(f"{record.program}\n{describe.device_label(record, part.rank, device)}", parts)
               for record in records for part in record.samples for device in part.devices
               if (parts := device.get("memory_parts", {}).get("gib"))]  # fmt: skip
    examples = records[0].workload.batched if records else "images"
    return memory_grid(devices, "Memory by category at the peak of one additional step", examples=examples)


def comparison_grid(result) -> Grid:
    flag = "" if result.certificate.fair else "\nNOT A FAIR COMPARISON"
    head = [("configuration", False), (f"{result.suite.units}/s\n[lowest–highest]", True),
            (f"× {result.base}\n[95 % CI]{flag}", True), ("Hodges–Lehmann", True), ("verdict", False),
            ("n", True)]  # fmt: skip
    rows = []
    for label, program in result.suite.programs.items():
        values = program.throughputs
        cells = ["1", "", "base"]
        if label != result.base:
            pair = result.pair(result.base, label)
            c = pair.comparison
            cells = [words.with_span(c.ratio, c.low, c.high), words.with_span(c.hl_ratio, c.hl_low, c.hl_high),
                     c.verdict + (" (unfair)" if pair.flagged else "")]  # fmt: skip
        mean = f"{statistics.geometric_mean(values):.1f} [{min(values):.1f}–{max(values):.1f}]"
        rows.append([label, mean, *cells, str(result.suite.n)])
    return with_utilization(Grid(head, rows), result.suite.programs.values())


def pairs_grid(result) -> Grid:
    """The judged pairs, each with its interval, and whether its verdict is significant after Holm correction."""
    head = [("pair", False), ("ratio", True), ("95 % CI", True), ("Hodges–Lehmann", True),
            ("Hodges–Lehmann\n95 % CI", True), ("sign-flip p", True), ("n", True), ("verdict", False),
            ("significant after\nHolm correction", False)]  # fmt: skip
    head += [("decided after", True)] if result.suite.looks else []
    rows = []
    for pair, holds in zip(result.pairs, result.significant(), strict=True):
        found = pair.comparison
        flag = " (not a fair comparison)" if pair.flagged else ""
        rows.append([
            f"{pair.b} / {pair.a}", f"{found.ratio:.3f}", words.span(found.low, found.high),
            f"{found.hl_ratio:.3f}", words.span(found.hl_low, found.hl_high), f"{found.p:.3f}", str(found.n),
            found.verdict + flag, "yes" if holds else "no" if found.verdict in stats.VERDICTS else "",
        ])  # fmt: skip
        rows[-1] += [f"{pair.decided_after} rounds" if pair.decided_after else ""] if result.suite.looks else []
    many = f". Holm correction over all {len(rows)} pairs" if len(rows) > 1 else ""
    return Grid(head, rows, f"Ratio of throughput, paired by round{many}")


def certificate_grids(certificate: Certificate) -> list[Grid]:
    """The parity certificate in two tables: facts that are not equal, the unfair ones first, and equal facts."""
    order = sorted(certificate.facts, key=lambda fact: STATUS_ORDER.get(fact.status, 9))
    unequal = [[f.name, f.status, words.grouped(f.values), f.why] for f in order if f.status in STATUS_ORDER]
    equal = [[f.name, words.grouped(f.values)] for f in order if f.status not in STATUS_ORDER]
    fact, value = ("fact", False), ("value", False)
    return [Grid([fact, ("status", False), value, ("reason", False)], unequal,
                 "Parity certificate: facts in the records that differ"),
            Grid([fact, value], equal, "Parity certificate: facts in the records that are equal")]  # fmt: skip


def print_certificate(console: Console, certificate: Certificate) -> None:
    equal = [fact.name for fact in certificate.facts if fact.status == "equal"]
    print_named(console, "parity certificate", certificate.sentence())
    console.print(f"  equal: {', '.join(equal)}")
    for fact in certificate.facts:
        if fact.status != "equal":
            console.print(f"  {fact.status}: {fact.name} ({shortened(words.grouped(fact.values))}): {fact.why}")
