from bench.mistakes.base import mistake


@mistake(
    "an optimizer made before the model was replaced",
    "the steps change parameters that are no longer in the model, and the model's own parameters do not change",
    "make the optimizer after the last change of the model (a new head, a copy, a conversion)",
    needs="parameters",
    explains=("forgotten-parameters",),
    case="wrong/stale_replaced_head",
)
def stale_optimizer(observed: dict) -> str | None:
    seen = observed.get("parameters") or {}
    if not seen.get("stale"):
        return None
    return (
        f"{seen['stale']} of the optimizer's parameters are not in the model and never get a gradient; "
        f"{seen['missing']} of the model's {seen['tensors']} parameters are in no optimizer"
    )
