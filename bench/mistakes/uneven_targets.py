from bench.mistakes.base import Evidence, mistake
from bench.mistakes.uneven_steps import uneven_steps

UNEVEN = 1.1  # of the weight of a target on two ranks, from where on it is a question


@mistake(
    "means over different numbers of targets, averaged over ranks",
    "the targets of a rank with few of them weigh more, and the gradient changes with the number of ranks",
    'divide the sum of the losses (reduction="sum") by the number of targets of all ranks (all_reduce), and multiply '
    "it by the number of ranks, because DistributedDataParallel divides by it",
    needs="targets",
    case="wrong/targets_padding",
)
def uneven_targets(observed: dict) -> Evidence | None:
    """A loss that each rank divides by its own number of targets. Only if the ranks have batches of one length."""
    targets = observed.get("targets")
    if not targets or targets["ratio"] <= UNEVEN or uneven_steps(observed):
        return None
    counts = ", ".join(f"{count:.3g}" for count in targets["counts"][:8])
    return Evidence(
        f"a step's losses were over {counts} targets on average, by rank, and a target weighed "
        f"{targets['ratio']:.3g} times as much on one rank as on another (median of {targets['steps']} steps; "
        f"{targets['most']:.3g} times at most)",
        "is each rank's loss meant to be the mean over its own targets?",
    )
