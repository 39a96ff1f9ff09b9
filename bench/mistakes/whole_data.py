from bench.mistakes.base import SEVERAL_PROCESSES, Evidence, Lab, mistake
from bench.mistakes.measures import METRIC, Measure, of_epoch, of_observed

FEW, FEW_OF = 2, 0.1  # images that a sampler may pad an epoch with; their share of the repeated ones


ALIKE = 0.9  # share of the steps in which all ranks draw the same examples


def whole_order(script, num_images: int, seed: int, epoch: int):
    """``DataLoader(data, shuffle=True)`` on every rank: each walks its own permutation of the whole set."""
    ranks = [script.permutation(num_images, seed + rank, epoch) for rank in range(script.topology.world_size)]
    return script.interleaved(ranks)


def whole_epoch_images(script, num_images: int) -> int:
    """len(loader) is N times too large, and so are the epoch and the schedule made from it."""
    return num_images * script.topology.world_size


def repeated(data: dict, evidence: str, whole: bool, epoch: dict) -> str | Evidence:
    """The mistake that repeated examples indicate. whole: an epoch has more draws than there are examples."""
    sampler = data.get("sampler") or {}
    if "sampler" in data:  # of a script; a run of this bench draws as its mode does
        if data.get("alike", 0) > ALIKE and not whole and not sampler.get("repeats"):
            return Evidence(
                f"{evidence}: each on several ranks", title="all ranks draw the same examples",
                consequence="N ranks do the work of one, and the other ranks' examples are never used",
                remedy="give each rank its share: pass its own rank to DistributedSampler, or take every N-th example "
                       "from the rank-th on",
            )  # fmt: skip
        if draws_again(data, epoch):
            kind = sampler.get("kind", "the sampler")
            return Evidence(
                evidence, f"is {kind} intended to draw with replacement, or an example several times?",
                "a rank draws the same example repeatedly",
                "an epoch contains some examples several times and others not at all",
                "use a sampler without replacement: DistributedSampler",
            )  # fmt: skip
    if not whole and epoch and epoch["repeated"] > 2 * data["global_batch"]:
        return overlap(f"{evidence}; {epoch['never']} were not drawn")
    return evidence


def overlap(evidence: str) -> Evidence:
    return Evidence(
        evidence, title="shards that overlap",
        consequence="examples in several ranks' shards count several times, and others are never used",
        remedy="cut all ranks' shards from one order: shuffle with the same seed on all ranks, then cut",
    )  # fmt: skip


def draws_again(data: dict, epoch: dict) -> bool:
    sampler, again = data.get("sampler") or {}, epoch.get("by_one_rank", 0)
    often = again > FEW and again > FEW_OF * epoch.get("repeated", 0)
    return bool(sampler.get("replacement") or sampler.get("repeats") or often)


MORE_THAN_ONCE = of_observed("data", "shared_in_a_step", scale=100)


@mistake(
    "every rank reads the whole data set",
    "an epoch on N ranks is N epochs, and a global batch contains examples more than once",
    "give each rank its share: DistributedSampler, or every N-th example",
    needs="data",
    overrides={"order": whole_order, "epoch_images": whole_epoch_images},
    requires=(SEVERAL_PROCESSES,),
    lab=Lab(
        "What is an epoch when every rank reads everything?",
        "An epoch takes N times as long as it should, the loader is N times as long, and the accuracy of an epoch is "
        "inflated: N epochs of work went into it.",
        (
            Measure("examples trained on in the first epoch", of_epoch("images_seen", 0), "up", ".0f"),
            Measure("% of a step's examples that are in it more than once", MORE_THAN_ONCE),
            METRIC,
        ),
        changes=("images of the first steps", "warm-up and timed steps"),
        shows="metric",
    ),
    case="wrong/whole_shuffle_true",
)
def whole_data(observed: dict) -> str | Evidence | None:
    """Repeated draws on only one rank may be intended."""
    data = observed.get("data", {}) if observed.get("world_size") != 1 else {}
    shared = data.get("shared_in_a_step") or 0
    for number, epoch in enumerate(data.get("epochs", []), 1):
        batch, images = data["global_batch"], data["num_images"]
        whole = epoch["draws"] >= images + batch
        if whole or epoch["repeated"] > 2 * batch:
            evidence = (
                f"epoch {number} drew {epoch['draws']} times from {images} examples: {epoch['repeated']} of "
                f"them more than once, up to {epoch['most']} times"
            )
            return repeated(data, evidence, whole, epoch)
    if shared > 0:
        epoch = (data.get("epochs") or [{}])[0]
        return repeated(data, f"{100 * shared:.1f} % of a step's examples are in it more than once", False, epoch)
    examples = data.get("shared_examples") or {}
    if examples.get("shared"):
        evidence = f"{examples['shared']} of the {examples['of']} examples of the first batches are on several ranks"
        return evidence if examples["shared"] > ALIKE * examples["of"] else overlap(evidence)
    return None
