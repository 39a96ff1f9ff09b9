"""Replicas that do not start from the same weights.

``DistributedDataParallel`` broadcasts rank 0's weights at construction, Horovod's ``broadcast_parameters`` does when it
is called. A script that forgets it, or that averages gradients by hand, has a model of its own on every rank.
"""

from bench.mistakes.base import Finding, Lab, Mistake
from bench.mistakes.measures import LOSS, TOP1, Measure

DRIFT = (
    "the replicas are different models from here on, and the one that is saved is none that was validated together",
    "let every gradient be exchanged, and step on every rank with the same gradients and the same learning rate",
)


def detect(observed: dict) -> str | Finding | None:
    """Replicas whose parameters differ before the first step, or at the end. Where nothing is exchanged they do."""
    if not observed.get("exchanges", True):
        return None
    start, end = (observed.get(when, {}).get("parameters", []) for when in ("start", "end"))
    if len(set(start)) > 1:
        return f"{sets_of(start)} before the first step"
    if len(set(end)) > 1:
        evidence = f"{sets_of(end)} at the end, from one set before the first step"
        return Finding(MISTAKE.name, MISTAKE.title, evidence, *DRIFT)
    return None


def sets_of(hashes: list[str]) -> str:
    """How many kinds of weights there are on how many ranks."""
    names = ", ".join([digest[:8] for digest in hashes[:4]] + ["…"] * (len(hashes) > 4))
    return f"{len(set(hashes))} different sets of weights on {len(hashes)} ranks (sha256 {names})"


def different_models(record, observed) -> int | None:
    """How many different models the ranks hold at the end."""
    return len({part.final_weights_sha256 for part in record.samples}) or None


MISTAKE = Mistake(
    "unsynced-init",
    "replicas that do not start from the same weights",
    "every rank trains a model of its own with the gradients of all, and the one that is saved suits none of them",
    "ddp: leave init_sync on; horovod: call broadcast_parameters before the first step",
    detect,
    needs="start",
    switch={"init_sync": False},
    lab=Lab(
        "What do ranks train that start from different weights?",
        "Nothing complains. The loss falls more slowly, and the accuracy of the saved model is below what the loss "
        "promises; each rank's weights have another hash.",
        (Measure("different sets of weights at the end", different_models, "up", ".0f"), TOP1, LOSS),
        workload={"per_device_batch": 48},
        changes=("initial weights",),
        shows="top1",
    ),
)
