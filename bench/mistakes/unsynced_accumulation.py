from bench.mistakes.base import Evidence, mistake
from bench.mistakes.gradient_sum import AVERAGED_INSTEAD
from bench.mistakes.unsynced_init import averaged


@mistake(
    "the last pass of an accumulation is not exchanged",
    "each rank steps with its own sum of gradients, and the replicas diverge",
    "run the last forward before a step outside no_sync; if you set require_backward_grad_sync yourself, set it before "
    "that forward, where DistributedDataParallel reads it",
    needs="passes",
    explains=("drift", "gradient-sum", "no-exchange", "other-replica"),
    case="wrong/accumulation_off_by_one",
)
def unsynced_accumulation(observed: dict) -> str | Evidence | None:
    """If each step is a single pass, nothing is exchanged at all: another mistake."""
    passes = observed.get("passes") or {}
    accumulates = (observed.get("gradient") or {}).get("passes", 2) > 1
    if not passes.get("unsynced") or (passes["unsynced"] == passes["steps"] and not accumulates):
        return None
    evidence = (
        f"in {passes['unsynced']} of the first {passes['steps']} steps the last forward before the step ran with "
        "require_backward_grad_sync=False: under no_sync, or the flag was set after that forward"
    )
    return Evidence(evidence, AVERAGED_INSTEAD) if averaged(observed) else evidence
