"""A sampler without set_epoch: ``for epoch in range(epochs): for batch in loader: …``."""

from bench.mistakes.base import SECOND_EPOCH, Lab, Mistake
from bench.mistakes.measures import LOSS, TOP1, Measure, of_observed

SAME_ORDER = 0.2  # of an epoch's neighbours; in a reshuffled epoch about one pair in all stays together


def order(script, num_images: int, seed: int, epoch: int):
    """Without ``sampler.set_epoch(epoch)`` the sampler stays in epoch 0. Random crops still differ by epoch."""
    return script.permutation(num_images, seed, 0)


def detect(observed: dict) -> str | None:
    """Neighbours of one epoch that are neighbours in the next. In a new order about one pair in all is, so a set of a
    few images is not judged."""
    data = observed.get("data", {})
    same = data.get("same_neighbours")
    if same is None or same <= SAME_ORDER or same * data["num_images"] <= 10:
        return None
    return f"{100 * same:.1f} % of the second epoch's neighbours were neighbours in the first"


MISTAKE = Mistake(
    "no-reshuffle",
    "a sampler without set_epoch",
    "every epoch has the same images in the same order and the same batches",
    "call sampler.set_epoch(epoch) before each epoch",
    detect,
    needs="data same_neighbours",
    overrides={"order": order},
    requires=(SECOND_EPOCH,),
    lab=Lab(
        "What does a sampler without set_epoch draw in the second epoch?",
        "The training loss has the same ups and downs in every epoch: batch k is the same images each time.",
        (
            Measure(
                "% of the second epoch's neighbours that were neighbours in the first",
                of_observed("data", "same_neighbours", scale=100), "up", ".1f",
            ),
            TOP1,
            LOSS,
        ),
        workload={"per_device_batch": 48},
        changes=("images of the first steps",),
    ),
)  # fmt: skip
