from bench.mistakes.base import Evidence, mistake
from bench.mistakes.uneven_steps import uneven_steps

UNEVEN = 1.1  # ratio of a target's weight on two ranks; from here on it is a possible mistake


@mistake(
    "means over different numbers of targets, averaged over ranks",
    "targets on a rank with few of them have more weight, and the gradient changes with the number of ranks",
    'divide the sum of the losses (reduction="sum") by the number of targets of all ranks (all_reduce), and multiply '
    "it by the number of ranks, because DistributedDataParallel divides by it",
    needs="targets",
    case="wrong/targets_padding",
)
def uneven_targets(observed: dict) -> Evidence | None:
    """A loss that each rank divides by its own number of targets. Only if the ranks have batches of the same length."""
    targets = observed.get("targets")
    if not targets or targets["ratio"] <= UNEVEN or uneven_steps(observed):
        return None
    counts = ", ".join(f"{count:.3g}" for count in targets["counts"][:8])
    return Evidence(
        f"the ranks' losses average over {counts} targets per step, and a target's weight on one rank was "
        f"{targets['ratio']:.3g} times that on another (median of {targets['steps']} steps; maximum "
        f"{targets['most']:.3g} times)",
        "is each rank's loss intended to be the mean over its own targets?",
    )
