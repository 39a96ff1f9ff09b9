from bench.mistakes.base import Evidence, mistake, some
from bench.mistakes.gradient_sum import AVERAGED_INSTEAD
from bench.mistakes.unsynced_init import averaged, outside


@mistake(
    "gradients that are not exchanged",
    "every rank trains a separate model on its share of the data; one of them is kept, and the others' work is lost",
    "wrap the model in DistributedDataParallel and call the wrapper (not .module), or use hvd.DistributedOptimizer",
    needs="gradient exchanged",
    explains=("drift", "other-replica"),
    case="wrong/exchange_plain_model",
)
def no_exchange(observed: dict) -> str | Evidence | None:
    """With Horovod's Adasum each rank steps with its own gradient by design; it exchanges the change of the weights."""
    gradient, ranks = observed.get("gradient") or {}, observed.get("world_size", 1)
    if ranks == 1 or not observed.get("exchanges", True):
        return None
    if gradient.get("exchanged") is not False or gradient.get("kind") == "Adasum":
        names = gradient.get("own") or []
        title = "gradients of parameters outside the model that are not exchanged"
        evidence = f"each of the {ranks} ranks steps with its own gradient of {some(names)}"
        return outside(title, evidence, observed) if names else None
    evidence = f"each of the {ranks} ranks stepped with only its own gradient"
    return Evidence(evidence, AVERAGED_INSTEAD) if averaged(observed) else evidence
