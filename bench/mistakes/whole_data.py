"""Every rank reads the whole data set: a ``DataLoader`` with ``shuffle=True`` and no ``DistributedSampler``."""

from bench.mistakes.base import SEVERAL_PROCESSES, Lab, Mistake
from bench.mistakes.measures import TOP1, Measure, of_epoch, of_observed


def order(script, num_images: int, seed: int, epoch: int):
    """``DataLoader(data, shuffle=True)`` on every rank: each walks its own permutation of the whole set."""
    ranks = [script.permutation(num_images, seed + rank, epoch) for rank in range(script.topology.world_size)]
    return script.interleaved(ranks)


def epoch_images(script, num_images: int) -> int:
    """len(loader) is N times what it should be, and so are the epoch and the schedule made of it."""
    return num_images * script.topology.world_size


def detect(observed: dict) -> str | None:
    """Epochs of more draws than images, images drawn again and again in an epoch, or an image twice in one step."""
    data = observed.get("data", {})
    for number, epoch in enumerate(data.get("epochs", []), 1):
        if epoch["draws"] >= data["num_images"] + data["global_batch"] or epoch["repeated"] > 2 * data["global_batch"]:
            return (
                f"epoch {number} drew {epoch['draws']} times from {data['num_images']} images: {epoch['repeated']} of "
                f"them more than once, one {epoch['most']} times"
            )
    shared = data.get("shared_in_a_step") or 0
    return f"{100 * shared:.1f} % of a step's images are there more than once" if shared > 0 else None


MISTAKE = Mistake(
    "whole-data",
    "every rank reads the whole data set",
    "an epoch on N ranks is N epochs, and a global batch holds images more than once",
    "give each rank its share: DistributedSampler, or every N-th image",
    detect,
    needs="data",
    overrides={"order": order, "epoch_images": epoch_images},
    requires=(SEVERAL_PROCESSES,),
    lab=Lab(
        "What is an epoch when every rank reads everything?",
        "An epoch takes N times as long as it should, the loader is N times as long, and the accuracy of an epoch is "
        "inflated: N epochs of work went into it.",
        (
            Measure("images trained on in the first epoch", of_epoch("images_seen", 0), "up", ".0f"),
            Measure(
                "% of a step's images that are in it more than once",
                of_observed("data", "shared_in_a_step", scale=100),
            ),
            TOP1,
        ),
        changes=("images of the first steps", "warm-up and timed steps"),
        shows="top1",
    ),
)
