"""The step clock: how long each step and each phase of it takes, without stopping the device.

On a GPU an event is recorded at every boundary and all are read once, at the end. On a CPU a phase's end is the moment
its last call returns, so a monotonic clock is exact.
"""

import itertools
import time

import torch

PHASES = ("start", "forward", "backward", "synchronize", "optimizer")  # "start": the batch is there
ACCUMULATED = ("start", "passes before", "forward", *PHASES[2:])  # all passes but the last one of a step


def moment(device: torch.device):
    """Now: seconds of a monotonic clock, or on a GPU an event on the device's current stream, to be read later."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class StepClock:
    """Times of the timed steps of one rank."""

    def __init__(self, device: torch.device, passes: int = 1):
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.names = ACCUMULATED if passes > 1 else PHASES
        self.spans = []  # finished stretches of steps
        self.boundaries = []  # the current one: events or seconds, one more than there are steps
        self.phases = {phase: [] for phase in self.names}  # one boundary per step: where that phase ended
        self.data_wait_s = []

    def wait(self) -> None:
        """Return when the device has done all that was issued."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def start(self) -> None:
        """The first timed step begins now. On a GPU everything before it has been waited for, once."""
        self.wait()
        self.spans, self.boundaries = [], [self.now()]
        self.phases = {phase: [] for phase in self.names}
        self.data_wait_s = []

    def now(self):
        """A point between two steps or phases."""
        return moment(self.device)

    def phase_done(self, phase: str) -> None:
        """A phase of the current step has been issued; phase: one of its names, in that order."""
        self.phases[phase].append(self.now())

    def step_done(self, data_wait_s: float) -> None:
        """One step has been issued, after the host waited ``data_wait_s`` seconds for its batch."""
        self.boundaries.append(self.now())
        self.data_wait_s.append(data_wait_s)

    def resume(self) -> None:
        """Something untimed happened after the last step: the next step begins now."""
        self.spans.append(self.boundaries)
        self.boundaries = [self.now()]

    def step_time_s(self) -> list[float]:
        """The steps' times in seconds. On a GPU this waits for the last step."""
        spans = [*self.spans, self.boundaries]
        return self.between(pair for span in spans for pair in itertools.pairwise(span))

    def phase_time_s(self) -> dict[str, list[float]]:
        """Seconds of each phase in each step; what is left of a step is data and the loop itself."""
        return {
            phase: self.between(zip(self.phases[before], self.phases[phase], strict=True))
            for before, phase in itertools.pairwise(self.names)
        }

    def between(self, pairs) -> list[float]:
        """Seconds from the first to the second of each pair of points. On a GPU this waits for the last."""
        if not self.on_gpu:
            return [end - start for start, end in pairs]
        self.wait()
        return [start.elapsed_time(end) / 1000 for start, end in pairs]


class LossPeek:
    """The newest loss that can be known without waiting for the device, for the progress bar.

    On a GPU the loss is copied to pinned host memory behind the step's work, and read when its event has passed.
    """

    def __init__(self, device: torch.device, interval_s: float = 0.5):
        self.on_gpu = device.type == "cuda"
        self.interval_s = interval_s
        self.next_at = 0.0
        self.host = torch.zeros((), pin_memory=True) if self.on_gpu else None
        self.event = None

    def offer(self, loss: torch.Tensor) -> float | None:
        """Give it every step's loss; it returns a number now and then, never waiting for one."""
        if self.event is not None and self.event.query():
            self.event = None
            return float(self.host)
        if time.perf_counter() < self.next_at or self.event is not None:
            return None
        self.next_at = time.perf_counter() + self.interval_s
        if not self.on_gpu:
            return float(loss.detach())
        self.host.copy_(loss.detach(), non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record()
        return None
