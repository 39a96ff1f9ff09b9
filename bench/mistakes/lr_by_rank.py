"""Learning rates that differ by rank: a schedule that only one rank steps, or one that looks at the rank's own loss."""

from bench.mistakes.base import Mistake


def detect(observed: dict) -> str | None:
    rates = observed.get("rates") or {}
    if rates.get("apart_at") is None:
        return None
    return f"in step {rates['apart_at']} the learning rates of the ranks are " + ", ".join(
        f"{rate:g}" for rate in rates["by_rank"]
    )


MISTAKE = Mistake(
    "lr-by-rank",
    "learning rates that differ by rank",
    "equal gradients are steps of different lengths: the replicas go apart",
    "step the schedule on every rank, with a loss that is the same on all (all_reduce it first)",
    detect,
    needs="rates",
    watched=True,
    explains=("drift", "other-replica"),
)
