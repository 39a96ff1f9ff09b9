from bench.mistakes.base import Evidence, Lab, mistake, some
from bench.mistakes.measures import LOSS, METRIC, Measure

OUTSIDE_CONSEQUENCE = "every rank trains its own values of these, and a checkpoint has only one rank's"


OUTSIDE_REMEDY = (
    "wrap the module that holds them in DistributedDataParallel as well, or broadcast them before the first step and "
    "average their gradients over the ranks before every step"
)


CUT_OVER_RANKS = "are they each rank's own on purpose, e.g. as its part of a layer sharded over the ranks?"


LOCAL_SGD = "are the weights averaged every few steps (local SGD)?"


def outside(title: str, evidence: str, observed: dict) -> Evidence:
    """Evidence about parameters that an optimizer trains and the model does not hold. A possible mistake if the ranks
    exchange something between forward and backward, as for a layer sharded over them."""
    gathers = (observed.get("gradient") or {}).get("gathers")
    return Evidence(evidence, CUT_OVER_RANKS if gathers else "", title, OUTSIDE_CONSEQUENCE, OUTSIDE_REMEDY)


def first_apart_outside(observed: dict) -> list[str]:
    """The parameters that are the first to differ by rank, if none of them is the model's."""
    weights = observed.get("weights") or {}
    layers = weights.get("layers", [])
    return layers if set(layers) <= set(weights.get("outside", [])) else []


def averaged(observed: dict) -> bool:
    """Whether diverged replicas became equal again, or torch's local SGD exchanges them."""
    gradient, weights = observed.get("gradient") or {}, observed.get("weights") or {}
    return gradient.get("kind") == "local SGD" or weights.get("together_again", False)


def different_models(record, observed) -> int | None:
    return len({part.final_weights_sha256 for part in record.samples}) or None


@mistake(
    "replicas that do not start from the same weights",
    "every rank trains a different model with the gradients of all, and the saved one is equal to none of the others",
    "wrap the model in DistributedDataParallel, which broadcasts weights unless init_sync=False; under Horovod call "
    "broadcast_parameters before the first step",
    needs="start",
    explains=("drift",),
    switch={"init_sync": False},
    lab=Lab(
        "What do ranks train that start from different weights?",
        "There is no error. The loss falls more slowly, and the accuracy of the saved model is below what the loss "
        "promises; each rank's weights have another hash.",
        (Measure("different sets of weights at the end", different_models, "up", ".0f"), METRIC, LOSS),
        workload={"per_device_batch": 48},
        changes=("initial weights",),
        shows="metric",
    ),
    case="wrong/init_averaged_by_hand",
)
def unsynced_init(observed: dict) -> str | Evidence | None:
    """Replicas whose parameters differ before the first step. If nothing is exchanged, they always do."""
    start = observed.get("start", {}).get("parameters", [])
    if not observed.get("exchanges", True) or len(set(start)) <= 1:
        return None
    if names := first_apart_outside(observed):
        title = "parameters outside the model that do not start the same on all ranks"
        return outside(title, f"these parameters differ between ranks before the first step: {some(names)}", observed)
    hashes = ", ".join([digest[:8] for digest in start[:4]] + ["…"] * (len(start) > 4))
    return f"{len(set(start))} different sets of weights on {len(start)} ranks (sha256 {hashes}) before the first step"
