from bench.mistakes.base import Evidence, mistake

STARVED = 0.2  # a loader is too slow if the median step waits for it more than this share of its time


SHORT_S = 0.01  # on a CPU a wait that is shorter in a quarter of the steps does not count: cores are not always free


@mistake(
    "a step waits for its loader",
    "the device idles while it waits for data, so faster or more devices do not help",
    "more loader workers (num_workers), examples that are decoded beforehand or kept in memory, faster storage",
    needs="loader",
    recorded=True,
    case="wrong/starved_decoding",
)
def loader_starvation(observed: dict) -> str | Evidence | None:
    """Not specific to data parallelism, so it cannot be injected. If other processes disturbed it, it is only a
    possible mistake."""
    loader = observed.get("loader") or {}
    shares = loader.get("wait_share") or []
    waits = loader.get("wait_s") or [None] * len(shares)
    pairs = zip(shares, waits, strict=True)
    share = max((share for share, wait in pairs if wait is None or wait >= SHORT_S), default=0)
    if share <= STARVED:
        return None
    waits = f"the median step waits {100 * share:.0f} % of its time for data, with {loader['workers']} loader workers"
    if disturbed := observed.get("disturbed"):
        return Evidence(f"{waits}; {disturbed}", "does it wait as long on an idle machine?")
    return waits
