"""`bench diff A B`: compare two sets of records; the exit code reports a regression."""

from pathlib import Path

from bench.analysis import tables
from bench.analysis.stats import FEWEST_ROUNDS
from bench.cli.base import require_argument
from bench.errors import ExitCode, UserError
from bench.foreign import result as foreign_result
from bench.foreign import scaling
from bench.foreign.record import ForeignRecord
from bench.foreign.record import find as find_foreign
from bench.record import packed
from bench.record.describe import machine_line
from bench.record.view import Record
from bench.report.difference import Result, changes, compare_foreign, compare_sets, grid, read_side, time_note


def run(args) -> int:
    """Print the differences, a table, a sentence per program, the scaling of scripts, and the verdict; returns FOUND if
    a program exceeds the bound (``Result.regressions``). Raises UserError if nothing can be compared."""
    strict, bound = bool(args.strict), args.bound
    if strict and bound is None:
        raise UserError("STRICT=1 needs a BOUND, in per cent: BOUND=5")
    places = {"A": require_argument("A", args.a), "B": require_argument("B", args.b)}
    foreign, refused = zip(*(find_foreign(Path(place)) for place in places.values()), strict=True)
    for (name, place), found, other in zip(places.items(), foreign, foreign[::-1], strict=True):
        if found and not other and not packed.find_files(place, "record.json"):
            raise UserError(f"{name} contains only external scripts, which can be compared only with external scripts")
    (a, said_a), (b, said_b) = (read_side(place, name, not all(foreign)) for name, place in places.items())
    said = [*said_a, *said_b, *(f"refused: {sentence}" for side in refused for sentence in side)]
    compared, scalings = [], []  # compared: a result with its two sides
    if any(foreign) and not all(foreign):
        said.append(f"note: only {'A' if foreign[0] else 'B'} contains external scripts: not compared")
    if (a and b) or not all(foreign):
        compared.append((compare_sets(a, b), a, b))
    if all(foreign):
        result = compare_foreign(*foreign)
        scalings = [] if result.differences else scaling.find(*foreign)
        if result.differences or compared:
            compared.append((result, *foreign))
        elif not scalings:
            raise UserError("; ".join([nothing_shared(*foreign), *said]))
    console = tables.terminal()
    for result, *sides in compared:
        show(console, result, *sides, said)
        said = []
    if not compared:
        show_machines(console, *foreign)
    for found in scalings:
        scaling.show(console, found)
    tables.print_lines(console, said)
    if bound is None:
        return 0
    if not compared:
        raise UserError(f"BOUND={bound:g} cannot be checked: A and B contain no scripts on the same number of devices")
    results = [result for result, *_ in compared]
    regressions = [sentence for result in results for sentence in result.regressions(bound, strict)]
    for sentence in regressions:
        print(f"regression: {sentence}")
    if not regressions:
        unjudged = sum(d.against(bound) == "unknown" for result in results for d in result.differences)
        more = f"; {unjudged} not judged (disturbed, or fewer than {FEWEST_ROUNDS} records a side)" if unjudged else ""
        print(f"no regression beyond {bound:g} % was found{more}")
    return ExitCode.FOUND if regressions else ExitCode.DONE


def nothing_shared(a: list[ForeignRecord], b: list[ForeignRecord]) -> str:
    listed = [", ".join(dict.fromkeys(map(foreign_result.program_in_words, side))) for side in (a, b)]
    return (
        f"nothing to compare: A has {listed[0]}; B has {listed[1]}. Scripts are compared under one name (LABEL), on "
        "the same kind of device, with the same batch per device or the same global batch"
    )


def units_of(records: list[Record]) -> str:
    """The units of throughput; both, if some external scripts count examples and others steps."""
    if isinstance(records[0], ForeignRecord):
        return " or ".join(sorted({record.unit.removesuffix("/s") for record in records}))
    return records[0].workload.units


def show_machines(console, a: list[Record], b: list[Record]) -> None:
    for name, side in (("A", a), ("B", b)):
        for line in sorted({machine_line(record) for record in side}):
            console.print(f"{name}: {line}")
    for line in changes(a, b):
        console.print(f"differs: {line}")


def show(console, result: Result, a: list[Record], b: list[Record], said: list[str]) -> None:
    show_machines(console, a, b)
    for line in dict.fromkeys(line for d in result.differences for line in d.unlike):
        programs = [d.name for d in result.differences if line in d.unlike]
        where = "" if len(programs) == len(result.differences) else f" ({', '.join(programs)})"
        console.print(f"{line}{where}" if line.startswith("not recorded") else f"differs: {line}{where}")
    if result.differences:
        tables.print_grid(console, grid(result, units_of(a + b)))
    for d in result.differences:
        console.print(f"{d.name}: {d.sentence()}", style="dim" if d.disturbance else None)
        if d.disturbance:
            console.print(f"  disturbed: {d.disturbance}")
        if d.outliers:
            console.print(f"  outliers, kept: {', '.join(d.outliers)}")
    for name, keys in (("A", result.only_a), ("B", result.only_b)):
        if keys:
            console.print(f"only in {name}, not compared: {', '.join(keys)}")
    for name in result.by_threads:
        console.print(
            f"note: {name} ran with different numbers of threads within one set: "
            "only runs with the same number are compared",
        )  # fmt: skip
    both = {record.run_id for record in a} & {record.run_id for record in b}
    shared = f"note: {len(both)} records are in both sets and count in both"
    tables.print_lines(console, [*said, shared if both else time_note(a, b)])
