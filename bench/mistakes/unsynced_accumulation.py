"""Accumulation whose last pass is under ``no_sync``, too, or sets ``require_backward_grad_sync`` after its forward:
gradients are added up on each rank, and never exchanged."""

from bench.mistakes.base import Mistake, Question
from bench.mistakes.drift import averaged


def detect(observed: dict) -> str | Question | None:
    passes = observed.get("passes") or {}
    if not passes.get("unsynced") or (passes["unsynced"] == passes["steps"] and not accumulates(observed)):
        return None
    evidence = (
        f"in {passes['unsynced']} of the first {passes['steps']} steps the last forward before the step ran with "
        "require_backward_grad_sync=False: under no_sync, or the flag was set after that forward"
    )
    if averaged(observed):
        return Question(evidence, "are the weights averaged now and then instead (local SGD)?")
    return evidence


def accumulates(observed: dict) -> bool:
    """Whether steps are made of several passes; where each is one, nothing is exchanged at all."""
    return (observed.get("gradient") or {}).get("passes", 2) > 1


MISTAKE = Mistake(
    "unsynced-accumulation",
    "the last pass of an accumulation is not exchanged",
    "each rank steps with its own sum of gradients, and the replicas go apart",
    "run the last forward before a step outside no_sync; if you set require_backward_grad_sync yourself, set it before "
    "that forward, where DistributedDataParallel reads it",
    detect,
    needs="passes",
    watched=True,
    explains=("drift", "gradient-sum", "no-exchange", "other-replica"),
)
