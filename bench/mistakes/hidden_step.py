"""A resume under Horovod that sends the parameters first and the optimizer's state afterwards.

On a rank whose optimizer has no state ``broadcast_optimizer_state`` makes one by a step with zero gradients. With
weight decay that step moves the weights. After a resume it is taken on all ranks but the one that has read the file.
"""

from bench.mistakes.base import Mistake


def detect(observed: dict) -> str | None:
    """Replicas that differ before the first step, after Horovod's step on some ranks; where nobody heard it, where the
    optimizer decays weights and has its state already, and one rank's weights differ from those of all others."""
    seen = observed.get("restored") or {}
    weights = seen.get("weights", [])
    if len(set(weights)) <= 1:
        return None
    if moved := [str(rank) for rank, changed in enumerate(seen["moved"]) if changed]:
        ranks = f"rank {moved[0]}" if len(moved) == 1 else f"ranks {', '.join(moved)}"
        return (
            f"broadcast_optimizer_state changed the weights of {ranks}, and before the first step there are "
            f"{len(set(weights))} different sets of weights on {len(weights)} ranks"
        )
    if all(seen["sent"]) and len(set(weights[1:])) == 1:
        return (
            "before the first step Horovod's optimizer, which decays weights, has its state already, and rank 0's "
            "weights are not those of the other ranks"
        )
    return None


MISTAKE = Mistake(
    "hidden-step",
    "broadcast_optimizer_state with no broadcast_parameters after it",
    "where the optimizer has no state yet, Horovod takes a step with zero gradients; weight decay makes that step move "
    "the weights of all ranks but the one that read the file",
    "call broadcast_optimizer_state first and broadcast_parameters after it, or read the file on every rank",
    detect,
    needs="restored",
    watched=True,
    explains=("unsynced-init",),
)
