"""A step waits for its loader. It is no mistake of data parallelism, so nothing injects it: it is only detected."""

from bench.mistakes.base import Mistake, Question

STARVED = 0.2  # a loader is too slow when the median step waits for it more than this share of its time
SHORT_S = 0.01  # on a CPU a wait that is shorter in a quarter of the steps says little: a core is not always free


def detect(observed: dict) -> str | Question | None:
    """A possible mistake where other processes slowed the loader."""
    loader = observed.get("loader") or {}
    shares = loader.get("wait_share") or [0]
    waits = loader.get("wait_s") or [None] * len(shares)
    share = max(
        [share for share, wait in zip(shares, waits, strict=True) if wait is None or wait >= SHORT_S], default=0
    )
    if share <= STARVED:
        return None
    waits = f"the median step waits {100 * share:.0f} % of its time for data, with {loader['workers']} loader workers"
    if disturbed := observed.get("disturbed"):
        return Question(f"{waits}; {disturbed}", "does it wait as long on an idle machine?")
    return waits


MISTAKE = Mistake(
    "loader-starvation",
    "a step waits for its loader",
    "the device idles while it waits for data: a faster device or more of them bring nothing",
    "more loader workers (num_workers), examples that are decoded beforehand or kept in memory, faster storage",
    detect,
    needs="loader",
)
