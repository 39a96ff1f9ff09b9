"""The timeline of one step on one rank, run once more after the timed ones under torch.profiler. Its lanes of spans:

- phase          the phases of the training loop;
- compute        when the process's own threads (CPU) or the model's streams (CUDA) are busy;
- communication  one span per bucket (DDP), a fused reduction (Horovod) or another exchange, with its bytes;
- dp             the parts of DataParallel's forward.

A lane is a thread or a stream; those that compute are found by ranges and a small addition of our own that run there.
NCCL's kernels are recognised by name, because a collective without overlap (OVERLAP=0, NORM=sync) runs on the model's
own stream. A hook around DDP's own one records when buckets are launched and done. Horovod's background thread is read
from the file that Horovod writes. An error here becomes a note; errors of the step and of collectives are raised.
On a GPU the step, its phases and its communication are also NVTX ranges, for nsys.
"""

import contextlib
import functools
import os
import threading
import time
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from bench.formulas import union
from bench.measure import steady
from bench.measure.clock import moment
from bench.profile.horovod_timeline import BEGIN, END, engine_offset, fusions, is_mark, read_engine

MARK = "bench: clock mark"  # our own range: it identifies our thread and torch's clock
GAP_S = 1e-4  # compute spans with a shorter gap are one
MOST_SPANS = 200  # of one lane on one rank; with more, wider gaps are closed
PATIENCE_S = 5.0  # limit for closing a file or calling a callback
PHASES = {"waiting for data": "data wait", "optimizer step": "optimizer"}  # the loop's names: the timeline's
NCCL = ("ncclDevKernel", "ncclKernel")  # prefixes of its kernels, from 2.19 on and before
BARRIERS = 8  # before the step: they align the clocks of several machines
PROFILED_STEPS = 2  # of `record`: one to warm the profiler up, one to show


