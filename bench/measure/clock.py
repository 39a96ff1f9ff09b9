"""The step clock: the time of each step and each of its phases, without stopping the device.

On a GPU an event is recorded at every boundary, and events are read later. On a CPU a phase ends when its last call
returns, so a monotonic clock is exact.
"""

import collections
import itertools
import time

import torch

PHASES = ("start", "forward", "backward", "synchronize", "optimizer")  # "start": the batch has arrived
ACCUMULATED = ("start", "passes before", "forward", *PHASES[2:])  # all passes but the last one of a step
MOST_PENDING = 256  # steps whose events are kept before they are read: more than a benchmark has by default


def moment(device: torch.device):
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class StepClock:
    """Times of the timed steps of one rank.

    On a GPU a step records seven events, which use driver memory. So in a long training completed events are read when
    MOST_PENDING steps are pending.
    """

    def __init__(self, device: torch.device, passes: int = 1, names: tuple[str, ...] = ()):
        """names: of the points within a step, "start" first; by default those of the training loop."""
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.names = names or (ACCUMULATED if passes > 1 else PHASES)
        self.last = None  # where the current step began: an event or seconds; None before the first timed one
        self.points = []  # of the current step: where each of its phases ended
        self.forget()

    def forget(self) -> None:
        self.pending = collections.deque()  # steps not read yet: [begin, end of each phase, end]
        self.step_s, self.phase_s = [], {phase: [] for phase in self.names[1:]}  # of the steps that are
        self.data_wait_s = []

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def start(self) -> None:
        self.wait()
        self.forget()
        self.last, self.points = self.now(), []

    def now(self):
        return moment(self.device)

    def phase_done(self, phase: str) -> None:
        """A phase of the current step was issued. Raises ValueError unless it is the next one: after a missing call
        every phase would get the time of the one before it."""
        due = self.names[len(self.points)] if len(self.points) < len(self.names) else None
        if phase != due:
            raise ValueError(f"phase {phase} ends, but the next phase of this clock is {due}")
        self.points.append(self.now())

    def step_done(self, data_wait_s: float) -> None:
        end = self.now()
        if self.last is not None:
            self.pending.append([self.last, *self.points, end])
            self.data_wait_s.append(data_wait_s)
            self.last = end
        self.points = []
        if len(self.pending) >= MOST_PENDING:
            self.read()

    def resume(self) -> None:
        """Something untimed happened after the last step: the next step begins now."""
        self.read()
        self.last = self.now()

    def read(self) -> None:
        while self.pending and (not self.on_gpu or self.pending[0][-1].query()):
            begin, *points, end = self.pending.popleft()
            self.step_s.append(self.seconds(begin, end))
            for phase, pair in zip(self.names[1:], itertools.pairwise(points), strict=True):
                self.phase_s[phase].append(self.seconds(*pair))

    def step_time_s(self) -> list[float]:
        self.wait()
        self.read()
        return list(self.step_s)

    def phase_time_s(self) -> dict[str, list[float]]:
        """Seconds of each phase in each step. On a GPU it waits for the last step."""
        self.wait()
        self.read()
        return {phase: list(seconds) for phase, seconds in self.phase_s.items()}

    def seconds(self, start, end) -> float:
        return start.elapsed_time(end) / 1000 if self.on_gpu else end - start


class LossPeek:
    """The newest loss that is known without waiting for the device, for the progress bar.

    On a GPU the loss is copied to pinned host memory behind the step's work, and read when its event has passed.
    """

    def __init__(self, device: torch.device, interval_s: float = 0.5):
        self.on_gpu = device.type == "cuda"
        self.interval_s = interval_s
        self.next_at = 0.0
        self.host = torch.zeros((), pin_memory=True) if self.on_gpu else None
        self.event = None

    def offer(self, loss: torch.Tensor) -> float | None:
        """Takes every step's loss; returns a number from time to time."""
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
