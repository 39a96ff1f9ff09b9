"""Replicas that do not start from the same weights.

``DistributedDataParallel`` broadcasts rank 0's weights at construction, Horovod's ``broadcast_parameters`` does when it
is called. A script that forgets it, or that averages gradients by hand, has a model of its own on every rank.
"""

from bench.mistakes import outside
from bench.mistakes.base import Finding, Lab, Mistake
from bench.mistakes.measures import LOSS, METRIC, Measure


def detect(observed: dict) -> str | Finding | None:
    """Replicas whose parameters differ before the first step. Where nothing is exchanged they do."""
    start = observed.get("start", {}).get("parameters", [])
    if not observed.get("exchanges", True) or len(set(start)) <= 1:
        return None
    if names := outside.apart(observed):
        return outside.finding(
            MISTAKE.name, OUTSIDE, f"before the first step these differ: {outside.some(names)}", observed
        )
    return f"{sets_of(start)} before the first step"


def sets_of(hashes: list[str]) -> str:
    names = ", ".join([digest[:8] for digest in hashes[:4]] + ["…"] * (len(hashes) > 4))
    return f"{len(set(hashes))} different sets of weights on {len(hashes)} ranks (sha256 {names})"


def different_models(record, observed) -> int | None:
    return len({part.final_weights_sha256 for part in record.samples}) or None


OUTSIDE = "parameters outside the model that do not start the same on all ranks"

MISTAKE = Mistake(
    "unsynced-init",
    "replicas that do not start from the same weights",
    "every rank trains a model of its own with the gradients of all, and the one that is saved suits none of them",
    "wrap the model in DistributedDataParallel, which broadcasts weights unless init_sync=False; under Horovod call "
    "broadcast_parameters before the first step",
    detect,
    needs="start",
    explains=("drift",),
    switch={"init_sync": False},
    lab=Lab(
        "What do ranks train that start from different weights?",
        "Nothing complains. The loss falls more slowly, and the accuracy of the saved model is below what the loss "
        "promises; each rank's weights have another hash.",
        (Measure("different sets of weights at the end", different_models, "up", ".0f"), METRIC, LOSS),
        workload={"per_device_batch": 48},
        changes=("initial weights",),
        shows="metric",
    ),
)
