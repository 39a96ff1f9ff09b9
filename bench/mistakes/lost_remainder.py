import math

from bench.mistakes.base import SEVERAL_PROCESSES, Evidence, Lab, mistake
from bench.mistakes.measures import METRIC, Measure, of_observed
from bench.mistakes.whole_data import draws_again, whole_data

BY_CHANCE = 1e-3  # images lost in every epoch are a mistake if their probability by chance is lower than this


def cut_order(script, num_images: int, seed: int, epoch: int):
    """``share = len(data) // N``, cut once to whole batches. Each rank shuffles its shard."""
    ranks = script.topology.world_size
    share, kept = num_images // ranks, script.epoch_images(num_images) // ranks
    return script.interleaved([rank * share + script.permutation(kept, seed + rank, epoch) for rank in range(ranks)])


def cut_epoch_images(script, num_images: int) -> int:
    batch = script.config.global_batch // script.topology.world_size  # of one rank
    steps = num_images // script.topology.world_size // batch
    if not steps:
        raise script.impossible(f"leaves no examples: a rank's shard is smaller than a batch of {batch}")
    return steps * script.config.global_batch


NOT_DRAWN = (
    "examples that are never drawn",
    "the model never trains on them",
    "draw from the whole data set, with as many shards as ranks",
)


def chance(lost: int, num_images: int, never: list[int]) -> float:
    """An upper bound on the chance that all epochs miss ``lost`` or more images, when each misses its number at random.

    With n images and l_e missed by epoch e, an image is missed by all with probability p = prod(l_e / n), and the
    expected number of such images is m = n p. The probability of k or more is at most m^k / k! (Markov's inequality on
    the number of k-subsets), and at most exp(-n KL(k/n, p)) (Hoeffding's bound, also valid without replacement).

    >>> round(chance(4, 100, [4, 4]), 9), chance(1, 100, [20, 20]), chance(40, 100, [40, 40]) < 1e-6
    (2.7307e-05, 1.0, True)
    """
    each, share = math.prod(count / num_images for count in never), lost / num_images
    few = lost * math.log(each * num_images) - math.lgamma(lost + 1)
    if not each < share < 1:
        return math.exp(min(0.0, few))
    apart = share * math.log(share / each) + (1 - share) * math.log((1 - share) / (1 - each))
    return math.exp(min(0.0, few, -num_images * apart))


@mistake(
    "shards cut so that the remainder of the data is lost",
    "some examples are never used, in any epoch",
    "shuffle before cutting, and distribute the remainder over the ranks",
    needs="data epochs",
    overrides={"order": cut_order, "epoch_images": cut_epoch_images},
    requires=(SEVERAL_PROCESSES,),
    lab=Lab(
        "How many examples are never seen?",
        "An epoch is a few steps shorter than examples over global batch.",
        (Measure("examples never seen in any epoch", of_observed("data", "never_seen"), "up", ".0f"), METRIC),
        workload={"per_device_batch": 48},
        changes=("images of the first steps", "warm-up and timed steps"),
    ),
    case="wrong/remainder_cut_in_pieces",
)
def lost_remainder(observed: dict) -> str | Evidence | None:
    """An epoch may leave out less than a global batch, other examples each time; more may be held out on purpose."""
    data = observed.get("data", {})
    epochs = data.get("epochs", [])
    if not epochs or whole_data(observed):
        return None
    batch, images, lost = data["global_batch"], data["num_images"], data["never_seen"]
    often = len(epochs) > 1 and lost and chance(lost, images, [epoch["never"] for epoch in epochs]) < BY_CHANCE
    none = f"{lost} of {images} examples were not drawn in any of {len(epochs)} epochs"
    never = max(epoch["never"] for epoch in epochs)
    part = f"an epoch did not draw {never} of {images} examples, at least a global batch ({batch})"
    if "sampler" not in data:
        return part if never >= batch else none if often else None
    if often:
        return (
            none if lost < batch + observed.get("world_size", 1) else Evidence(none, "are they held out?", *NOT_DRAWN)
        )
    if never >= batch and not data.get("own_sets") and not any(draws_again(data, epoch) for epoch in epochs):
        return Evidence(part, "is an epoch intended to use only a part of the examples?", *NOT_DRAWN)
    return None
