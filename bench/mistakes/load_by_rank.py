from bench.mistakes.base import Evidence, mistake, numbers
from bench.mistakes.drift import drift
from bench.mistakes.other_replica import other_replica
from bench.mistakes.unsynced_init import unsynced_init


@mistake(
    "different contents loaded on each rank",
    "the replicas continue from different weights or optimizer states, and drift apart",
    "call dist.barrier() between the save on rank 0 and the loads, or load on rank 0 and broadcast",
    needs="contents",
    explains=("drift", "other-replica", "unsynced-init"),
    case="wrong/load_before_written",
)
def load_by_rank(observed: dict) -> str | Evidence | None:
    """Rank 0 saves a checkpoint, and the others load it before it is written. If the replicas are equal, it is only a
    possible mistake."""
    apart = (observed.get("contents") or {}).get("apart")
    if not apart:
        return None
    groups = {}
    for rank, contents in enumerate(apart["by_rank"]):
        if contents is not None:
            groups.setdefault(contents, []).append(rank)
    first, *others = [f"rank{'s' * (len(ranks) > 1)} {numbers(ranks)}" for ranks in groups.values()]
    evidence = f"{apart['file']}, after step {apart['step']}: {' and '.join(others)} read other contents than {first}"
    effect = unsynced_init(observed) or drift(observed) or other_replica(observed)
    if isinstance(effect, str):
        return f"{evidence}; {effect}"
    return Evidence(evidence, "is the file written again on purpose between the ranks' loads?")
