"""Ranks that also use another rank's GPU, mostly GPU 0: ``torch.load`` without map_location, or no set_device."""

from bench.mistakes.base import Mistake


def detect(observed: dict) -> str | None:
    """A rank with a CUDA context on a GPU that its model is not on; models of several ranks on one GPU of several."""
    contexts = observed.get("contexts") or {}
    if contexts.get("together"):
        ranks = ", ".join(map(str, contexts["together"]))
        return f"the models of ranks {ranks} are on one GPU, and the machine has others"
    found = [rank for rank, extra in enumerate(contexts.get("extra", [])) if extra]
    if not found:
        return None
    rank = found[0]
    own, extra, loaded = (contexts[key][rank] for key in ("own", "extra", "loaded"))
    evidence = f"rank {rank} trains on {named(own)}, and has a CUDA context on {named(extra)}, too"
    if len(found) > 1:
        evidence = f"{evidence} ({len(found)} ranks have one on a GPU that is not their own)"
    if set(loaded) & set(extra):
        return f"{evidence}: torch.load put tensors there"
    if contexts["current"][rank] in extra:
        return f"{evidence}: it is torch's current device"
    return evidence


def named(indices: list[int]) -> str:
    return ", ".join(f"cuda:{index}" for index in indices)


MISTAKE = Mistake(
    "extra-context",
    "CUDA contexts of several ranks on one GPU",
    "each context takes hundreds of MiB of that GPU, which runs out of memory first",
    'call torch.cuda.set_device(local_rank) before anything else that uses CUDA, and torch.load(…, map_location="cpu")',
    detect,
    needs="contexts",
    watched=True,
)
