"""Replicas that are equal at first and go apart: a step that one rank takes otherwise, weights changed on one rank."""

from bench.mistakes import outside
from bench.mistakes.base import Finding, Mistake, Question


def detect(observed: dict) -> str | Finding | Question | None:
    start, end = (observed.get(when, {}).get("parameters", []) for when in ("start", "end"))
    weights = observed.get("weights") or {}
    apart = weights.get("apart_at")
    if len(set(start)) > 1 or not observed.get("exchanges", True) or (apart is None and len(set(end)) <= 1):
        return None
    if apart is None:
        return (
            f"{len(set(end))} different sets of weights on {len(end)} ranks at the end, from one before the first step"
        )
    layers = weights["layers"]
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    evidence = f"the replicas differ after step {apart}, first in {layers[0]}{more}"
    if averaged(observed):
        return Question(f"{evidence}; they are equal again later", "are the weights averaged now and then (local SGD)?")
    if names := outside.apart(observed):
        return outside.finding(
            MISTAKE.name, OUTSIDE, f"after step {apart} these differ: {outside.some(names)}", observed
        )
    return evidence


def averaged(observed: dict) -> bool:
    """Whether replicas that went apart were seen to come together again, or torch's local SGD exchanges them."""
    gradient, weights = observed.get("gradient") or {}, observed.get("weights") or {}
    return gradient.get("kind") == "local SGD" or weights.get("together_again", False)


OUTSIDE = "parameters outside the model that start from the same values and go apart"

MISTAKE = Mistake(
    "drift",
    "replicas that start from the same weights and go apart",
    "the replicas are different models from here on, and the one that is saved is none that was validated together",
    "let every gradient be exchanged, step on every rank alike, and change weights on all ranks or on none",
    detect,
    needs="end",
    explains=("other-replica",),
)
