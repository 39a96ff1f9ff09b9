"""A global batch that grew, with the learning rate of the small one: ``SGD(model.parameters(), lr=LR)``."""

from bench.mistakes.base import Lab, Mistake, Requirement
from bench.mistakes.measures import LOSS, TOP1


def recipe(script):
    """The LR of another global batch."""
    return script.without(lr_batch=None)


def detect(observed: dict) -> str | None:
    """A learning rate more than a tenth off the recipe's, scaled to the global batch."""
    rate = observed.get("learning_rate")
    if not rate or abs(rate["used"] / rate["meant"] - 1) <= 0.1:
        return None
    return (
        f"the highest learning rate is {rate['used']:g}; the recipe's, for {rate['for_batch']} images per step, is "
        f"{rate['meant']:g} at this global batch of {rate['global_batch']}"
    )


def other_batch(config) -> bool:
    """Whether LR is meant for another global batch than the run's."""
    return bool(config.lr_batch) and not (config.per_device_batch and config.global_batch == config.lr_batch)


MISTAKE = Mistake(
    "lr-not-scaled",
    "a global batch that grew, with the learning rate of the small one",
    "fewer steps of the same length: training is slower per epoch",
    "scale the learning rate with the global batch (LR_BATCH), with a warm-up",
    detect,
    needs="learning_rate",
    overrides={"recipe": recipe},
    requires=(Requirement("LR_BATCH, and another global batch", other_batch),),
    lab=Lab(
        "What does a larger global batch learn at the learning rate of a small one?",
        "Throughput rises with the devices, and the loss after the same epochs is higher than on one.",
        (LOSS.expected("up"), TOP1),
        workload={"per_device_batch": 48, "lr": 0.0005, "lr_batch": 16},
        changes=("learning rate",),
        shows="train_loss",
    ),
)
