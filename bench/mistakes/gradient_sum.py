from bench.mistakes.base import SEVERAL_DEVICES, Lab, Requirement, mistake
from bench.mistakes.measures import LOSS, METRIC, Measure, of_observed

AVERAGED_INSTEAD = "are the weights averaged every few steps instead (local SGD)?"


def sum_of_losses(script, outputs, targets):
    """DataParallel: ``losses.sum()`` over the devices instead of ``losses.mean()``. One device has the plain mean."""
    devices = script.topology.devices_per_process
    chunks = zip(outputs.chunk(devices), targets.chunk(devices), strict=True)
    return sum(script.right.loss(some, theirs) for some, theirs in chunks)


PLAIN_EXCHANGE = Requirement(
    "the plain exchange: leave OVERLAP, COMPRESSION and ADASUM out",
    lambda c: c.overlap and c.compression == "none" and not c.adasum,
)


RATIO = Measure("exchanged gradient over the mean of the ranks' own", of_observed("gradient", "over_mean"), "up", ".3f")


@mistake(
    "gradients summed where the mean is meant",
    "each step is N times as long, as if the learning rate were N times as large",
    "divide by the number of ranks once: DDP does, a plain all_reduce does not",
    needs="gradient",
    overrides={"loss": sum_of_losses},
    sums_gradients=True,
    requires=(SEVERAL_DEVICES, PLAIN_EXCHANGE),
    lab=Lab(
        "How long is a step when gradients are summed over ranks?",
        "A training that worked on one device diverges or learns worse on several; an LR divided by N fixes it.",
        (RATIO, LOSS, METRIC),
        changes=("gradient",),
        shows="train_loss",
    ),
    case="wrong/sum_by_hand",
)
def gradient_sum(observed: dict) -> str | None:
    """An exchanged gradient that is a multiple of the mean, or the mean divided by the number of ranks again. If a step
    has N passes on N ranks, their division by N looks the same. A clipped gradient has another ratio in each step."""
    gradient, ranks = observed.get("gradient"), observed.get("world_size", 1)
    if not gradient or gradient["kind"] != "mean" or ranks == 1 or gradient.get("exchanged") is False:
        return None
    ratio = gradient["over_mean"]
    twice = abs(ratio * ranks - 1) <= 0.02 and gradient.get("steady", True) and gradient.get("passes", 1) != ranks
    if ratio <= 1.1 and not twice:
        return None
    like = "their sum" if abs(ratio / ranks - 1) < 0.1 else "divided twice" if ratio < 1 else "scaled"
    return f"the exchanged gradient is {ratio:.3f} times the mean of the {ranks} ranks' own: {like}"
