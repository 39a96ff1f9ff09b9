"""The learning-rate schedule, a pure function of the images seen. It counts images instead of steps, so a run resumed
with another number of devices, and another global batch, continues at the same point of its schedule."""

import math
from collections.abc import Sequence

from bench.config.values import SCHEDULES

WARMUP_START = 0.1  # the share of the learning rate in the first step of a warm-up: small, but not 0


def learning_rate(
    images_seen: int, lr: float, images_per_epoch: int, epochs: float, schedule: str, schedule_epochs: float,
    schedule_factor: float, lr_warmup_images: int, drops: Sequence[float] = (),
) -> float:  # fmt: skip
    """The learning rate of the step that begins after ``images_seen`` images of all devices together.

    Over the first lr_warmup_images it rises linearly, from step to step, from WARMUP_START x to 1 x the schedule's
    (Goyal et al. 2017, section 2.2). The schedules:

    - "constant": lr;
    - "step": lr x schedule_factor every schedule_epochs epochs, counted from the run's first image; with ``drops``
      after each of these epochs instead;
    - "cosine": half a cosine from lr at the end of the warm-up to 0 at the end of ``epochs`` (Loshchilov and Hutter
      2017, https://arxiv.org/abs/1608.03983, equation 5, without restarts);
    - "cyclic": from schedule_factor x lr up to lr and back in straight lines, one cycle every schedule_epochs epochs,
      counted from the end of the warm-up (Smith 2017, https://arxiv.org/abs/1506.01186, the triangular policy). The
      warm-up leads to schedule_factor x lr;
    - "sawtooth": from lr down to schedule_factor x lr in a straight line, then a jump back to lr, one cycle every
      schedule_epochs epochs, counted from the end of the warm-up (Garipov et al. 2018,
      https://arxiv.org/abs/1802.10026, and the cyclical rate of SWA, https://arxiv.org/abs/1803.05407).

    Raises ValueError on an unknown schedule, and for "cosine" if the warm-up covers all epochs.

    >>> cosine = (768, 2, "cosine", 1, 1.0, 512)
    >>> [round(learning_rate(seen, 0.1, *cosine), 4) for seen in (0, 256, 512, 1024, 1536)]
    [0.01, 0.055, 0.1, 0.05, 0.0]
    >>> step = (1000, 90, "step", 30, 0.1, 0)
    >>> [round(learning_rate(1000 * epochs_done, 0.1, *step), 6) for epochs_done in (0, 29, 30, 60)]
    [0.1, 0.1, 0.01, 0.001]
    >>> [round(learning_rate(1000 * done, 0.1, *step, drops=(30, 60, 80)), 6) for done in (29, 30, 60, 79, 80)]
    [0.1, 0.01, 0.001, 0.001, 0.0001]
    >>> cyclic = (100, 10, "cyclic", 2, 0.25, 0)
    >>> [learning_rate(seen, 0.4, *cyclic) for seen in (0, 50, 100, 150, 200)]
    [0.1, 0.25, 0.4, 0.25, 0.1]
    >>> sawtooth = (100, 10, "sawtooth", 2, 0.25, 0)
    >>> [learning_rate(seen, 0.4, *sawtooth) for seen in (0, 50, 100, 200)]
    [0.4, 0.325, 0.25, 0.4]
    """
    after_warmup = max(0, images_seen - lr_warmup_images)
    period = schedule_epochs * images_per_epoch  # images between two drops, or of one cycle
    if schedule == "constant":
        share = 1.0
    elif schedule == "step":
        done = sum(images_seen >= drop * images_per_epoch for drop in drops) if drops else images_seen // period
        share = schedule_factor**done
    elif schedule == "cosine":
        annealed = epochs * images_per_epoch - lr_warmup_images
        if annealed <= 0:
            raise ValueError(f"a warm-up of {lr_warmup_images} images leaves none of {epochs} epochs for the cosine")
        share = (1 + math.cos(math.pi * min(1, after_warmup / annealed))) / 2
    elif schedule == "cyclic":
        height = 1 - abs(2 * (after_warmup % period) / period - 1)  # 0 at either end of a cycle, 1 in its middle
        share = schedule_factor + (1 - schedule_factor) * height
    elif schedule == "sawtooth":
        share = 1 - (1 - schedule_factor) * (after_warmup % period) / period
    else:
        raise ValueError(f"unknown schedule {schedule!r}: one of {', '.join(SCHEDULES)}")
    if images_seen < lr_warmup_images:
        share *= WARMUP_START + (1 - WARMUP_START) * images_seen / lr_warmup_images
    return lr * share
