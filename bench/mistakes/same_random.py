from bench.mistakes.base import Evidence, mistake


@mistake(
    "the same random numbers in a step of every rank",
    "all ranks have the same dropout mask or noise: N ranks vary as little as one",
    "seed by rank once the model is built: torch.manual_seed(seed + rank)",
    needs="random",
    case="wrong/random_same_dropout",
)
def same_random(observed: dict) -> Evidence | None:
    streams = observed.get("random", {}).get("streams", [])
    kinds = len(set(streams))
    if kinds == len(streams):
        return None
    names = ", ".join(observed["random"].get("generators", []))
    return Evidence(
        f"in a step {len(streams)} ranks draw from {kinds} random streams ({names})",
        "do the ranks need the same random number, e.g. for a model sharded over the ranks, or for all examples?",
    )
