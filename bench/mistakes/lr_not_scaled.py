import math

from bench.mistakes.base import Evidence, Lab, Requirement, mistake
from bench.mistakes.measures import LOSS, METRIC


def unscaled_recipe(script):
    return script.without(lr_batch=None)


def near(rate: float, meant: float) -> bool:
    return abs(rate / meant - 1) <= 0.1


TOO_HIGH = (
    "steps are longer than the recipe's: training may diverge, or end at a higher loss",
    "scale the recipe's learning rate with the global batch, once",
)


def other_batch(config) -> bool:
    return bool(config.lr_batch) and not (config.per_device_batch and config.global_batch == config.lr_batch)


@mistake(
    "a global batch that grew, with the learning rate of the small one",
    "fewer steps of the same length: training is slower per epoch",
    "multiply the learning rate by the growth of the global batch, with a warm-up",
    needs="learning_rate",
    overrides={"recipe": unscaled_recipe},
    requires=(Requirement("LR_BASE_BATCH, and another global batch", other_batch),),
    lab=Lab(
        "What does a larger global batch learn at the learning rate of a small one?",
        "Throughput rises with the devices, and the loss after the same epochs is higher than on one.",
        (LOSS.expected("up"), METRIC),
        workload={"per_device_batch": 48, "lr": 0.0005, "lr_batch": 16},
        changes=("learning rate",),
        shows="train_loss",
    ),
    case="wrong/rate_not_scaled",
)
def lr_not_scaled(observed: dict) -> str | Evidence | None:
    """One of several parameter groups must match; an adaptive optimizer's rate may also be scaled with the square root
    of the batch."""
    rate = observed.get("learning_rate")
    if not rate:
        return None
    meant, used = rate["meant"], rate["used"]
    rates = [used, *rate.get("groups", [])]
    if any(near(each, meant) for each in rates):
        return None
    evidence = (
        f"the highest learning rate is {used:g}; the recipe's, for {rate['for_batch']} examples per step, is "
        f"{meant:g} at this global batch of {rate['global_batch']}"
    )
    times = rate["global_batch"] / rate["for_batch"]
    if any(near(each, meant / math.sqrt(times)) for each in rates):
        asks = "is it scaled with the square root of the batch on purpose?"
        return Evidence(evidence, asks) if rate.get("optimizer", "SGD") == "SGD" else None
    return Evidence(evidence, "", "", *TOO_HIGH) if used > meant else evidence
