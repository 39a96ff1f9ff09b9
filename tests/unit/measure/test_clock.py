"""The times of steps, with events of a GPU that is made up, and with a CPU's seconds; and no duration, limit or order
changes when somebody sets the wall clock while a command runs."""

import itertools
import re
import weakref

import pytest
import torch

from bench.measure import clock, steady
from bench.measure.clock import StepClock
from tests.runs import ROOT, run

ALIVE = weakref.WeakSet()  # events
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


class Event:
    """A CUDA event on a device that is a number of steps behind: its time is when it was recorded, in ms."""

    now = passed = 0.0  # ms: of the host, and of the device

    def __init__(self):
        self.at = Event.now
        ALIVE.add(self)

    def query(self) -> bool:
        return self.at <= Event.passed

    def elapsed_time(self, end) -> float:
        assert self.query() and end.query(), "read before it has passed"
        return end.at - self.at


@pytest.fixture
def gpu(monkeypatch):
    """A clock of the made-up GPU, which does its work when it is waited for."""
    Event.now = Event.passed = 0.0
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: setattr(Event, "passed", Event.now))
    monkeypatch.setattr(clock, "moment", lambda device: Event())
    return StepClock(GPU)


def take(steps: StepClock, count: int, ms: float = 10.0) -> None:
    """Issue N steps: half of each is its forward pass, the rest backward."""
    for _ in range(count):
        steps.phase_done("start")
        Event.now += ms / 2
        steps.phase_done("forward")
        Event.now += ms / 2
        for phase in ("backward", "synchronize", "optimizer"):
            steps.phase_done(phase)
        steps.step_done(0.25)


def test_a_long_training_keeps_few_events(gpu):
    take(gpu, 3)  # untimed
    gpu.start()
    for _ in range(20):
        take(gpu, 100)
        Event.passed = Event.now - 50  # the device is five steps behind
        assert len(ALIVE) <= 7 * (clock.MOST_PENDING + 100)
    assert gpu.step_time_s() == pytest.approx([0.01] * 2000) and len(gpu.data_wait_s) == 2000
    phases = gpu.phase_time_s()
    assert phases["forward"] == phases["backward"] == pytest.approx([0.005] * 2000)
    assert phases["optimizer"] == [0.0] * 2000


def test_a_benchmark_reads_no_event_before_its_end(gpu, monkeypatch):
    gpu.start()
    with monkeypatch.context() as patch:
        patch.setattr(Event, "query", lambda self: pytest.fail("asked while steps are timed"))
        take(gpu, 100)
    assert len(gpu.pending) == 100


def test_what_lies_between_two_stretches_or_before_the_start_is_in_no_step(gpu):
    gpu.start()
    take(gpu, 300)
    gpu.start()
    take(gpu, 2)
    Event.now += 1000  # a validation
    gpu.resume()
    take(gpu, 2, ms=20.0)
    assert gpu.step_time_s() == pytest.approx([0.01, 0.01, 0.02, 0.02]) and gpu.data_wait_s == [0.25] * 4


def test_a_cpu_is_timed_by_its_clock_also_with_accumulation(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(clock, "moment", lambda device: float(next(seconds)))
    steps = StepClock(CPU, passes=2)
    steps.start()
    for phase in clock.ACCUMULATED:
        steps.phase_done(phase)
    steps.step_done(0.5)
    assert steps.step_time_s() == [7.0]
    assert steps.phase_time_s() == {phase: [1.0] for phase in clock.ACCUMULATED[1:]}


@pytest.mark.parametrize("phases", [
    ("forward",), ("start", "backward"), ("start", "start"), (*clock.PHASES, "validation"),
])  # fmt: skip
def test_a_phase_out_of_its_place_is_an_error_and_not_the_time_of_another(phases):
    steps = StepClock(CPU)
    steps.start()
    for phase in phases[:-1]:
        steps.phase_done(phase)
    with pytest.raises(ValueError, match=phases[-1]):
        steps.phase_done(phases[-1])


# Instead of a person who sets the clock: it is another day each time that somebody looks.
JUMPY = """
import itertools, time
real, days = time.time, itertools.cycle((0, -3, 2, -1, 5))
time.time = lambda: real() + 86400 * next(days)
"""
MAY_LOOK = {"bench/measure/steady.py", "bench/profile/timeline.py"}  # the latter: a first guess, held to what was timed


def test_nothing_else_looks_at_the_wall_clock():
    """A name of a folder and the date on a page may: they are strings."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        if path.relative_to(ROOT).as_posix() not in MAY_LOOK:
            assert not re.search(r"\btime\.time\(", path.read_text()), path


def test_the_commands_clock_counts_until_the_machine_starts_again(monkeypatch):
    for boot, counts in ((steady.this_boot(), True), ("another", False)):
        monkeypatch.setenv(steady.ANCHOR, f"{boot} 5.0")
        assert (steady.offset.__wrapped__() == 5.0) is counts


@pytest.mark.slow
def test_a_run_while_the_clock_is_set_back_and_forward(tmp_path, forked_programs):
    (tmp_path / "sitecustomize.py").write_text(JUMPY)
    options = {"mode": "ddp", "gpus": 2, "launcher": "spawn"}
    record = run(tmp_path / "out", {"PYTHONPATH": str(tmp_path)}, forked_programs, **options).ok().loaded
    assert 0 < record["summary"]["command_to_first_timed_step_s"] < 300
    for sample in record.samples:
        moments = [sample.moments[name] for name in ("worker_started", "joined", "first_timed_step", "last_timed_step")]
        assert all(0 <= b - a < 300 for a, b in itertools.pairwise(moments))
        assert 0.9 * sum(sample.step_time_s) <= moments[3] - moments[2] + 0.1