class StepTimeline:
    """Records one step; before and after it, every hook only checks whether it is active.

    device: of this process; devices: all used ones. On CUDA, times are those of the device's current stream.
    """

    def __init__(self, device: torch.device, devices: list[torch.device] | None = None):
        self.device, self.devices = device, devices or [device]
        self.on_gpu = device.type == "cuda"
        self.on = False
        self.spans = []  # (lane, name, start, end, bytes); start and end from now()
        self.notes = []
        self.current = None  # the current phase: (name, start)
        self.launched = self.done = 0  # buckets
        self.sending = None  # when the last bucket was launched or done
        self.waits = []  # (start, end) in which the main thread was inside a call that communicates
        self.all_threads = False  # whether threads other than the main one compute
        self.engine = None  # Horovod's marker and stop functions, and the times of the markers
        self.barriers = []  # when this rank entered and left each
        self.marks = []  # (before, after) of each MARK, in perf_counter's seconds
        self.origin = self.origin_s = self.end = None

    def phase(self, name: str | None) -> None:
        if not self.on:
            return
        name = PHASES.get(name, name)
        moment = self.now()
        if self.current:
            self.spans.append(("phase", self.current[0], self.current[1], moment, None))
            self.end_range()
        self.current = (name, moment) if name else None
        if name:
            self.begin_range(name)

    @contextlib.contextmanager
    def span(self, lane: str, name: str, nbytes: int | None = None):
        if not self.on:
            yield
            return
        start = self.now()
        self.begin_range(f"{lane}: {name}")
        try:
            yield
        finally:
            self.end_range()
            end = self.now()
            self.spans.append((lane, name, start, end, nbytes))
            if lane == "communication":
                self.waits.append((start, end))

    def watch_buckets(self, hook, waits: bool = False):
        """A DDP communication hook that calls ``hook`` and records when each bucket is launched and done.

        waits: the hook sends nothing before the last bucket, and then one bucket after the other. The bytes are those
        of the gradients; a compressing hook sends fewer.
        """

        def watched(state, bucket):
            if not self.on:
                return hook(state, bucket)
            name, nbytes = f"bucket {bucket.index()}", bucket.buffer().nbytes
            launched = self.sending = self.now()
            self.launched += 1
            self.begin_range(f"communication: {name}")
            future = hook(state, bucket)
            self.end_range()
            self.waits.append((launched, self.now()))

            def note(_):
                start, end = self.sending if waits else launched, self.now()
                self.spans.append(("communication", name, start, end, nbytes))
                self.sending = end
                self.done += 1

            future.add_done_callback(note)
            return future

        return watched

    def wrapped(self, function, lane: str, name: str, nbytes: int | None):
        @functools.wraps(function)
        def call(*arguments, **options):
            with self.span(lane, name, nbytes):
                return function(*arguments, **options)

        return call

    def watch_engine(self, marker, stop, writes: bool) -> None:
        """Horovod. marker(name): a small reduction on all ranks; stop(): close the file that HOROVOD_TIMELINE names.
        writes: whether this rank writes the file (rank 0)."""
        path = os.environ.get("HOROVOD_TIMELINE") if writes else None
        self.engine = {"marker": marker, "stop": stop, "writes": writes, "path": path}

    def record(self, run_step, barrier, profiled: bool = True, kept: Path | None = None) -> None:
        """Run PROFILED_STEPS steps with ``run_step`` and record the last. ``barrier``: all ranks begin it together.
        profiled: False if the caller reports computation itself (``add_busy``). kept: a file for torch.profiler's own
        trace.

        Raises only what ``run_step``, ``barrier`` or a marker raises.
        """
        profiler = self.attempt("torch.profiler did not start", self.start_profiler) if profiled else None
        for _ in range(PROFILED_STEPS - 1):
            run_step()
        self.mark_engine(BEGIN)
        for _ in range(BARRIERS):
            entered = time.perf_counter()
            barrier()
            self.barriers.append((entered, time.perf_counter()))
        self.attempt("no clock mark", self.mark_clock)
        self.synchronize()
        self.on = True
        self.origin_s, self.origin = time.perf_counter(), self.now()
        self.begin_range("step")
        run_step()
        self.phase(None)
        self.end_range()
        self.end = self.now()
        self.wait_for_buckets()
        self.synchronize()
        self.on = False
        self.mark_engine(END)
        if profiler is not None:
            self.attempt("torch.profiler failed to stop", profiler.stop)
            self.attempt("the profiler's events could not be read", lambda: self.add_compute(list(profiler.events())))
            if kept:
                self.attempt("torch.profiler's trace was not kept", lambda: profiler.export_chrome_trace(str(kept)))
        if self.engine and self.engine["writes"]:
            self.attempt("Horovod's timeline could not be read", self.add_engine)

    def result(self, step: int) -> dict:
        """The record's ``samples[r].timeline``, and the clock that ``join_timelines`` replaces (clocks.py)."""
        rows = self.attempt("the spans' times could not be read", self.rows) or []
        clock = {"host": steady.this_boot(), "origin_s": self.origin_s, "barriers": self.barriers,
                 "engine": bool(self.engine)}  # fmt: skip
        step_s = self.attempt("the step's time could not be read", lambda: self.since(self.end)) or 1e-9
        return {"step": step, "step_s": step_s, "spans": rows, "notes": list(dict.fromkeys(self.notes)), "clock": clock}

    def rows(self) -> list[dict]:
        rows = [
            {"lane": lane, "name": name, "start_s": self.since(start), "end_s": self.since(end), "bytes": nbytes}
            for lane, name, start, end, nbytes in self.spans
        ]
        return sorted(rows, key=lambda row: (row["lane"], row["start_s"]))

    def attempt(self, what: str, action):
        try:
            return action()
        except Exception as error:
            self.notes.append(f"{what}: {type(error).__name__}: {error}".splitlines()[0][:300])
            return None

    def now(self):
        return moment(self.device)

    def since(self, moment) -> float:
        if isinstance(moment, float):
            return round(moment - self.origin_s, 7)
        return round(self.origin.elapsed_time(moment) / 1000, 7)

    def begin_range(self, name: str) -> None:
        if self.on_gpu:
            torch.cuda.nvtx.range_push(name)

    def end_range(self) -> None:
        if self.on_gpu:
            torch.cuda.nvtx.range_pop()

    def synchronize(self) -> None:
        if self.on_gpu:
            for device in self.devices:
                torch.cuda.synchronize(device)

    def wait_for_buckets(self) -> None:
        """The last callback of a bucket may come shortly after the gradients are ready."""
        deadline = time.monotonic() + PATIENCE_S
        while self.done < self.launched and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.done < self.launched:
            self.notes.append(f"{self.launched - self.done} of {self.launched} buckets have no observed end")

    def start_profiler(self):
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.on_gpu else [])]
        every_thread = _ExperimentalConfig(profile_all_threads=self.all_threads and not self.on_gpu)
        profiler = profile(activities=activities, experimental_config=every_thread)
        profiler.start()
        return profiler

    def mark_clock(self) -> None:
        self.synchronize()
        for _ in range(3):
            before = time.perf_counter()
            with record_function(MARK):
                for device in self.devices if self.on_gpu else ():
                    torch.zeros(1, device=device).add_(1)
                self.synchronize()
            self.marks.append((before, time.perf_counter()))

    def add_compute(self, events: list) -> None:
        marks = sorted((e for e in events if e.name == MARK and not is_device(e)), key=lambda e: e.time_range.start)
        if not marks or len(marks) != len(self.marks):
            raise ValueError("the ranges of this benchmark are not in the trace")
        offset = clock_offset([(e.time_range.start / 1e6, e.time_range.end / 1e6) for e in marks], self.marks)
        step = (self.origin_s, self.origin_s + self.since(self.end))
        lanes = self.device_lanes(events, marks) if self.on_gpu else self.thread_lanes(events, marks[0].thread)
        for name, lane in lanes.items():
            busy = [(e.time_range.start / 1e6 + offset, e.time_range.end / 1e6 + offset) for e in lane]
            self.add_busy(name, [(max(start, step[0]), min(end, step[1])) for start, end in busy], len(lanes))

    def add_busy(self, name: str, busy: list[tuple[float, float]], lanes: int = 1) -> None:
        """The compute lane of one of N threads or devices; busy: in seconds of perf_counter."""
        busy = compact(busy, GAP_S, MOST_SPANS // lanes)
        if not self.on_gpu:  # an operator of backward may contain a hook that waits: a wait is not computation
            busy = without(busy, self.waits)
        self.spans += [("compute", name, start, end, None) for start, end in busy]

    def thread_lanes(self, events: list, main: int) -> dict[str, list]:
        """Operators, also of backward, by thread. Without all_threads only the main one: others serve communication."""
        lanes = {}
        for event in events:
            operator = event.scope != USER_SCOPE and not event.is_async and not is_device(event)
            if operator and (event.thread == main or self.all_threads):
                lanes.setdefault(event.thread, []).append(event)
        others = sorted(thread for thread in lanes if thread != main)
        names = {main: "main thread", **{thread: f"thread {i}" for i, thread in enumerate(others, start=1)}}
        return {names[thread]: lane for thread, lane in sorted(lanes.items(), key=lambda item: names[item[0]])}

    def device_lanes(self, events: list, marks: list) -> dict[str, list]:
        """By device the work on the streams of our additions, without NCCL's kernels."""
        window = marks[0].time_range.start, marks[-1].time_range.end
        on_device = [e for e in events if is_device(e) and not getattr(e, "is_user_annotation", False)]
        ours = {stream(e) for e in on_device if window[0] <= e.time_range.start <= window[1]}
        lanes = {}
        for event in on_device:
            if stream(event) in ours and event.time_range.start > window[1] and not event.name.startswith(NCCL):
                lanes.setdefault(f"cuda:{event.device_index}", []).append(event)
        if not lanes:
            raise ValueError("no kernel of this process was observed on a device")
        return lanes

    def mark_engine(self, name: str) -> None:
        if self.engine:
            before = time.perf_counter()
            self.engine["marker"](name)
            self.engine[name] = (before, time.perf_counter())

    def add_engine(self) -> None:
        if not self.engine["path"]:
            raise ValueError("HOROVOD_TIMELINE names no file")
        epoch_offset = time.time() - time.perf_counter()
        within(PATIENCE_S, self.engine["stop"])
        path = Path(self.engine["path"])
        text = path.read_text()
        path.unlink()  # before it is read: it may be damaged
        tensors, epoch_s = read_engine(text)
        offset = engine_offset(tensors, epoch_s - epoch_offset, self.engine[BEGIN], self.engine[END])
        last = self.origin_s + self.since(self.end)
        ours = [t for t in tensors if t["shape"] is not None and self.origin_s <= t["start_s"] + offset <= last]
        for number, fused in enumerate(fusions([t for t in ours if not is_mark(t)])):
            start, end = fused["start_s"] + offset, fused["end_s"] + offset
            self.spans.append(("communication", f"fusion {number}", start, end, fused["bytes"]))
        self.notes.append(
            "Horovod: a span starts when all ranks have agreed on its tensors and lasts to the end of their "
            "reduction; the time that a gradient waits for agreement is not in it. The file is written by a thread of "
            "rank 0 that never sleeps and takes some of its processor time"
        )


USER_SCOPE = 7  # at::RecordScope: a named range, such as ours; not an operator


def is_device(event) -> bool:
    return event.device_type != torch.autograd.DeviceType.CPU


def stream(event) -> tuple:
    return event.device_index, getattr(event, "device_resource_id", event.thread)


def clock_offset(seen: list[tuple], timed: list[tuple]) -> float:
    """Seconds from the first clock to the second, by the shortest range that both have timed.

    >>> clock_offset([(10.0, 10.2), (11.02, 11.04)], [(20.0, 20.9), (21.01, 21.05)])
    10.0
    """
    (a, b), (c, d) = min(zip(seen, timed, strict=True), key=lambda pair: pair[1][1] - pair[1][0])
    return round((c + d) / 2 - (a + b) / 2, 9)


def compact(intervals: list[tuple[float, float]], gap: float, most: int) -> list[tuple[float, float]]:
    """The union of intervals, with gaps of up to ``gap`` closed, and wider ones while more than ``most`` are left.

    >>> compact([(5, 6), (0, 2), (1, 3), (3.5, 4)], 0.5, 10)
    [(0, 4), (5, 6)]
    >>> compact([(0, 1), (2, 3), (5, 6)], 0.5, 2)
    [(0, 3), (5, 6)]
    """
    while len(found := union(intervals, gap)) > max(1, most):
        gap *= 2
    return found


def without(intervals: list[tuple[float, float]], holes: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals without the holes.

    >>> without([(0, 5), (6, 8)], [(1, 2), (4, 7)])
    [(0, 1), (2, 4), (7, 8)]
    """
    for low, high in holes:
        cut = [part for start, end in intervals for part in ((start, min(end, low)), (max(start, high), end))]
        intervals = [(start, end) for start, end in cut if end > start]
    return intervals


def within(limit_s: float, action) -> None:
    """Call ``action`` for at most ``limit_s`` seconds; raises TimeoutError after that, and its own errors."""
    errors = []

    def run():
        try:
            action()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {limit_s:g} s")
    if errors:
        raise errors[0]
