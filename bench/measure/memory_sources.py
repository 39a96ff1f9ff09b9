"""Where a memory figure comes from: a GPU (NVML and torch's allocator) or the host (what the kernel counts).

A probe answers six questions: labels (name, UUID, a GPU's power limit), read (one sample, {column: value}), peaks
({source: GiB}), energy_j (a counter), processes (who is on a GPU now), notes (a sentence for each figure that is
missing). What each figure counts is said at the head of `bench/measure/memory.py`, which asks the questions. A method
may raise: the asker turns that into a note.
"""

from __future__ import annotations

import multiprocessing.process
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.files import PROC
from bench.measure import nvml
from bench.measure.environment import cpu_model, cuda_identity

if TYPE_CHECKING:
    import torch

Row = dict[str, float | None]  # one sample: {column: value}
Columns = dict[str, list[float | None]]  # all samples so far

GONE = (FileNotFoundError, ProcessLookupError)  # what reading a process that has just ended raises
NVML_FIGURES = {  # where each column's reason is found in NvmlDevice.reasons
    "nvml_device_gib": "used",
    "nvml_process_gib": "process",
    "utilization_percent": "utilization",
    "power_w": "power",
    "sm_clock_mhz": "clock",
    "throttle_reasons": "throttle",
}


# --- a GPU ------------------------------------------------------------------------------------------------------


class CudaProbe:
    def __init__(self, device: torch.device) -> None:
        import torch

        self._cuda, self._pid = torch.cuda, os.getpid()
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._name = torch.cuda.get_device_properties(self._index).name
        identity = cuda_identity(self._index)
        self._nvml, self._remark = nvml.open_device(**identity, position=self._index)
        self._uuid = self._nvml.uuid if self._nvml else identity["uuid"]
        self._is_another = False  # whether NVML's process with our number is somebody else's
        self.reset_peaks()

    def reset_peaks(self) -> None:
        self._cuda.reset_peak_memory_stats(self._index)

    def labels(self) -> dict[str, Any]:
        limit = self._nvml.power_limit_w() if self._nvml else None
        return {"name": self._name, "uuid": self._uuid, **({"power_limit_w": limit} if limit else {})}

    def read(self) -> Row:
        stats = self._cuda.memory_stats(self._index)
        device = self._nvml
        return {
            "nvml_device_gib": _gib(device.used_bytes()) if device else None,
            "nvml_process_gib": _gib(self._process_bytes(stats)) if device else None,
            "torch_allocated_gib": _gib(stats.get("allocated_bytes.all.current")),
            "torch_reserved_gib": _gib(stats.get("reserved_bytes.all.current")),
            "utilization_percent": device.utilization_percent() if device else None,
            "power_w": device.power_w() if device else None,
            "sm_clock_mhz": device.sm_clock_mhz() if device else None,
            "throttle_reasons": device.throttle_reasons() if device else None,
        }

    def _process_bytes(self, stats: dict) -> int | None:
        """NVML's figure of this process; None where it is less than what torch has reserved: then it is another's.

        NVML may know processes by the host's numbers, and one of the host's may have the number that this one has in
        its container.
        """
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
        """The processes that are on the GPU now; none where their numbers are not those that this process knows."""
        return (not self._is_another and self._nvml and self._nvml.processes()) or []

    def peaks(self, columns: Columns) -> Row:
        stats = self._cuda.memory_stats(self._index)
        return {
            "nvml_device": _highest(columns.get("nvml_device_gib", [])),
            "nvml_process": _highest(columns.get("nvml_process_gib", [])),
            "torch_allocated": _gib(stats.get("allocated_bytes.all.peak")),
            "torch_reserved": _gib(stats.get("reserved_bytes.all.peak")),
        }

    def energy_j(self) -> float | None:
        return self._nvml.energy_j() if self._nvml else None

    def notes(self, columns: Columns) -> list[str]:
        """A sentence for each figure that was never there, and for each that means something else than usual."""
        if self._nvml is None:
            return [f"nvml_device, nvml_process, utilization_percent, power_w, clocks, energy_j: {self._remark}"]
        reasons = self._nvml.reasons
        found = [
            f"{column.removesuffix('_gib')}: {reasons[figure]}"
            for column, figure in NVML_FIGURES.items()
            if figure in reasons and _highest(columns.get(column, [])) is None
        ]
        if "energy" in reasons:
            found.append(f"energy_j: {reasons['energy']}")
        if self._nvml.used_includes_reserved and _highest(columns.get("nvml_device_gib", [])) is not None:
            found.append("nvml_device: includes what the driver keeps for itself, which this old driver adds to it.")
        return found + ([self._remark] if self._remark else [])


