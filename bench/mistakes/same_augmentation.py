"""The same augmentation stream on every rank: ``torch.manual_seed(seed)`` everywhere, and the transforms draw from
it."""

from bench.mistakes.base import SEVERAL_PROCESSES, Lab, Mistake, Question, Requirement
from bench.mistakes.measures import LOSS, METRIC, Measure


def prepare_data(script, train_set) -> None:
    """The k-th image that a rank draws gets the k-th numbers of one stream, whichever rank it is."""
    inner = getattr(train_set, "dataset", train_set)  # behind a simulated storage
    inner.augmentation_seeds = script.seeds_by_place(len(train_set))


def detect(observed: dict) -> str | Question | None:
    """Two ranks whose augmentation draws the same random numbers. A data set that draws its examples itself may shuffle
    with them."""
    streams = observed.get("augmentation", {}).get("streams", [])
    kinds = len(set(streams))
    if kinds == len(streams):
        return None
    names = ", ".join(observed["augmentation"].get("generators", []))
    evidence = (
        f"{len(streams)} ranks draw their crops and flips from {kinds} random streams{f' ({names})' * bool(names)}"
    )
    if observed["augmentation"].get("of_a_stream"):
        return Question(evidence, "are the numbers those of an order that all ranks share, and not of augmentation?")
    return evidence


def different_streams(record, observed) -> int | None:
    """Different streams of random crops among the ranks."""
    found = observed.get("augmentation", {}).get("streams")
    return None if found is None else len(set(found))


MISTAKE = Mistake(
    "same-augmentation",
    "the same augmentation stream on every rank",
    "the k-th images of all ranks get the same crop and flip: a global batch has less variety",
    "seed the augmentation by rank and by loader worker, or by the example",
    detect,
    needs="augmentation",
    overrides={"prepare_data": prepare_data},
    requires=(SEVERAL_PROCESSES, Requirement("AUGMENT=1", lambda c: c.augment is not False)),
    lab=Lab(
        "How many different random crops are in a global batch?",
        "Nothing in a single run. The ranks' images get the same crops and flips, and N ranks augment like one.",
        (Measure("different streams of random crops", different_streams, "down", ".0f"), METRIC, LOSS),
        workload={"augment": True, "per_device_batch": 48},
    ),
)
