from bench.mistakes.base import mistake, numbers


@mistake(
    "CUDA contexts of several ranks on one GPU",
    "each context takes hundreds of MiB of that GPU, which runs out of memory first",
    'call torch.cuda.set_device(local_rank) before anything else that uses CUDA, and torch.load(…, map_location="cpu")',
    needs="contexts",
    case="gpu/one_for_all_ranks",
)
def extra_context(observed: dict) -> str | None:
    """A rank with a CUDA context on another GPU than its model's, e.g. after ``torch.load`` without map_location or
    without set_device; or models of several ranks on one GPU, although the machine has several."""
    contexts = observed.get("contexts") or {}
    if contexts.get("together"):
        return f"the models of ranks {numbers(contexts['together'])} are on one GPU, but the machine has others"
    found = [rank for rank, extra in enumerate(contexts.get("extra", [])) if extra]
    if not found:
        return None
    rank = found[0]
    own, extra, loaded = (contexts[key][rank] for key in ("own", "extra", "loaded"))
    trains, other = (", ".join(f"cuda:{index}" for index in indices) for indices in (own, extra))
    evidence = f"rank {rank} trains on {trains}, but also has a CUDA context on {other}"
    if len(found) > 1:
        evidence = f"{evidence} ({len(found)} ranks have one on another rank's GPU)"
    if set(loaded) & set(extra):
        return f"{evidence}: torch.load put tensors there"
    if contexts["current"][rank] in extra:
        return f"{evidence}: it is torch's current device"
    return evidence
