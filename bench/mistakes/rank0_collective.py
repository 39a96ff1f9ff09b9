"""A collective that only rank 0 enters: ``if rank == 0: dist.all_reduce(counts)``. The run deadlocks."""

from pathlib import Path

from bench.mistakes.base import EPOCHS, SEVERAL_PROCESSES, VALIDATION, Lab, Mistake
from bench.mistakes.measures import Measure


def sum_counts(script, counts):
    if script.topology.rank == 0:
        counts = script.mode.reduce(counts, "sum")
    return counts


def detect(observed: dict) -> str | None:
    """A run that hung with its ranks in collectives at different lines. A rank that hangs elsewhere is another fault.

    collective is None in a backward pass, where a rank may compute or wait; that alone proves nothing.
    """
    hang = observed.get("hang", {})
    places = {rank: place for rank, place in enumerate(hang.get("where", [])) if place}
    lines = {(place["file"], place["line"]) for place in places.values()}
    waits = {place["collective"] for place in places.values()}
    if len(lines) < 2 or False in waits or True not in waits or None in hang["where"]:
        return None
    named = ", ".join(f"rank {r} at {Path(p['file']).name}:{p['line']} ({p['function']})" for r, p in places.items())
    option = "" if hang.get("by") else " (TIMEOUT)"
    return f"no progress for {hang['limit_s']:.4g} s{option}, at different lines, not all in one collective: {named}"


def hung(record, observed) -> float:
    return float(record.hung)


MISTAKE = Mistake(
    "rank0-collective",
    "a collective that only rank 0 enters",
    "rank 0 waits for the others, they wait for rank 0, and the job hangs until it is killed",
    "let every rank enter every collective; only print or save under `if rank == 0`",
    detect,
    overrides={"sum_counts": sum_counts},
    requires=(SEVERAL_PROCESSES, EPOCHS, VALIDATION),
    lab=Lab(
        "What happens when only rank 0 enters a collective?",
        "The job deadlocks after the epoch: no error, no output, processors or GPUs at full load or at none, until "
        "it is ended.",
        (Measure("runs that hang until they are ended", hung, "up", ".0f"),),
        workload={"epochs": 1, "timeout": 20.0},
        hangs=True,
        shows="places",
    ),
)
