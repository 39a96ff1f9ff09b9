"""`bench diff A B`: two sets of records compared, with an exit code for a regression."""

import math
from pathlib import Path

from bench.analysis import tables
from bench.analysis.stats import FEWEST_ROUNDS
from bench.commands.base import is_on, needed
from bench.errors import UserError
from bench.foreign.record import ForeignRecord
from bench.foreign.record import find as find_foreign
from bench.record.describe import machine_line
from bench.record.view import Record
from bench.report.difference import (
    Result,
    changes,
    compare_foreign,
    compare_sets,
    grid,
    read_side,
    time_note,
)

REGRESSION = 3  # the exit code; 1 and 2 are those of bench/errors.py


def run(args) -> int:
    """Print what differs, a table, a sentence for each program, and the judgement.

    Returns the exit code: REGRESSION where a program fails the bound, see ``Result.regressions``.
    """
    strict = is_on("STRICT", args.strict)
    bound = read_bound(args.bound, strict)
    places = {"A": needed("A", args.a), "B": needed("B", args.b)}
    foreign, refused = zip(*(find_foreign(Path(place)) for place in places.values()), strict=True)
    for (name, place), found, other in zip(places.items(), foreign, foreign[::-1], strict=True):
        if found and not other and not any(Path(place).rglob("record.json")):
            raise UserError(f"{name} holds foreign scripts alone, and those are compared with foreign scripts alone")
    (a, said_a), (b, said_b) = (read_side(place, name, not all(foreign)) for name, place in places.items())
    said, results = [*said_a, *said_b, *(f"refused: {sentence}" for side in refused for sentence in side)], []
    if any(foreign) and not all(foreign):
        said.append(f"note: foreign scripts are in {'A' if foreign[0] else 'B'} alone: not compared")
    if (a and b) or not all(foreign):
        results.append(compare_sets(a, b))
        show(results[0], a, b, said)
    if all(foreign):
        results.append(compare_foreign(*foreign))
        show(results[-1], *foreign, [] if results[1:] else said)
    judged = [] if bound is None else results
    regressions = [sentence for result in judged for sentence in result.regressions(bound, strict)]
    for sentence in regressions:
        print(f"regression: {sentence}")
    if bound is not None and not regressions:
        unjudged = sum(d.against(bound) == "unknown" for result in results for d in result.differences)
        more = f"; {unjudged} not judged (disturbed, or fewer than {FEWEST_ROUNDS} records a side)" if unjudged else ""
        print(f"no regression beyond {bound:g} % is shown{more}")
    return REGRESSION if regressions else 0


def read_bound(text: str | None, strict: bool) -> float | None:
    """The bound in per cent; None where there is none. Raises UserError on anything else."""
    if text in (None, ""):
        if strict:
            raise UserError("STRICT=1 needs a BOUND, in per cent: BOUND=5")
        return None
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if not 0 <= bound < 100:
        raise UserError(f"BOUND={text}: write per cent, from 0 to below 100")
    return bound


def units_of(records: list[Record]) -> str:
    """What throughput counts; of foreign scripts both, where it is examples of some and steps of others."""
    if isinstance(records[0], ForeignRecord):
        return " or ".join(sorted({record.unit.removesuffix("/s") for record in records}))
    return records[0].workload.units


def show(result: Result, a: list[Record], b: list[Record], said: list[str]) -> None:
    """Everything but the judgement."""
    console = tables.terminal()
    for name, side in (("A", a), ("B", b)):
        for line in sorted({machine_line(record) for record in side}):
            console.print(f"{name}: {line}", markup=False)
    for line in changes(a, b):
        console.print(f"differs: {line}", markup=False)
    for line in dict.fromkeys(line for d in result.differences for line in d.unlike):
        programs = [d.name for d in result.differences if line in d.unlike]
        where = "" if len(programs) == len(result.differences) else f" ({', '.join(programs)})"
        console.print(f"{line}{where}" if line.startswith("not recorded") else f"differs: {line}{where}", markup=False)
    tables.print_grid(console, grid(result, units_of(a + b)))
    for d in result.differences:
        console.print(f"{d.name}: {d.sentence()}", markup=False, style="dim" if d.disturbance else None)
        if d.disturbance:
            console.print(f"  disturbed: {d.disturbance}", markup=False)
        if d.outliers:
            console.print(f"  outliers, kept: {', '.join(d.outliers)}", markup=False)
    for name, keys in (("A", result.only_a), ("B", result.only_b)):
        if keys:
            console.print(f"only in {name}, not compared: {', '.join(keys)}", markup=False)
    for name in result.by_threads:
        console.print(
            f"note: {name} ran with different numbers of threads within one set: such runs are never put together, and "
            "only those with as many are compared", markup=False,
        )  # fmt: skip
    both = {record.run_id for record in a} & {record.run_id for record in b}
    shared = f"note: {len(both)} records are in both sets; they are compared as if they were not the same"
    for line in [*said, shared if both else time_note(a, b)]:
        console.print(line, markup=False)
