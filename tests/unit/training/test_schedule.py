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


def torchs(make, steps: int = STEPS, lr: float = LR) -> list[float]:
    """The same from one of torch's schedulers, advanced once a step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_constant_is_constant():
    assert ours() == [LR] * STEPS


@pytest.mark.parametrize(("epochs", "factor"), [(1, 0.5), (2, 0.1), (4, 0.3), (10, 0.1)])
def test_step_is_torchs_steplr(epochs, factor):
    expected = torchs(lambda o: lr_scheduler.StepLR(o, epochs * STEPS_PER_EPOCH, gamma=factor))
    assert ours(schedule="step", schedule_epochs=epochs, schedule_factor=factor) == pytest.approx(expected)


@pytest.mark.parametrize(("drops", "factor"), [((1, 2, 5), 0.1), ((3,), 0.5), ((4, 60), 0.2)])
def test_drops_are_torchs_multisteplr(drops, factor):
    expected = torchs(lambda o: lr_scheduler.MultiStepLR(o, [drop * STEPS_PER_EPOCH for drop in drops], gamma=factor))
    assert ours(schedule="step", drops=drops, schedule_factor=factor) == pytest.approx(expected)


def test_the_option_reaches_the_rate_of_a_step():
    config = RunConfig(schedule="step:2,3", schedule_factor=0.5, epochs=6, per_device_batch=10, warmup_steps=0,
                       timed_steps=1)  # fmt: skip
    lr_of = learning_rates(config, num_images=100)
    assert [lr_of(images) for images in (0, 190, 200, 290, 300, 590)] == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]


def test_cosine_is_torchs_cosineannealinglr():
    expected = torchs(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS), STEPS + 1)
    found = ours(STEPS + 1, schedule="cosine")
    assert found == pytest.approx(expected, abs=1e-12)
    assert found[-1] == 0


@pytest.mark.parametrize(("epochs", "factor"), [(2, 0.1), (4, 0.25), (6, 0.0)])
def test_cyclic_is_torchs_triangular_cycliclr(epochs, factor):
    half = epochs * STEPS_PER_EPOCH // 2
    make = lambda o: lr_scheduler.CyclicLR(o, factor * LR, LR, half, mode="triangular", cycle_momentum=False)  # noqa: E731
    expected = torchs(make, 5 * STEPS)
    found = ours(5 * STEPS, schedule="cyclic", schedule_epochs=epochs, schedule_factor=factor)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("epochs", "factor"), [(2, 0.1), (3, 0.25)])
def test_sawtooth_falls_in_a_line_and_jumps(epochs, factor):
    """As one of torch's lambdas says it."""
    steps = epochs * STEPS_PER_EPOCH
    expected = torchs(lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 - (1 - factor) * (step % steps) / steps))
    assert ours(schedule="sawtooth", schedule_epochs=epochs, schedule_factor=factor) == pytest.approx(expected)


@pytest.mark.parametrize("warmup_steps", [1, 5, 20])
def test_warmup_is_torchs_linearlr(warmup_steps):
    expected = torchs(lambda o: lr_scheduler.LinearLR(o, schedule.WARMUP_START, 1.0, warmup_steps))
    assert ours(lr_warmup_images=warmup_steps * BATCH) == pytest.approx(expected)


def test_cosine_begins_where_the_warmup_ends_as_in_torchs_sequentiallr():
    warmup = 10

    def make(o):
        parts = [
            lr_scheduler.LinearLR(o, schedule.WARMUP_START, 1.0, warmup),
            lr_scheduler.CosineAnnealingLR(o, T_max=STEPS - warmup),
        ]
        return lr_scheduler.SequentialLR(o, parts, milestones=[warmup])

    assert ours(schedule="cosine", lr_warmup_images=warmup * BATCH) == pytest.approx(torchs(make), abs=1e-12)


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


@pytest.mark.parametrize("name", schedule.SCHEDULES)
def test_a_run_resumed_on_twice_the_devices_goes_on_at_the_same_place(name):
    options = {"schedule": name, "lr_warmup_images": 6 * BATCH}
    assert ours(STEPS // 2, batch=2 * BATCH, **options) == ours(**options)[::2]


def test_after_the_last_epoch_the_cosine_stays_at_zero():
    assert ours(2 * STEPS, schedule="cosine")[STEPS:] == [0] * STEPS


def test_an_unknown_schedule_is_named():
    with pytest.raises(ValueError, match=r"'linear'.*constant, step, cosine, cyclic, sawtooth"):
        ours(schedule="linear")


def test_a_warmup_as_long_as_the_run_leaves_no_cosine():
    with pytest.raises(ValueError, match="leaves none of 6 epochs"):
        ours(schedule="cosine", lr_warmup_images=STEPS * BATCH)
