"""Gradients that are not exchanged at all: a plain model under several processes, or ``model.module(x)``."""

from bench.mistakes import outside
from bench.mistakes.base import Finding, Mistake, Question
from bench.mistakes.drift import averaged


def detect(observed: dict) -> str | Finding | Question | None:
    """With Horovod's Adasum ranks do it by design: what is exchanged is the change of the weights."""
    gradient, ranks = observed.get("gradient") or {}, observed.get("world_size", 1)
    own = gradient.get("exchanged") is False and gradient.get("kind") != "Adasum"
    if ranks == 1 or not observed.get("exchanges", True):
        return None
    if not own:
        names = gradient.get("own")
        evidence = f"each of the {ranks} ranks steps with its own gradient of {outside.some(names or [])}"
        return outside.finding(MISTAKE.name, OUTSIDE, evidence, observed) if names else None
    evidence = f"each of the {ranks} ranks stepped with its own gradient, and no other's"
    if averaged(observed):
        return Question(evidence, "are the weights averaged now and then instead (local SGD)?")
    return evidence


OUTSIDE = "gradients of parameters outside the model that are not exchanged"

MISTAKE = Mistake(
    "no-exchange",
    "gradients that are not exchanged",
    "every rank trains a model of its own on its share of the data; one of them is kept, and the others' work is lost",
    "wrap the model in DistributedDataParallel and call the wrapper (not .module), or use hvd.DistributedOptimizer",
    detect,
    needs="gradient exchanged",
    watched=True,
    explains=("drift", "other-replica"),
)
