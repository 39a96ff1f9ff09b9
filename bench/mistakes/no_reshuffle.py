from bench.mistakes.base import SECOND_EPOCH, Evidence, Lab, mistake, numbers
from bench.mistakes.measures import LOSS, METRIC, Measure, of_observed

SAME_ORDER = 0.2  # of an epoch's neighbours; in a reshuffled epoch about one pair stays together


SAME = 0.99  # of an epoch's neighbours: the order is the same


def order_of_epoch_0(script, num_images: int, seed: int, epoch: int):
    """Without ``sampler.set_epoch(epoch)`` the sampler stays in epoch 0. Random crops still differ by epoch."""
    return script.permutation(num_images, seed, 0)


# Title, consequence, remedy.
FIXED_ORDER = (
    "epochs in the same order",
    "examples follow each other in the same order in every epoch",
    "shuffle in each epoch",
)


PERSISTENT = (
    "persistent workers that do not receive the new epoch",
    "the workers keep their copy of the data set from the first epoch, so every epoch has the same order",
    "share the epoch with the workers (self.epoch = torch.zeros((), dtype=torch.long).share_memory_(), filled in "
    "set_epoch and read in __iter__), or use persistent_workers=False; then call set_epoch before each epoch",
)


NEIGHBOURS = Measure(
    "% of the second epoch's neighbours that were neighbours in the first",
    of_observed("data", "same_neighbours", scale=100), "up", ".1f",
)  # fmt: skip


@mistake(
    "a sampler without set_epoch",
    "every epoch has the same examples in the same order and the same batches",
    "call sampler.set_epoch(epoch) before each epoch",
    needs="data same_neighbours",
    overrides={"order": order_of_epoch_0},
    requires=(SECOND_EPOCH,),
    lab=Lab(
        "What does a sampler without set_epoch draw in the second epoch?",
        "The training loss has the same ups and downs in every epoch: batch k is the same examples each time.",
        (NEIGHBOURS, METRIC, LOSS),
        workload={"per_device_batch": 48},
        changes=("images of the first steps",),
    ),
    case="wrong/reshuffle_no_set_epoch",
)
def no_reshuffle(observed: dict) -> str | Evidence | None:
    """In a new order about one pair stays together, so a set of a few images is not checked."""
    data = observed.get("data", {})
    same = data.get("same_neighbours")
    if same is None or same <= SAME_ORDER or same * data["num_images"] <= 10:
        return None
    evidence = f"{100 * same:.1f} % of the second epoch's neighbours were neighbours in the first"
    if "sampler" not in data:  # a run of this bench
        return evidence
    sampler = data["sampler"] or {}
    told = [epoch for epoch in sampler.get("epochs", []) if epoch is not None]
    if sampler.get("persistent") and (sampler["set_epoch"] or len(set(told)) > 1):
        here = f"; in this process {sampler['kind']} was in epoch {numbers(told)}" if told else ""
        return Evidence(evidence + here, "", *PERSISTENT)
    if same < SAME:
        return Evidence(evidence, "are batches or blocks of examples kept together on purpose?", *FIXED_ORDER)
    if not sampler.get("shuffles"):
        kind = sampler.get("kind", "its loader")
        return Evidence(evidence, f"is the order fixed on purpose ({kind})?", *FIXED_ORDER)
    if sampler["set_epoch"] and len(set(told)) <= 1:
        return evidence + (f" ({sampler['kind']} was in epoch {told[0]} each time)" if told else "")
    called = f"; set_epoch was called with {numbers(told)}" if sampler["set_epoch"] else ""
    return Evidence(
        evidence + called, title="a sampler that shuffles the same way in every epoch",
        remedy="make the order depend on the epoch: seed its generator with seed + epoch, once per epoch",
    )  # fmt: skip
