from bench.mistakes.base import Evidence, mistake, some
from bench.mistakes.unsynced_init import LOCAL_SGD, averaged, first_apart_outside, outside


@mistake(
    "replicas that start from the same weights and diverge",
    "the replicas are different models from here on, and the saved one is not what the ranks validated together",
    "exchange every gradient, take the same steps on every rank, and change weights on all ranks or on none",
    needs="end",
    explains=("other-replica",),
    recorded=True,
    case="wrong/drift_skipped_steps",
)
def drift(observed: dict) -> str | Evidence | None:
    """A step that differs on one rank, or weights changed on one rank."""
    start, end = (observed.get(when, {}).get("parameters", []) for when in ("start", "end"))
    weights = observed.get("weights") or {}
    apart = weights.get("apart_at")
    if len(set(start)) > 1 or not observed.get("exchanges", True) or (apart is None and len(set(end)) <= 1):
        return None
    if apart is None:
        different = f"{len(set(end))} different sets of weights on {len(end)} ranks at the end"
        return f"{different}, from one before the first step"
    layers = weights["layers"]
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    evidence = f"the replicas differ after step {apart}, first in {layers[0]}{more}"
    if averaged(observed):
        return Evidence(f"{evidence}; they are equal again later", LOCAL_SGD)
    if names := first_apart_outside(observed):
        title = "parameters outside the model that start equal and diverge"
        return outside(title, f"these parameters differ between ranks after step {apart}: {some(names)}", observed)
    return evidence
