from bench.mistakes.base import mistake, numbers


@mistake(
    "a wrapped model evaluated on only one rank",
    "DistributedDataParallel broadcasts buffers in its forward: a single rank waits, or gets the "
    "broadcast of another call",
    "evaluate on every rank, or the plain model: model.module(images)",
    needs="forwards",
    explains=("rank0-collective",),
    case="wrong/forward_rank0_batch_norm",
)
def rank0_forward(observed: dict) -> str | None:
    """Also judges ranks that hang. Without buffers to broadcast, a forward does not wait."""
    forwards = observed.get("forwards") or {}
    if not any(forwards.get("buffers", [True])):
        return None
    places = [place for place in (observed.get("hang") or {}).get("where") or [] if place and "trains" in place]
    evaluates, trains = ([place[key] for place in places] or forwards.get(key, []) for key in ("evaluates", "trains"))
    if any(evaluates) and (min(evaluates) == 0 or (forwards and len(set(evaluates)) > 1)):
        return f"calls of the wrapped model in evaluation, by rank: {numbers(evaluates[:8])}"
    batches = [tuple(taken) for taken in (observed.get("steps") or {}).get("batches", [])]
    steps = [(*place["epochs"], place["taken"]) for place in places] or batches
    if len(set(trains)) > 1 and len(set(steps)) == 1:
        return f"calls of the wrapped model in training, by rank: {numbers(trains[:8])}, in the same number of steps"
    return None
