from bench.mistakes.base import mistake


@mistake(
    "another module that differs by rank",
    "ranks that use it do different things, and a checkpoint of rank 0 has only rank 0's",
    "update it on every rank after each step from weights that are the same, or broadcast it before it is used",
    needs="others",
    case="wrong/other_ema_on_rank0",
)
def other_replica(observed: dict) -> str | None:
    """E.g. an average of the weights (EMA) that only one rank updates."""
    apart = {name: hashes for name, hashes in (observed.get("others") or {}).items() if len(set(hashes)) > 1}
    if not apart:
        return None
    named = ", ".join(f"{name} ({len(set(hashes))} different on {len(hashes)} ranks)" for name, hashes in apart.items())
    return f"at the end of the training: {named}"
