"""Shards cut so that the remainder of the data is lost: ``mine = range(rank * share, (rank + 1) * share)``."""

import math

from bench.mistakes import whole_data
from bench.mistakes.base import SEVERAL_PROCESSES, Lab, Mistake
from bench.mistakes.measures import TOP1, Measure, of_observed

BY_CHANCE = 1e-3  # images lost in every epoch are a finding where chance does it less often than this


def order(script, num_images: int, seed: int, epoch: int):
    """``share = len(data) // N``, cut to whole batches once: what is left over is in no rank's shard, in no epoch. Each
    rank shuffles its shard."""
    ranks = script.topology.world_size
    share, kept = num_images // ranks, script.epoch_images(num_images) // ranks
    return script.interleaved([rank * share + script.permutation(kept, seed + rank, epoch) for rank in range(ranks)])


def epoch_images(script, num_images: int) -> int:
    """Whole batches of every rank's shard."""
    batch = script.config.global_batch // script.topology.world_size  # of one rank
    steps = num_images // script.topology.world_size // batch
    if not steps:
        raise script.impossible(f"leaves no image: a rank's shard fills no batch of {batch}")
    return steps * script.config.global_batch


def detect(observed: dict) -> str | None:
    """Images that no epoch draws. An epoch may leave out less than a global batch, others each time."""
    data = observed.get("data", {})
    epochs = data.get("epochs", [])
    if not epochs or whole_data.detect(observed):
        return None
    never = max(epoch["never"] for epoch in epochs)
    if never >= data["global_batch"]:
        return (
            f"an epoch never drew {never} of {data['num_images']} images, a global batch of {data['global_batch']} or "
            "more"
        )
    lost, images = data["never_seen"], data["num_images"]
    if len(epochs) > 1 and lost and chance(lost, images, [epoch["never"] for epoch in epochs]) < BY_CHANCE:
        return f"{lost} of {images} images were drawn in none of {len(epochs)} epochs"
    return None


def chance(lost: int, num_images: int, never: list[int]) -> float:
    """An upper bound on the chance that all epochs miss ``lost`` or more images, when each misses its number at random.

    With n images and l_e missed by epoch e, m = n x prod(l_e / n) are expected to be missed by all, and the chance of k
    or more is at most m^k / k!: Markov's inequality on the number of k-subsets of them.

    >>> round(chance(4, 100, [4, 4]), 9), chance(1, 100, [20, 20])
    (2.7307e-05, 1.0)
    """
    expected = math.log(num_images) + sum(math.log(count / num_images) for count in never)
    return math.exp(min(0.0, lost * expected - math.lgamma(lost + 1)))


MISTAKE = Mistake(
    "lost-remainder",
    "shards cut so that the remainder of the data is lost",
    "some images are never seen, in any epoch",
    "shuffle before cutting, and share the remainder out",
    detect,
    needs="data epochs",
    overrides={"order": order, "epoch_images": epoch_images},
    requires=(SEVERAL_PROCESSES,),
    lab=Lab(
        "How many images are never seen?",
        "An epoch is a few steps shorter than images over global batch.",
        (Measure("images never seen in any epoch", of_observed("data", "never_seen"), "up", ".0f"), TOP1),
        workload={"per_device_batch": 48},
        changes=("images of the first steps", "warm-up and timed steps"),
    ),
)
