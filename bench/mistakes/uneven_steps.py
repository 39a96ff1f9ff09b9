from bench.mistakes.base import Evidence, mistake

# Consequence and remedy of each kind of uneven steps.
BATCHES = (
    "the mean over ranks gives each rank's gradient the same weight: an example in a smaller batch counts for more",
    "give all ranks batches of the same size, or weight each rank's loss by its share of the examples",
)


STOPPED = (
    "the ranks that still train wait for gradients that the others do not send, and the job hangs",
    "end the training on all ranks in the same step: decide on one rank and broadcast the decision",
)


SHARDS = (
    "the ranks' examples have different weights: a longer shard takes more steps, or the last steps by itself",
    "use shards of equal length, unless this is intended",
)


def early_leavers(places: dict[int, dict]) -> str:
    """Ranks that have left their training loop while others wait in it; "" if there are none. If the others are
    between two epochs, a rank after the loop may also wait for a collective that they do not enter."""
    left = {rank: place for rank, place in places.items() if place.get("left")}
    if not left:
        return ""
    most = max((len(place["epochs"]), place["taken"]) for place in left.values())
    for rank, place in places.items():
        beyond = place["collective"] is None or (len(place["epochs"]), place["taken"]) > most
        if place.get("left") is False and beyond:
            gone = [f"rank {other} after {len(where['epochs'])} epochs" for other, where in list(left.items())[:3]]
            return (f"these ranks left the training: {', '.join(gone)}; rank {rank} still trains, and waits in epoch "
                    f"{len(place['epochs']) + 1} at {place['file']}:{place['line']}")  # fmt: skip
    return ""


def first_values(values) -> str:
    return ", ".join([str(value) for value in values[:4]] + ["…"] * (len(values) > 4))


@mistake(
    "ranks with different numbers of steps, or of examples per step",
    "when one rank has ended its epoch, the others' steps are exchanged with a later step of it, or wait forever",
    "give all ranks the same number of batches (DistributedSampler, drop_last), or train under Join",
    needs="steps",
    explains=("rank0-collective",),
    case="wrong/uneven_batches",
)
def uneven_steps(observed: dict) -> str | Evidence | None:
    """Only the script's author can judge uneven steps under Join, or if no wrapper exchanges every step."""
    places = [place for place in (observed.get("hang") or {}).get("where") or [] if place and "epochs" in place]
    for number in range(max((len(place["epochs"]) for place in places), default=0)):
        ended = [place["epochs"][number] for place in places if len(place["epochs"]) > number]
        within = [place["taken"] for place in places if len(place["epochs"]) == number]
        if len(set(ended)) > 1 or (within and max(within) > min(ended)):
            return f"epoch {number + 1} ended on a rank after {min(ended)} batches, but another rank got more"
    if evidence := early_leavers({rank: place for rank, place in enumerate(places) if "ended" not in place}):
        return Evidence(evidence, "", "", *STOPPED)
    steps = observed.get("steps", {})
    for number, batches in enumerate(zip(*steps.get("batches", []), strict=False), 1):
        if len(set(batches)) > 1:
            evidence = f"the ranks have {first_values(batches)} batches in epoch {number}"
            if steps["joined"]:
                return Evidence(f"{evidence}, under Join", "may a rank end before the others?", "", *SHARDS)
            asks = "does the exchange allow each rank its own number of steps?"
            return evidence if steps["wrapped"] else Evidence(evidence, asks, "", *SHARDS)
    images = steps.get("images", [])
    if len(set(images)) > 1 and None not in images:
        return Evidence(f"the ranks have {first_values(images)} examples in a step", "", "", *BATCHES)
    return None
