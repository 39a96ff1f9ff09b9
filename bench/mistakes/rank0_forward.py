"""A wrapped model that one rank alone evaluates: ``if rank == 0: model(images)`` with DistributedDataParallel."""

from bench.mistakes.base import Mistake


def detect(observed: dict) -> str | None:
    """Ranks that hang are asked the same. Without buffers to broadcast nothing waits in a forward."""
    forwards = observed.get("forwards") or {}
    if not any(forwards.get("buffers", [True])):
        return None
    places = [place for place in (observed.get("hang") or {}).get("where") or [] if place and "trains" in place]
    evaluates, trains = ([place[key] for place in places] or forwards.get(key, []) for key in ("evaluates", "trains"))
    if any(evaluates) and (min(evaluates) == 0 or (forwards and differ(evaluates))):
        return f"the wrapped model was called in evaluation {counts(evaluates)} times, by rank"
    batches = [tuple(taken) for taken in (observed.get("steps") or {}).get("batches", [])]
    steps = [(*place["epochs"], place["taken"]) for place in places] or batches
    if differ(trains) and steps and not differ(steps):
        return f"the wrapped model was called in training {counts(trains)} times, by rank, in equally many steps"
    return None


def differ(numbers: list) -> bool:
    return len(set(numbers)) > 1


def counts(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8]))


MISTAKE = Mistake(
    "rank0-forward",
    "a wrapped model evaluated on one rank alone",
    "DistributedDataParallel broadcasts buffers in its forward: one rank alone waits, or is answered by another call",
    "evaluate on every rank, or the plain model: model.module(images)",
    detect,
    needs="forwards",
    watched=True,
    explains=("rank0-collective",),
)
