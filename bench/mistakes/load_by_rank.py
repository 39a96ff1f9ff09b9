"""One file, and other contents by rank: rank 0 saves a checkpoint, and the others load it before it is written."""

from bench.mistakes import drift, other_replica, unsynced_init
from bench.mistakes.base import Mistake, Question


def detect(observed: dict) -> str | Question | None:
    """It is a question where the replicas do not differ."""
    apart = (observed.get("contents") or {}).get("apart")
    if not apart:
        return None
    groups = {}
    for rank, contents in enumerate(apart["by_rank"]):
        if contents is not None:
            groups.setdefault(contents, []).append(rank)
    first, *others = [f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" for ranks in groups.values()]
    evidence = f"{apart['file']}, after step {apart['step']}: {' and '.join(others)} got other contents than {first}"
    effect = unsynced_init.detect(observed) or drift.detect(observed) or other_replica.detect(observed)
    if isinstance(effect, str):
        return f"{evidence}; {effect}"
    return Question(evidence, "is the file written again between the loads of the ranks on purpose?")


MISTAKE = Mistake(
    "load-by-rank",
    "other contents loaded on each rank",
    "the replicas go on from different weights or optimizer states, and drift apart",
    "call dist.barrier() between the save on rank 0 and the loads, or load on rank 0 and broadcast",
    detect,
    needs="contents",
    watched=True,
    explains=("drift", "other-replica", "unsynced-init"),
)
