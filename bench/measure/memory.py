"""The memory of one process, device by device, sampled in the background while it trains.

The result is one dict per device, with the timeline, the peaks and the reason for each missing metric. Memory is never
summed over devices. GiB is 2**30 bytes. On a GPU:
    nvml_device      memory of all processes on the GPU, as the driver sees it; its peak is the highest sample
    nvml_process     this process's share: CUDA context, libraries' buffers and all of torch_reserved; likewise
    torch_reserved   memory that torch's allocator took from the driver; its peak is exact, not sampled
    torch_allocated  the part of that which tensors use; its peak is exact
                     (both over the timed steps only: cuDNN's trials in earlier steps take more than a step needs)
On a CPU, where memory is the host's:
    pss              this process and its loader workers, a page shared by n processes counting 1/n to each; its peak is
                     the highest sample. Where the system has no PSS: uss (only pages that nobody shares), else rss
                     (shared pages count in full, in every process)
    rss_hwm          the most pages that this process, without its loader workers, ever had in memory since it
                     started: exact, but shared pages count in full

No call waits for a GPU. After a sample the thread pauses for at least 500 times the CPU time that it took, so that
sampling takes less than 0.2 % of one core. The PSS of a GiB takes the kernel several milliseconds, so a short run on a
CPU may have no samples except those at its marks, between steps: the peak within a step is then only in rss_hwm.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil

from bench.files import PROC
from bench.measure import nvml
from bench.measure.environment import cpu_model, cuda_identity

if TYPE_CHECKING:
    import torch

Row = dict[str, float | None]  # one sample: {column: value}

MIN_INTERVAL_S = 0.25
PAUSE_PER_COST = 500  # 1 / 0.2 %
SAMPLES_PER_DOUBLING = 2000  # the shortest interval doubles after every N samples: after 8 h it is 8 s
STOP_LIMIT_S = 2.0


class MemorySampler:
    """Samples one process's devices from a background thread. Its own errors become notes; training continues."""

    def __init__(self, devices: list[torch.device], cpu_replicas: bool = False) -> None:
        """devices: of this process. CPU devices share one memory and give one entry. cpu_replicas: several replicas of
        the model share this process's memory, which the notes then say."""
        gpus = [device for device in devices if device.type == "cuda"]
        self._devices = gpus if len(gpus) == len(devices) else [*gpus, None]  # None: the host, once
        self._cpu_replicas = cpu_replicas
        self._traces: list[_Trace] = []
        self._marks: dict[str, float] = {}
        self._costs: list[float] = []  # CPU seconds of each sample
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._began = self._sampled = time.monotonic()
        self._report: list[dict[str, Any]] | None = None

    def start(self) -> None:
        """Reset the allocator's peaks, take the first sample, start the thread. Call it once torch has its device."""
        self._began = time.monotonic()
        self._traces = [_Trace(device, self._cpu_replicas) for device in self._devices]
        self._sample()
        self._read_energy("(start)")
        try:
            self._thread.start()
        except RuntimeError as error:
            self._note(f"The sampling thread did not start ({error}): only the marks were sampled.")

    def mark(self, name: str) -> None:
        """Label this moment ('timed', 'end', …) and sample it in the calling thread, so call it outside timed steps.

        A repeated name keeps its last moment. At 'timed' the allocator's peaks are reset; energy is from 'timed' to
        'end'.
        """
        self._marks[name] = round(time.monotonic() - self._began, 4)
        if name == "timed":
            for trace in self._traces:
                trace.call_probe("reset_peaks", None)
        self._sample()
        self._read_energy(name)

    def stop(self) -> list[dict[str, Any]]:
        """End the thread and return one JSON-able dict per device; a second call returns the same.

        Each has: device ('cuda:0', 'cpu'), name, uuid (None for a CPU), timeline {time_s: [...], <column>: [...]}
        with time since start and one value or None a sample, marks {name: time}, peak_memory_gib {source: GiB or
        None}, energy_j (of the whole board, or None), power_limit_w (if the GPU reports it), processes (those seen on
        a GPU from 'timed' to 'end'), sample_interval_s (the pause after the last sample), sample_cost_s (median CPU
        time of one), notes.
        """
        if self._report is None:
            self._ended.set()
            if self._thread.is_alive():
                self._thread.join(STOP_LIMIT_S)
            if self._thread.is_alive():
                self._note(f"The sampling thread did not end within {STOP_LIMIT_S} s.")
            self._sample_when_due()
            self._read_energy("(stop)")
            rate = {
                "sample_interval_s": round(self._interval(), 4),
                "sample_cost_s": round(statistics.median(self._costs or [0.0]), 6),
            }
            self._report = [trace.report(self._marks, rate) for trace in self._traces]
        return self._report

    def _run(self) -> None:
        while not self._ended.wait(self._pause_left()):
            self._sample_when_due()

    def _sample_when_due(self) -> None:
        if self._pause_left() == 0:  # a mark is a sample too, and restarts the pause
            self._sample()

    def _pause_left(self) -> float:
        return max(0.0, self._sampled + self._interval() - time.monotonic())

    def _interval(self) -> float:
        taken = max((len(trace.times) for trace in self._traces), default=0)
        cost = self._costs[-1] if self._costs else 0.0
        return max(MIN_INTERVAL_S * 2 ** (taken // SAMPLES_PER_DOUBLING), PAUSE_PER_COST * cost)

    def _sample(self) -> None:
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
            trace.energy[moment] = trace.call_probe("energy_j", None)

    def _note(self, sentence: str) -> None:
        for trace in self._traces:
            trace.note(sentence)


class _Trace:
    """The samples of one device. `probe` reads it; None if it could not be opened."""

    def __init__(self, device: torch.device | None, cpu_replicas: bool) -> None:
        self.device = "cpu" if device is None else str(device)
        self.times: list[float] = []
        self.columns: dict[str, list[float | None]] = {}
        self.energy: dict[str, float | None] = {}
        self.processes: list[tuple[float, list[int]]] = []
        self.notes: list[str] = []
        self.probe = None
        try:
            self.probe = HostProbe(cpu_replicas) if device is None else CudaProbe(device)
        except Exception as error:
            self.note(f"The memory of this device cannot be read: {type(error).__name__}: {error}")

    def call_probe(self, method: str, otherwise: Any, *arguments: Any) -> Any:
        """The result of the probe's method; `otherwise`, and a note, if it fails or there is no probe."""
        if self.probe is None:
            return otherwise
        try:
            return getattr(self.probe, method)(*arguments)
        except Exception as error:  # training continues after any error
            self.note(f"The sampler failed to {method}: {type(error).__name__}: {error}")
            return otherwise

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def sample(self, began: float) -> None:
        """Add one row to the timeline; an unreadable row is left out of all columns."""
        at = round(time.monotonic() - began, 4)
        if row := self.call_probe("read", {}):
            self.times.append(at)
            for column, value in row.items():
                self.columns.setdefault(column, []).append(value)
        if seen := self.call_probe("processes", []):
            self.processes.append((at, seen))

    def report(self, marks: dict[str, float], rate: dict[str, float]) -> dict[str, Any]:
        highest = {name: max((value for value in values if value is not None), default=None)
                   for name, values in self.columns.items()}  # fmt: skip
        labels, peaks = self.call_probe("labels", {}), self.call_probe("peaks", {}, highest)
        for sentence in self.call_probe("notes", [], highest):
            self.note(sentence)
        seen = self._seen_between(marks)
        return {
            "device": self.device,
            "name": None,
            "uuid": None,
            **labels,
            "timeline": {"time_s": self.times, **self.columns},
            "marks": dict(marks),
            "peak_memory_gib": peaks,
            "energy_j": self._energy_between(),
            **({"processes": seen} if seen else {}),
            **rate,
            "notes": self.notes,
        }

    def _seen_between(self, marks: dict[str, float]) -> list[int]:
        """The processes in the samples from the mark 'timed' to the one taken at 'end'. Without these marks: in all
        samples."""
        first, end = marks.get("timed", 0.0), marks.get("end", float("inf"))
        last = next((at for at, _ in self.processes if at >= end), end)
        return sorted({pid for at, seen in self.processes if first <= at <= last for pid in seen})

    def _energy_between(self) -> float | None:
        marked = {"timed", "end"} <= self.energy.keys()
        begun, ended = (self.energy.get(moment) for moment in (("timed", "end") if marked else ("(start)", "(stop)")))
        return None if begun is None or ended is None else round(ended - begun, 3)


# --- probes: what reads a device. A method may raise: _Trace turns that into a note. ------------------------------

GPU_COLUMNS = {  # column of a sample, and method of NvmlDevice: its key in NvmlDevice.reasons
    "utilization_percent": "utilization",
    "power_w": "power",
    "sm_clock_mhz": "clock",
    "throttle_reasons": "throttle",
}


class CudaProbe:
    def __init__(self, device: torch.device) -> None:
        import torch

        self._cuda, self._pid = torch.cuda, os.getpid()
        self._index = torch.cuda.current_device() if device.index is None else device.index
        identity = cuda_identity(self._index)
        self._nvml, self._remark = nvml.open_device(**identity, position=self._index)
        self._labels = {
            "name": torch.cuda.get_device_properties(self._index).name,
            "uuid": self._nvml.uuid if self._nvml else identity["uuid"],
        }
        self._is_another = False  # whether NVML's process with our id is another process
        self.reset_peaks()
        with contextlib.suppress(Exception):  # the next reading says why
            self.read()  # the first one is slow, and its cost does not predict that of the next

    def reset_peaks(self) -> None:
        self._cuda.reset_peak_memory_stats(self._index)

    def labels(self) -> dict[str, Any]:
        limit = self._nvml.power_limit_w() if self._nvml else None
        return self._labels | ({"power_limit_w": limit} if limit else {})

    def read(self) -> Row:
        stats = self._cuda.memory_stats(self._index)
        device = self._nvml
        return {
            "nvml_device_gib": _gib(device.used_bytes()) if device else None,
            "nvml_process_gib": _gib(self._process_bytes(stats)) if device else None,
            "torch_allocated_gib": _gib(stats.get("allocated_bytes.all.current")),
            "torch_reserved_gib": _gib(stats.get("reserved_bytes.all.current")),
            **{name: getattr(device, name)() if device else None for name in GPU_COLUMNS},
        }

    def _process_bytes(self, stats: dict) -> int | None:
        """NVML's value for this process; None if it is less than torch has reserved. Then NVML reports the host's
        process ids, and another process of the host has this process's id."""
        used = self._nvml.process_bytes(self._pid)
        self._is_another = used is not None and used < stats.get("reserved_bytes.all.current", 0)
        if self._is_another:
            self._nvml.reasons["process"] = (
                "NVML lists a process of this number with less memory than torch has reserved: in a container it is "
                "another one of the host's."
            )
            return None
        return used

    def processes(self) -> list[int]:
        return (not self._is_another and self._nvml and self._nvml.processes()) or []

    def peaks(self, highest: Row) -> Row:
        stats = self._cuda.memory_stats(self._index)
        return {
            "nvml_device": highest.get("nvml_device_gib"),
            "nvml_process": highest.get("nvml_process_gib"),
            "torch_allocated": _gib(stats.get("allocated_bytes.all.peak")),
            "torch_reserved": _gib(stats.get("reserved_bytes.all.peak")),
        }

    def energy_j(self) -> float | None:
        return self._nvml.energy_j() if self._nvml else None

    def notes(self, highest: Row) -> list[str]:
        if self._nvml is None:
            return [f"nvml_device, nvml_process, utilization_percent, power_w, clocks, energy_j: {self._remark}"]
        keys = {"nvml_device_gib": "used", "nvml_process_gib": "process", **GPU_COLUMNS, "energy_j": "energy"}
        found = [
            f"{column.removesuffix('_gib')}: {self._nvml.reasons[key]}"
            for column, key in keys.items()
            if key in self._nvml.reasons and highest.get(column) is None
        ]
        if self._nvml.used_includes_reserved and highest.get("nvml_device_gib") is not None:
            found.append("nvml_device: includes what the driver keeps for itself, which this old driver adds to it.")
        return found + ([self._remark] if self._remark else [])


class HostProbe:
    def __init__(self, cpu_replicas: bool = False) -> None:
        self._source, self._read_process = _best_reader()
        self._cpu_replicas, self._unreadable = cpu_replicas, False

    def labels(self) -> dict[str, str | None]:
        return {"name": cpu_model(), "uuid": None}

    def reset_peaks(self) -> None:
        """The kernel keeps one peak per process lifetime."""

    def processes(self) -> list[int]:
        return []  # too many to list

    def read(self) -> Row:
        total = self._read_process(os.getpid()) + sum(self._read_worker(pid) for pid in worker_pids())
        return {f"{self._source}_gib": _gib(total)}

    def _read_worker(self, pid: int) -> int:
        try:
            return self._read_process(pid)
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):  # it has just ended
            return 0
        except (PermissionError, psutil.AccessDenied):  # macOS
            self._unreadable = True
            return 0

    def peaks(self, highest: Row) -> Row:
        return {self._source: highest.get(f"{self._source}_gib"), "rss_hwm": _gib(peak_rss_bytes())}

    def energy_j(self) -> None:
        return None

    def notes(self, highest: Row) -> list[str]:
        found = ["energy_j: no energy counter of a CPU is read."]
        if self._source != "pss":
            found.append(f"pss: this system has none; {self._source} is used in its place.")
        if self._unreadable:
            found.append("The system does not let this process read its loader workers' memory: not counted.")
        if self._cpu_replicas:
            found.append("The CPU replicas share one process: the memory is that of all of them together.")
        return found


def _best_reader() -> tuple[str, Callable[[int], int]]:
    if (PROC / "self/smaps_rollup").exists():
        return "pss", read_pss
    for source, reader in (("uss", read_uss), ("rss", read_rss)):
        try:
            reader(os.getpid())
        except Exception:
            continue
        return source, reader
    raise RuntimeError("this system does not report the memory of processes")


def read_pss(pid: int) -> int:
    """Proportional set size in bytes; 0 for a process that has ended but was not yet waited for. Raises OSError."""
    return _kibibytes(PROC / f"{pid}/smaps_rollup", b"Pss:") or 0


def read_uss(pid: int) -> int:
    return psutil.Process(pid).memory_full_info().uss


def read_rss(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


def _kibibytes(path, key: bytes) -> int | None:
    with open(path, "rb") as file:
        for line in file:
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return None


def worker_pids() -> list[int]:
    """The child processes of this one by multiprocessing: in a run, its loader workers.

    From multiprocessing's own register, because `active_children()` reaps dead workers, and then the loader does not
    notice their death.
    """
    return [child.pid for child in list(multiprocessing.process._children) if child.pid is not None]


def peak_rss_bytes() -> int | None:
    """The peak resident memory of this process, shared pages in full. `ru_maxrss` on Linux is inherited from the
    process that started this one, so VmHWM is read there."""
    try:
        return _kibibytes(PROC / "self/status", b"VmHWM:")
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _gib(number_of_bytes: int | None) -> float | None:
    return None if number_of_bytes is None else round(number_of_bytes / nvml.GIB, 6)
