"""bench/training/schedule.py: against torch's own schedulers step by step, and what must hold for any run."""

import itertools

import pytest
import torch
from torch.optim import lr_scheduler

from bench.config.options import RunConfig
from bench.training import schedule
from bench.training.loop import learning_rates

LR, BATCH, STEPS_PER_EPOCH, EPOCHS = 0.4, 32, 7, 6
STEPS = STEPS_PER_EPOCH * EPOCHS


def ours(steps: int = STEPS, batch: int = BATCH, **changes) -> list[float]:
    """The learning rate of each step of a run, in order."""
    run = {
        "lr": LR, "images_per_epoch": BATCH * STEPS_PER_EPOCH, "epochs": EPOCHS, "schedule": "constant",
        "schedule_epochs": 2, "schedule_factor": 0.1, "lr_warmup_images": 0,
    } | changes  # fmt: skip
    return [schedule.learning_rate(step * batch, **run) for step in range(steps)]


def warmed_up(optimizer, steps: int = 10):
    """Cosine begins where the warm-up ends."""
    parts = [
        lr_scheduler.LinearLR(optimizer, schedule.WARMUP_START, 1.0, steps),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS - steps),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[steps])


S, STEP, CYCLIC = STEPS_PER_EPOCH, {"schedule": "step"}, {"schedule": "cyclic"}
TORCHS = [
    ({}, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    (STEP | {"schedule_epochs": 1, "schedule_factor": 0.5}, lambda o: lr_scheduler.StepLR(o, S, gamma=0.5)),
    (STEP | {"schedule_epochs": 4, "schedule_factor": 0.3}, lambda o: lr_scheduler.StepLR(o, 4 * S, gamma=0.3)),
    (STEP | {"schedule_epochs": 10}, lambda o: lr_scheduler.StepLR(o, 10 * S, gamma=0.1)),
    (STEP | {"drops": (1, 2, 5)}, lambda o: lr_scheduler.MultiStepLR(o, [S, 2 * S, 5 * S], gamma=0.1)),
    (STEP | {"drops": (4, 60), "schedule_factor": 0.2}, lambda o: lr_scheduler.MultiStepLR(o, [4 * S], gamma=0.2)),
    ({"schedule": "cosine"}, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS)),
    (CYCLIC | {"schedule_epochs": 4}, lambda o: lr_scheduler.CyclicLR(o, 0.1 * LR, LR, 2 * S, cycle_momentum=False)),
    (CYCLIC | {"schedule_epochs": 6, "schedule_factor": 0.0},
     lambda o: lr_scheduler.CyclicLR(o, 0.0, LR, 3 * S, cycle_momentum=False)),
    ({"schedule": "sawtooth", "schedule_epochs": 3, "schedule_factor": 0.25},
     lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 - 0.75 * (step % (3 * S)) / (3 * S))),
    *(({"lr_warmup_images": n * BATCH}, lambda o, n=n: lr_scheduler.LinearLR(o, schedule.WARMUP_START, 1.0, n))
      for n in (1, 5, 20)),
    ({"schedule": "cosine", "lr_warmup_images": 10 * BATCH}, warmed_up),
]  # fmt: skip


@pytest.mark.parametrize(("options", "make"), TORCHS, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_every_schedule_is_torchs(options, make):
    """Cyclic ones over several cycles."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler, found = make(optimizer), []
    for _ in range(5 * STEPS if options.get("schedule") == "cyclic" else STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert ours(len(found), **options) == pytest.approx(found, abs=1e-12)


def test_the_option_reaches_the_rate_of_a_step():
    config = RunConfig(schedule="step:2,3", schedule_factor=0.5, epochs=6, per_device_batch=10, warmup_steps=0,
                       timed_steps=1)  # fmt: skip
    lr_of = learning_rates(config, num_images=100)
    assert [lr_of(images) for images in (0, 190, 200, 290, 300, 590)] == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]


@pytest.mark.parametrize("name", schedule.SCHEDULES)
@pytest.mark.parametrize("warmup_images", [0, 1, 100, 5 * BATCH])
def test_every_step_of_a_run_has_a_rate_above_zero_and_at_most_the_given_one(name, warmup_images):
    rates = ours(schedule=name, lr_warmup_images=warmup_images)
    assert all(0 < rate <= LR for rate in rates)


@pytest.mark.parametrize("name", ["cosine", "cyclic", "constant"])
def test_the_warmup_ends_without_a_jump(name):
    """Image by image, no two neighbours differ by more than the steepest line: lr over the warm-up."""
    rates = ours(400, batch=1, schedule=name, lr_warmup_images=200)
    assert max(abs(b - a) for a, b in itertools.pairwise(rates)) <= LR / 200


def test_after_the_last_epoch_the_cosine_stays_at_zero():
    assert ours(2 * STEPS, schedule="cosine")[STEPS:] == [0] * STEPS


@pytest.mark.parametrize("options", [{"schedule": "linear"}, {"schedule": "cosine", "lr_warmup_images": STEPS * BATCH}])
def test_what_is_no_schedule_is_refused(options):
    """Of an unknown name, and of a warm-up that leaves no cosine."""
    with pytest.raises(ValueError, match=r"linear|6 epochs"):
        ours(**options)
