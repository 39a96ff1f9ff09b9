"""A loss that each rank divides by its own number of targets: padding, masks, boxes. DDP averages these means."""

from bench.mistakes import uneven_steps
from bench.mistakes.base import Mistake, Question

UNEVEN = 1.1  # of the weight of a target on two ranks, from where on it is a question


def detect(observed: dict) -> Question | None:
    """Only where the ranks have batches of the same length."""
    targets = observed.get("targets")
    if not targets or targets["ratio"] <= UNEVEN or uneven_steps.detect(observed):
        return None
    counts = ", ".join(f"{count:.3g}" for count in targets["counts"][:8])
    return Question(
        f"a step's losses were over {counts} targets on average, by rank, and a target weighed "
        f"{targets['ratio']:.3g} times as much on one rank as on another (median of {targets['steps']} steps; "
        f"{targets['most']:.3g} times at most)",
        "is each rank's loss meant to be the mean over its own targets?",
    )


MISTAKE = Mistake(
    "uneven-targets",
    "means over different numbers of targets, averaged over ranks",
    "the targets of a rank with few of them weigh more, and the gradient changes with the number of ranks",
    'divide the sum of the losses (reduction="sum") by the number of targets of all ranks (all_reduce), and multiply '
    "it by the number of ranks, because DistributedDataParallel divides by it",
    detect,
    needs="targets",
    watched=True,
)
