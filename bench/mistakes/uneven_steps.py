"""Ranks with different numbers of steps, or of images per step: shards of different lengths, batches of different
sizes."""

from bench.mistakes.base import Finding, Mistake

BATCHES = (
    "the mean over ranks gives each rank's gradient the same weight: an example in a smaller batch counts for more",
    "give all ranks batches of one size, or weigh each rank's loss with its share of the examples",
)
STOPPED = (
    "the ranks that still train wait for a gradient that the others do not send, and the job hangs",
    "end the training on all ranks in the same step: decide on one rank, and broadcast the decision",
)


def detect(observed: dict) -> str | Finding | None:
    """What ranks do under Join, or where no wrapper exchanges every step, only the script's author can judge."""
    places = [place for place in (observed.get("hang") or {}).get("where") or [] if place and "epochs" in place]
    for number in range(max((len(place["epochs"]) for place in places), default=0)):
        ended = [place["epochs"][number] for place in places if len(place["epochs"]) > number]
        within = [place["taken"] for place in places if len(place["epochs"]) == number]
        if len(set(ended)) > 1 or (within and max(within) > min(ended)):
            return f"epoch {number + 1} ended on a rank after {min(ended)} batches, and another one got more of them"
    if evidence := left_alone({rank: place for rank, place in enumerate(places) if "ended" not in place}):
        return Finding(MISTAKE.name, MISTAKE.title, evidence, *STOPPED)
    steps = observed.get("steps", {})
    for number, batches in enumerate(zip(*steps.get("batches", []), strict=False), 1):
        if len(set(batches)) > 1:
            evidence = f"epoch {number} has {listed(batches)} batches on the ranks"
            if steps["joined"]:
                return asked(f"{evidence}, under Join", "may a rank end before the others?")
            asks = "do the ranks exchange so that each may take its own number of steps?"
            return evidence if steps["wrapped"] else asked(evidence, asks)
    images = steps.get("images", [])
    if len(set(images)) > 1 and None not in images:
        evidence = f"a step has {listed(images)} examples on the ranks"
        return Finding(MISTAKE.name, MISTAKE.title, evidence, *BATCHES)
    return None


def left_alone(places: dict[int, dict]) -> str:
    """Ranks that have left their training loop while others wait in it; "" where it is not so. A rank that is behind
    the loop, with the others between two epochs, may wait as well for a collective that they do not enter."""
    left = {rank: place for rank, place in places.items() if place.get("left")}
    most = max(((len(place["epochs"]), place["taken"]) for place in left.values()), default=None)
    within = [
        rank
        for rank, place in places.items()
        if place.get("left") is False
        and left
        and (place["collective"] is None or (len(place["epochs"]), place["taken"]) > most)
    ]
    if not within:
        return ""
    told = [f"rank {rank} after {len(place['epochs'])} epochs" for rank, place in list(left.items())[:3]]
    waits = places[within[0]]
    return (f"training was left by {', '.join(told)}; rank {within[0]} still trains, and waits in epoch "
            f"{len(waits['epochs']) + 1} at {waits['file']}:{waits['line']}")  # fmt: skip


def asked(evidence: str, question: str) -> Finding:
    consequence = "the ranks' examples count differently: those of a longer shard take more steps, or have steps alone"
    remedy = "shards of one length, where that is not meant"
    return Finding(MISTAKE.name, MISTAKE.title, evidence, consequence, remedy, question)


def listed(numbers) -> str:
    """The first numbers of a list by rank.

    >>> listed([8, 4, 4, 4, 4])
    '8, 4, 4, 4, …'
    """
    return ", ".join([str(number) for number in numbers[:4]] + ["…"] * (len(numbers) > 4))


MISTAKE = Mistake(
    "uneven-steps",
    "ranks with different numbers of steps, or of examples per step",
    "from the end of the shorter epoch on, a rank's step is exchanged with another one's, or waits for ever",
    "give all ranks the same number of batches (DistributedSampler, drop_last), or train under Join",
    detect,
    needs="steps",
    watched=True,
    explains=("rank0-collective",),
)
