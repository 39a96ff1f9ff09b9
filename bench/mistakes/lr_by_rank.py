from bench.mistakes.base import mistake


@mistake(
    "learning rates that differ by rank",
    "equal gradients give steps of different lengths: the replicas diverge",
    "step the schedule on every rank, with a loss that is the same on all (all_reduce it first)",
    needs="rates",
    explains=("drift", "other-replica"),
    case="wrong/rates_scheduler_on_rank0",
)
def lr_by_rank(observed: dict) -> str | None:
    rates = observed.get("rates") or {}
    if rates.get("apart_at") is None:
        return None
    by_rank = ", ".join(f"{rate:g}" for rate in rates["by_rank"])
    return f"the ranks' learning rates in step {rates['apart_at']} are {by_rank}"
