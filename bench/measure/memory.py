"""The memory that one process needs, device by device, sampled in the background while it trains.

Comes in: the devices that this process drives. Goes out: one dict per device, with the timeline, the peaks and, for
each figure that is missing, the reason. Memory is never summed over devices. GiB is 2**30 bytes.

What the figures count, on a GPU:
    nvml_device      everybody's memory on the GPU, as the driver sees it; its peak is the highest sample
    nvml_process     this process's share of that: CUDA context, libraries' buffers and all of torch_reserved; likewise
    torch_reserved   what torch's allocator took from the driver; its peak is exact, not sampled
    torch_allocated  the part of that which tensors fill; its peak is exact
                     (both of the timed steps alone: what cuDNN tries in the steps before is more than a step needs)
and on a CPU, where memory is the host's:
    pss              this process and its loader workers, a page shared by n processes counting 1/n to each, so
                     processes can be compared; its peak is the highest sample. Where the system has no PSS: uss
                     (only pages that nobody shares), else rss (shared pages count in full, in every process)
    rss_hwm          the most pages that this process, without its loader workers, ever had in memory since it
                     started: exact, but shared pages count in full

Sampling must not be felt by what is measured. No call waits for a GPU. A sample is followed by a pause of at least
500 times the CPU time it took, which keeps sampling under 0.2 % of one core. A PSS of a GiB takes the kernel several
milliseconds to add up, so a short run on a CPU may see no sample but those at its marks, taken between steps: what
lives within a step alone is then in rss_hwm, and not in pss.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.measure.memory_sources import CudaProbe, HostProbe

if TYPE_CHECKING:
    import torch

MIN_INTERVAL_S = 0.25
PAUSE_PER_COST = 500  # 1 / 0.2 %
SAMPLES_PER_DOUBLING = 2000  # the shortest interval doubles each time so many lie in a timeline: 8 h end at 8 s
STOP_LIMIT_S = 2.0


class MemorySampler:
    """Samples one process's devices from a background thread. Its own errors end in a note, never in the training."""

    def __init__(self, devices: list[torch.device], cpu_replicas: bool = False) -> None:
        """devices: that this process drives. CPU devices share one memory and give one entry. cpu_replicas: several
        replicas of the model share this process's memory, which the notes then say."""
        self._devices, self._cpu_replicas = devices, cpu_replicas
        self._traces: list[_Trace] = []
        self._marks: dict[str, float] = {}
        self._costs: list[float] = []  # CPU seconds of each sample
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._began = self._sampled = time.monotonic()
        self._report: list[dict[str, Any]] | None = None

    def start(self) -> None:
        """Reset the allocator's peaks, take the first samples, start the thread. Call it once torch has its device."""
        self._began = time.monotonic()
        self._traces = [_open(device, self._cpu_replicas) for device in _distinct(self._devices)]
        self._sample()  # the first finds everything cold: what it cost says nothing about the next
        self._sample()
        self._read_energy("(start)")
        try:
            self._thread.start()
        except RuntimeError as error:
            self._note(f"The sampling thread did not start ({error}): only the marks were sampled.")

    def mark(self, name: str) -> None:
        """Label this moment ('timed', 'end', …) and sample it in the calling thread, so call it outside timed steps.

        A name used twice keeps its last moment. Energy is taken from 'timed' to 'end' where both are there; at 'timed'
        the allocator's peaks begin anew.
        """
        self._marks[name] = round(time.monotonic() - self._began, 4)
        if name == "timed":
            for trace in self._traces:
                trace.reset_peaks()
        self._sample()
        self._read_energy(name)

    def stop(self) -> list[dict[str, Any]]:
        """End the thread and return one JSON-able dict per device; a second call returns the same.

        Each has: device ('cuda:0', 'cpu'), name, uuid (None for a CPU), timeline {time_s: [...], <column>: [...]}
        with time since start and one value or None a sample, marks {name: time}, peak_memory_gib {source: GiB or
        None}, energy_j (or None; of the whole board, whoever uses it), power_limit_w (of a GPU that tells it),
        processes (those seen on a GPU from 'timed' to 'end'), sample_interval_s (the pause after the last sample),
        sample_cost_s (median CPU time of one), notes.
        """
        if self._report is None:
            self._end_thread()
            self._sample()
            self._read_energy("(stop)")
            rate = {
                "sample_interval_s": round(self._interval(), 4),
                "sample_cost_s": round(statistics.median(self._costs or [0.0]), 6),
            }
            self._report = [trace.report(self._marks, rate) for trace in self._traces]
        return self._report

    def _run(self) -> None:
        """A mark is a sample, too, and begins the pause anew."""
        while not self._ended.wait(self._pause_left()):
            if self._pause_left() == 0:
                self._sample()

    def _pause_left(self) -> float:
        return max(0.0, self._sampled + self._interval() - time.monotonic())

    def _interval(self) -> float:
        taken = max((len(trace.times) for trace in self._traces), default=0)
        cost = self._costs[-1] if self._costs else 0.0
        return max(MIN_INTERVAL_S * 2 ** (taken // SAMPLES_PER_DOUBLING), PAUSE_PER_COST * cost)

    def _sample(self) -> None:
        """From the thread or from a mark: one at a time."""
        if not self._lock.acquire(timeout=STOP_LIMIT_S):
            return self._note(f"A sample hung for more than {STOP_LIMIT_S} s.")
        try:
            before = time.thread_time()
            for trace in self._traces:
                trace.sample(self._began)
            self._costs.append(time.thread_time() - before)
            self._sampled = time.monotonic()
        finally:
            self._lock.release()

    def _read_energy(self, moment: str) -> None:
        for trace in self._traces:
            trace.read_energy(moment)

    def _end_thread(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(STOP_LIMIT_S)
        if self._thread.is_alive():
            self._note(f"The sampling thread did not end within {STOP_LIMIT_S} s.")

    def _note(self, sentence: str) -> None:
        for trace in self._traces:
            trace.note(sentence)


# --- one device's timeline --------------------------------------------------------------------------------------


@dataclass
class _Trace:
    """What was seen of one device. `probe` reads it, and is None where it could not be opened."""

    device: str
    probe: HostProbe | CudaProbe | None
    times: list[float] = field(default_factory=list)
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    energy: dict[str, float | None] = field(default_factory=dict)
    processes: list[tuple[float, list[int]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sample(self, began: float) -> None:
        """Add one row to the timeline; a row that cannot be read is left out of all columns."""
        at = time.monotonic() - began
        row = self._guard("read", {})
        if row:
            self.times.append(round(at, 4))
            for column, value in row.items():
                self.columns.setdefault(column, []).append(value)
        if seen := self._guard("processes", []):
            self.processes.append((round(at, 4), seen))

    def reset_peaks(self) -> None:
        self._guard("reset_peaks", None)

    def read_energy(self, moment: str) -> None:
        self.energy[moment] = self._guard("energy_j", None)

    def report(self, marks: dict[str, float], rate: dict[str, float]) -> dict[str, Any]:
        labels = self._guard("labels", {})
        peaks = self._guard("peaks", {}, self.columns)
        for sentence in self._guard("notes", [], self.columns):
            self.note(sentence)
        return {
            "device": self.device,
            "name": None,
            "uuid": None,
            **labels,
            "timeline": {"time_s": self.times, **self.columns},
            "marks": dict(marks),
            "peak_memory_gib": peaks,
            "energy_j": self._energy_between(),
            **({"processes": seen} if (seen := self._seen_between(marks)) else {}),
            **rate,
            "notes": self.notes,
        }

    def _seen_between(self, marks: dict[str, float]) -> list[int]:
        """The processes in the samples from the mark 'timed' to the one taken at 'end'; in all without these marks."""
        first, end = marks.get("timed", 0.0), marks.get("end", float("inf"))
        last = next((at for at, _ in self.processes if at >= end), end)
        return sorted({pid for at, seen in self.processes if first <= at <= last for pid in seen})

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _energy_between(self) -> float | None:
        """Joules from 'timed' to 'end' where both were marked, else over the whole of the sampling."""
        marked = "timed" in self.energy and "end" in self.energy
        first, last = ("timed", "end") if marked else ("(start)", "(stop)")
        begun, ended = self.energy.get(first), self.energy.get(last)
        return None if begun is None or ended is None else round(ended - begun, 3)

    def _guard(self, method: str, otherwise: Any, *arguments: Any) -> Any:
        """What the probe's method returns; `otherwise`, and a note, where it fails or there is no probe."""
        if self.probe is None:
            return otherwise
        try:
            return getattr(self.probe, method)(*arguments)
        except Exception as error:  # whatever it is, training goes on
            self.note(f"The sampler failed to {method}: {type(error).__name__}: {error}")
            return otherwise


def _distinct(devices: list[torch.device]) -> list[torch.device | None]:
    """The GPUs as they are, and None once for the host, however many other devices there are."""
    gpus = [device for device in devices if device.type == "cuda"]
    return gpus if len(gpus) == len(devices) else [*gpus, None]


def _open(device: torch.device | None, cpu_replicas: bool) -> _Trace:
    trace = _Trace("cpu" if device is None else str(device), None)
    try:
        trace.probe = HostProbe(cpu_replicas) if device is None else CudaProbe(device)
    except Exception as error:
        trace.note(f"The memory of this device cannot be read: {type(error).__name__}: {error}")
    return trace
