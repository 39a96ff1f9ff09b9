"""Parameters that are not trained, though they are not frozen: no optimizer has them, or none moves them."""

from bench.mistakes.base import Finding, Mistake, Question
from bench.mistakes.outside import some

STILL = (
    "nothing is trained: no gradient arrives, every gradient is zero, or the learning rate is zero",
    "look whether the loss depends on the weights (a cross entropy over one output does not); then at the learning "
    "rate",
)
LOST = (
    "gradients that are zeroed before the step",
    "nothing is trained: the optimizer steps without a gradient",
    "call zero_grad before backward, or after optimizer.step()",
)
STEPS = 3  # after which parameters that are what they were are a sign


def detect(observed: dict) -> str | Finding | Question | None:
    zeroed = observed.get("zero_grad") or {"lost": 0}
    if zeroed["lost"] >= STEPS and zeroed["lost"] == zeroed["steps"]:
        evidence = (
            f"in each of {zeroed['steps']} steps the gradients were there after backward, and zero or None at the step"
        )
        return Finding(MISTAKE.name, LOST[0], evidence, *LOST[1:])
    seen = observed.get("parameters")
    if not seen:
        return None
    forgotten, still, steps = seen["forgotten"], seen["unchanged"], seen["steps"]
    if forgotten:
        evidence = f"{len(forgotten)} of {seen['tensors']} parameters get a gradient and are in no optimizer: "
        evidence += some(forgotten)
        if seen["head_alone"]:
            return Question(
                evidence, "is only the last part of the model trained? Freeze the rest: it computes gradients"
            )
        return evidence
    if steps < STEPS or not still:
        return None
    if len(still) == seen["tensors"]:
        return Finding(
            MISTAKE.name, MISTAKE.title, f"none of {seen['tensors']} parameters has changed in {steps} steps", *STILL
        )
    idle = [name for name in still if name in seen["idle"]]
    if idle:
        evidence = (
            f"{len(idle)} of {seen['tensors']} parameters never got a gradient, and have not changed: {some(idle)}"
        )
        return Question(evidence, "are they meant to take no part?")
    return None


MISTAKE = Mistake(
    "forgotten-parameters",
    "parameters that no optimizer trains",
    "they stay as they were at the start, while their gradients are computed and exchanged",
    "give the optimizer all parameters, once the model is whole; freeze the others by requires_grad_(False)",
    detect,
    needs="parameters",
    watched=True,
)
