from bench.mistakes.base import mistake, numbers


@mistake(
    "broadcast_optimizer_state with no broadcast_parameters after it",
    "if the optimizer has no state yet, Horovod takes a step with zero gradients; with weight decay that step changes "
    "the weights of all ranks except the one that read the file",
    "call broadcast_optimizer_state first and broadcast_parameters after it, or read the file on every rank",
    needs="restored",
    explains=("unsynced-init",),
    case="wrong/hidden_step_adam",
)
def hidden_step(observed: dict) -> str | None:
    """A resume under Horovod that broadcasts the parameters first and the optimizer's state afterwards: on a rank whose
    optimizer has no state, ``broadcast_optimizer_state`` creates it by a step with zero gradients.

    Seen as that step on some ranks; or, if nothing observed it, as an optimizer with weight decay that already has its
    state while only rank 0's weights differ.
    """
    seen = observed.get("restored") or {}
    weights = seen.get("weights", [])
    if len(set(weights)) <= 1:
        return None
    if moved := [rank for rank, changed in enumerate(seen["moved"]) if changed]:
        ranks = f"rank{'s' * (len(moved) > 1)} {numbers(moved)}"
        return (
            f"broadcast_optimizer_state changed the weights of {ranks}; before the first step there are "
            f"{len(set(weights))} different sets of weights on {len(weights)} ranks"
        )
    if all(seen["sent"]) and len(set(weights[1:])) == 1:
        return (
            "before the first step Horovod's optimizer, which has weight decay, already has its state, and rank 0's "
            "weights differ from those of the other ranks"
        )
    return None
