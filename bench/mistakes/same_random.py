"""The same random numbers in the steps of all ranks: ``torch.manual_seed(seed)`` everywhere, and dropout draws from
it."""

from bench.mistakes.base import Mistake, Question


def detect(observed: dict) -> Question | None:
    streams = observed.get("random", {}).get("streams", [])
    kinds = len(set(streams))
    if kinds == len(streams):
        return None
    names = ", ".join(observed["random"].get("generators", []))
    return Question(
        f"in a step {len(streams)} ranks draw from {kinds} random streams ({names})",
        "do the ranks draw a number that all must have, as for a model that is cut over ranks, or for all examples?",
    )


MISTAKE = Mistake(
    "same-random",
    "the same random numbers in a step of every rank",
    "all ranks have the same dropout mask or noise: N ranks vary as little as one",
    "seed by rank once the model is built: torch.manual_seed(seed + rank)",
    detect,
    needs="random",
    watched=True,
)
