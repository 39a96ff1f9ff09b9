from bench.mistakes.base import SEVERAL_PROCESSES, Evidence, Lab, Requirement, mistake
from bench.mistakes.measures import LOSS, METRIC, Measure

OF_A_STREAM = "do these numbers shuffle a common order of all ranks and workers, rather than augment?"


WITHIN = {  # key of what was observed -> title, evidence, consequence
    "workers": (
        "the same augmentation in several loader workers",
        "loader workers of one rank draw the same random numbers",
        "the examples of N workers get the same crops and flips: they vary as little as those of one worker",
    ),
    "again": (
        "the same augmentation in several epochs",
        "two epochs start with the same random numbers",
        "an epoch repeats the crops and flips of another one",
    ),
}


REMEDY = (
    "torch seeds every loader worker and epoch differently: in worker_init_fn seed other generators, and those of the "
    "data set, from torch.initial_seed(); do not seed with a constant at the start of an epoch"
)


def seeds_by_place(script, train_set) -> None:
    """The k-th image that a rank draws gets the k-th numbers of one stream, whichever rank it is."""
    inner = getattr(train_set, "dataset", train_set)  # inside a simulated storage
    inner.augmentation_seeds = script.seeds_by_place(len(train_set))


def different_streams(record, observed) -> int | None:
    found = observed.get("augmentation", {}).get("streams")
    return None if found is None else len(set(found))


@mistake(
    "the same augmentation stream on every rank",
    "the k-th images of all ranks get the same crop and flip: a global batch has less variety",
    "seed the augmentation by rank and by loader worker, or by the example",
    needs="augmentation",
    overrides={"prepare_data": seeds_by_place},
    requires=(SEVERAL_PROCESSES, Requirement("AUGMENT=1", lambda c: c.augment is not False)),
    lab=Lab(
        "How many different random crops are in a global batch?",
        "Nothing in a single run. The ranks' images get the same crops and flips, and N ranks augment like one.",
        (Measure("different streams of random crops", different_streams, "down", ".0f"), METRIC, LOSS),
        workload={"augment": True, "per_device_batch": 48},
    ),
    case="wrong/augmentation_same_seed",
)
def same_augmentation(observed: dict) -> str | Evidence | None:
    """An iterable data set may also shuffle with the same numbers."""
    seen = observed.get("augmentation", {})
    streams = seen.get("streams", [])
    kinds, asks = len(set(streams)), OF_A_STREAM if seen.get("of_a_stream") else ""
    within = [among for among in WITHIN if seen.get(among)]
    evidence = [f"{WITHIN[among][1]} ({', '.join(seen[among])})" for among in within]
    if kinds < len(streams):
        names = ", ".join(seen.get("generators", []))
        ranks = f"{len(streams)} ranks draw their crops and flips from {kinds} random streams"
        return Evidence("; ".join([f"{ranks} ({names})" if names else ranks, *evidence]), asks)
    if not within:
        return None
    title, _, consequence = WITHIN[within[0]]
    return Evidence("; ".join(evidence), asks, title, consequence, REMEDY)
