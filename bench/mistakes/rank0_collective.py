from pathlib import Path

from bench.mistakes.base import EPOCHS, SEVERAL_PROCESSES, VALIDATION, Lab, mistake
from bench.mistakes.measures import Measure


def at(place: dict) -> str:
    return f"{Path(place['file']).name}:{place['line']} ({place['function']})"


def sum_counts(script, counts):
    if script.topology.rank == 0:
        counts = script.mode.reduce(counts, "sum")
    return counts


HUNG = Measure("runs that hang until they are ended", lambda record, observed: float(record.hung), "up", ".0f")


@mistake(
    "a collective that only rank 0 enters",
    "rank 0 waits for the others, they wait for rank 0, and the job hangs until it is killed",
    "let every rank enter every collective; only print or save under `if rank == 0`",
    overrides={"sum_counts": sum_counts},
    requires=(SEVERAL_PROCESSES, EPOCHS, VALIDATION),
    lab=Lab(
        "What happens when only rank 0 enters a collective?",
        "The job deadlocks after the epoch: no error, no output, processors or GPUs at full load or at none, until "
        "it is ended.",
        (HUNG,),
        workload={"epochs": 1, "timeout": 20.0},
        hangs=True,
        shows="places",
    ),
    case="wrong/lone_barrier",
)
def rank0_collective(observed: dict) -> str | None:
    """A run that hung with its ranks in collectives at different lines. A rank that hangs elsewhere is another fault.

    collective is None in a backward pass, where a rank may compute or wait: no evidence.
    """
    hang = observed.get("hang", {})
    places = {rank: place for rank, place in enumerate(hang.get("where", [])) if place}
    lines = {(place["file"], place["line"]) for place in places.values()}
    waits = {place["collective"] for place in places.values()}
    if len(lines) < 2 or False in waits or True not in waits or None in hang["where"]:
        return None
    named = ", ".join(f"rank {rank} at {at(place)}" for rank, place in places.items())
    option = "" if hang.get("by") else " (TIMEOUT)"
    return f"no progress for {hang['limit_s']:.4g} s{option}, at different lines, not all in one collective: {named}"
