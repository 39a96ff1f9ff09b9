from bench.mistakes.base import Evidence, mistake, some

STEPS = 3  # after which unchanged parameters are evidence


STILL = (
    "nothing is trained: no gradient arrives, every gradient is zero, or the learning rate is zero",
    "check whether the loss depends on the weights (a cross entropy over one output does not), then check the learning "
    "rate",
)


LOST = (
    "gradients zeroed before the step",
    "nothing is trained: the optimizer steps without a gradient",
    "call zero_grad before backward, or after optimizer.step()",
)


@mistake(
    "parameters that no optimizer trains",
    "they keep their initial values, although their gradients are computed and exchanged",
    "pass all parameters of the complete model to the optimizer; freeze the others with requires_grad_(False)",
    needs="parameters",
    case="wrong/forgotten_added_layer",
)
def forgotten_parameters(observed: dict) -> str | Evidence | None:
    zeroed = observed.get("zero_grad") or {"lost": 0}
    if zeroed["lost"] >= STEPS and zeroed["lost"] == zeroed["steps"]:
        when = "the gradients were nonzero after backward, but zero or None at the step"
        return Evidence(f"in each of {zeroed['steps']} steps {when}", "", *LOST)
    seen = observed.get("parameters")
    if not seen:
        return None
    forgotten, still, steps = seen["forgotten"], seen["unchanged"], seen["steps"]
    if forgotten:
        evidence = f"{len(forgotten)} of {seen['tensors']} parameters get a gradient but are in no optimizer: "
        evidence += some(forgotten)
        asks = "is only the last part of the model trained? Then freeze the rest, which still computes gradients"
        return Evidence(evidence, asks) if seen["head_alone"] else evidence
    if steps < STEPS or not still:
        return None
    if len(still) == seen["tensors"]:
        return Evidence(f"none of {seen['tensors']} parameters changed in {steps} steps", "", "", *STILL)
    if idle := [name for name in still if name in seen["idle"]]:
        counts = f"{len(idle)} of {seen['tensors']}"
        evidence = f"{counts} parameters never got a gradient and did not change: {some(idle)}"
        return Evidence(evidence, "are they unused on purpose?")
    return None
