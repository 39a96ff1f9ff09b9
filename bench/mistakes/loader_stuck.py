from bench.mistakes.base import mistake
from bench.mistakes.rank0_collective import at


@mistake(
    "a rank whose loader yields no batch",
    "the other ranks wait for this rank in their next collective; no collective is at fault",
    "check what this rank reads: storage that does not answer, a lock, a loader worker that is stuck. "
    "DataLoader(timeout=SECONDS) turns such a wait into an error",
    recorded=True,
    case="wrong/stuck_worker",
)
def loader_stuck(observed: dict) -> str | None:
    """A run that hung with a rank in its loader and every other rank in a collective or a backward pass."""
    hang = observed.get("hang") or {}
    places = hang.get("where") or []
    loads = [rank for rank, place in enumerate(places) if place and place.get("awaits_batch")]
    others = [rank for rank in range(len(places)) if rank not in loads]
    if not loads or not others or any(not places[rank] or places[rank]["collective"] is False for rank in others):
        return None
    said = [f"rank {rank} waits for a batch at {at(places[rank])}" for rank in loads]
    said += [f"rank {rank} waits for the others at {at(places[rank])}" for rank in others]
    return f"no progress for {hang['limit_s']:.4g} s: {', '.join(said)}"