# --- the host ---------------------------------------------------------------------------------------------------


class HostProbe:
    def __init__(self, cpu_replicas: bool = False) -> None:
        self._source, self._read_process = _best_reader()
        self._cpu_replicas, self._unreadable = cpu_replicas, False

    def labels(self) -> dict[str, str | None]:
        return {"name": cpu_model(), "uuid": None}

    def reset_peaks(self) -> None:
        """The kernel keeps one peak for the life of a process."""

    def processes(self) -> list[int]:
        """A host has too many to list."""
        return []

    def read(self) -> Row:
        total = self._read_process(os.getpid()) + sum(self._read_worker(pid) for pid in worker_pids())
        return {f"{self._source}_gib": _gib(total)}

    def peaks(self, columns: Columns) -> Row:
        return {self._source: _highest(columns.get(f"{self._source}_gib", [])), "rss_hwm": _gib(peak_rss_bytes())}

    def energy_j(self) -> None:
        return None

    def notes(self, columns: Columns) -> list[str]:
        found = ["energy_j: no energy counter of a CPU is read."]
        if self._source != "pss":
            found.append(f"pss: this system has none; {self._source} is used in its place.")
        if self._unreadable:
            found.append("The system does not let this process read its loader workers' memory: not counted.")
        if self._cpu_replicas:
            found.append("The CPU replicas share one process: the memory is that of all of them together.")
        return found

    def _read_worker(self, pid: int) -> int:
        """0 when the worker has just ended, or may not be read (macOS)."""
        import psutil

        try:
            return self._read_process(pid)
        except (*GONE, psutil.NoSuchProcess):
            return 0
        except (PermissionError, psutil.AccessDenied):
            self._unreadable = True
            return 0


def _best_reader() -> tuple[str, Callable[[int], int]]:
    """(source, function from a process id to bytes): the best one that answers for this process.

    Raises RuntimeError where none does.
    """
    for source, reader in (("pss", read_pss), ("uss", read_uss), ("rss", read_rss)):
        try:
            reader(os.getpid())
        except Exception:
            continue
        return source, reader
    raise RuntimeError("this system tells no process's memory")


def read_pss(pid: int) -> int:
    """Proportional set size in bytes, from one small file of Linux (4.14 or newer).

    0 for a process that has ended but was not yet waited for. Raises OSError where there is no such process or file,
    or it may not be read.
    """
    with open(PROC / f"{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024  # 'Pss:    459 kB'
    return 0


def read_uss(pid: int) -> int:
    """Raises psutil.Error."""
    import psutil

    return psutil.Process(pid).memory_full_info().uss


def read_rss(pid: int) -> int:
    """Raises psutil.Error."""
    import psutil

    return psutil.Process(pid).memory_info().rss


def worker_pids() -> list[int]:
    """The processes that this one started through multiprocessing: in a run, its loader workers.

    Read from multiprocessing's own register. `active_children()` would do, but it waits for those that have died, and
    the loader, which watches for just that, would no longer learn of it.
    """
    return [child.pid for child in list(multiprocessing.process._children) if child.pid is not None]


def peak_rss_bytes() -> int | None:
    """The most memory that this process ever had resident, shared pages in full; None where nobody keeps it.

    VmHWM on Linux, since `ru_maxrss` there is handed on by the process that started this one; elsewhere `ru_maxrss`.
    """
    try:
        with open(PROC / "self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _gib(number_of_bytes: int | None) -> float | None:
    return None if number_of_bytes is None else round(number_of_bytes / nvml.GIB, 6)


def _highest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
