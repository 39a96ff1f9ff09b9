"""The GPUs as the NVIDIA driver describes them through NVML. Imports neither torch nor a driver.

NVML numbers GPUs by PCI bus; CUDA puts the fastest first, unless `CUDA_DEVICE_ORDER=PCI_BUS_ID`. On a machine with
different GPUs these orders differ. So lists made here are in NVML's order, and a process that has torch finds its GPU
by UUID, else by PCI bus, and only then by position: `open_device`. CUDA gives a process one MIG slice, the first that
`CUDA_VISIBLE_DEVICES` names. Only methods documented to raise do so.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

GIB = 2**30
DEVICE_FILES = Path("/dev")  # nvidia0, nvidia1, …: one per GPU that this system, or this container, may open
WSL = Path("/usr/lib/wsl/lib")  # where Windows puts the driver's Linux libraries
# Throttle reasons as bits (nvml.h): hardware slowdown, heat by software and by hardware, power brake. A power cap is
# not among them.
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
POWER_CAPPED = 0x4  # by software, at the board's power limit
# Drivers 535.43.02 to 535.86.05 write rows of a different length into version 3 of the process list.
BAD_LISTS = ((535, 43), (535, 86))
NOBODY = {0, 0xFFFFFFFF}  # process ids that no process has
MOST_LINKS = 18  # NVLinks of a GPU
# Of nvml.h: nvmlGpuTopologyLevel_t in the letters of `nvidia-smi topo -m`, and nvmlGpuP2PStatus_t.
PATHS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
PEER = {0: "ok", 1: "not by this chipset", 2: "not by these GPUs", 3: "not by this PCIe topology", 4: "disabled",
        5: "not supported"}  # fmt: skip
READ, BY_NVLINK = 0, 2  # nvmlGpuP2PCapsIndex_t


# --- the library ------------------------------------------------------------------------------------------------


@functools.cache
def _connect() -> tuple[ModuleType | None, str | None]:
    """(pynvml with NVML started, None), or (None, why not). Called once per process; NVML stays open."""
    try:
        import pynvml
    except ImportError:
        return None, "The Python package nvidia-ml-py, which gives the module pynvml, is not installed."
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, _explain(pynvml, error)
    return pynvml, None


def _explain(lib: ModuleType, error: Exception) -> str:
    sentences = {
        lib.NVMLError_LibraryNotFound: "There is no NVIDIA driver: its library libnvidia-ml.so.1 was not found.",
        lib.NVMLError_FunctionNotFound: "The NVIDIA driver is too old: its NVML lacks the requested function.",
        lib.NVMLError_DriverNotLoaded: "The NVIDIA driver is installed but not loaded.",
        lib.NVMLError_LibRmVersionMismatch: "The NVIDIA driver was updated while in use: restart the machine.",
        lib.NVMLError_NoPermission: "The NVIDIA driver refuses this process (NVML: no permission).",
        lib.NVMLError_NotSupported: "This GPU does not report the value (NVML: not supported).",
    }
    return sentences.get(type(error), f"NVML failed: {str(error).rstrip('.')}.")


def _call(function: str, *arguments: Any, **options: Any) -> tuple[Any, str | None]:
    """(what an NVML function returns, None), or (None, why there is nothing). pynvml gives some text as bytes."""
    lib, reason = _connect()
    if lib is None:
        return None, reason
    try:
        found = getattr(lib, function)(*arguments, **options)
    except lib.NVMLError as error:
        return None, _explain(lib, error)
    return (found.decode() if isinstance(found, bytes) else found), None


def _ask(function: str, *arguments: Any, **options: Any) -> Any:
    return _call(function, *arguments, **options)[0]


def nvml_state() -> tuple[str | None, str | None]:
    """(driver version, None), or (None, one sentence on why NVML does not answer)."""
    return _call("nvmlSystemGetDriverVersion")


def is_absent() -> bool:
    lib, reason = _connect()
    return lib is None and "libnvidia-ml.so.1 was not found" in reason


def cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports, as in (13, 0). NVML reads it from the libcuda that a process finds, so
    a compatibility package counts."""
    number = _ask("nvmlSystemGetCudaDriverVersion_v2") or _ask("nvmlSystemGetCudaDriverVersion")
    return (number // 1000, number % 1000 // 10) if number else None


# --- which GPUs there are ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """One GPU. `index` is NVML's number, the one nvidia-smi prints; CUDA's is the position in `visible_gpus()`.

    is_partitioned: in MIG mode. is_slice: a MIG slice of the GPU with this index; its UUID begins with "MIG-".
    """

    index: int
    uuid: str
    name: str
    memory_total_gib: float | None
    pci_bus_id: str | None
    compute_capability: str | None = None  # "9.0"
    is_partitioned: bool = False
    is_slice: bool = False


def _describe(index: int, handle: Any) -> Gpu:
    memory, bus = _ask("nvmlDeviceGetMemoryInfo", handle), _ask("nvmlDeviceGetPciInfo", handle)
    capability = _ask("nvmlDeviceGetCudaComputeCapability", handle)
    bus = bus and bus.busId
    return Gpu(
        index=index,
        uuid=_ask("nvmlDeviceGetUUID", handle),
        name=_ask("nvmlDeviceGetName", handle),
        memory_total_gib=memory and round(memory.total / GIB, 3),  # None for the host's
        pci_bus_id=bus.decode() if isinstance(bus, bytes) else bus,
        compute_capability=capability and "{}.{}".format(*capability),
        is_partitioned=bool((_ask("nvmlDeviceGetMigMode", handle) or [0])[0]),
    )


def _handle(gpu: Gpu) -> Any:
    return _ask("nvmlDeviceGetHandleByIndex", gpu.index)


def every_gpu() -> list[Gpu]:
    """All GPUs in NVML's order, without those that the driver refuses to open (lost, or not permitted)."""
    handles = [(index, _ask("nvmlDeviceGetHandleByIndex", index)) for index in range(_ask("nvmlDeviceGetCount") or 0)]
    return [_describe(index, handle) for index, handle in handles if handle is not None]


def lost_gpus() -> list[str]:
    """A sentence for each GPU that the driver lists but does not let this process open."""
    whys = [_call("nvmlDeviceGetHandleByIndex", index)[1] for index in range(_ask("nvmlDeviceGetCount") or 0)]
    return [f"GPU {index} cannot be used: {why}" for index, why in enumerate(whys) if why]


def slices_of(gpu: Gpu) -> list[Gpu]:
    """The MIG slices of a GPU that this process may use, in NVML's order; empty for a whole GPU."""
    parent = _handle(gpu) if gpu.is_partitioned else None
    if parent is None:
        return []
    numbers = range(_ask("nvmlDeviceGetMaxMigDeviceCount", parent) or 0)
    handles = [_ask("nvmlDeviceGetMigDeviceHandleByIndex", parent, number) for number in numbers]
    whole = {"pci_bus_id": gpu.pci_bus_id, "compute_capability": gpu.compute_capability}
    return [replace(_describe(gpu.index, handle), **whole, is_partitioned=False, is_slice=True)
            for handle in handles if handle is not None]  # fmt: skip


def visible_gpus() -> list[Gpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` shows to this process, or its MIG slice; empty without a driver."""
    every = every_gpu()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    return every if wanted is None else _select(every, wanted)


def _select(every: list[Gpu], wanted: str) -> list[Gpu]:
    """The GPUs that the value `wanted` names, by CUDA's own rules.

    The list ends at the first entry that does not name a GPU, so '' and '-1' select none and '0,-1,1' selects GPU 0. A
    GPU named twice selects none. A UUID may be shortened if it is unique: 'GPU-3f'.
    """
    entries = [entry.strip() for entry in wanted.split(",")]
    if wanted.startswith("MIG-"):
        found = [gpu for whole in every for gpu in slices_of(whole) if gpu.uuid.startswith(entries[0])]
        return found if len(found) == 1 else []
    chosen: list[Gpu] = []
    for entry in entries:
        if wanted.startswith("GPU-"):
            found = [gpu for gpu in every if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        else:
            found = every[int(entry) :][:1] if entry.isdecimal() else []
        if len(found) != 1:
            break
        if found[0] in chosen:
            return []
        chosen += found
    return chosen


def _names_gpus(entry: str) -> bool:
    return entry[:1].isdecimal() or entry.startswith(("GPU-", "MIG-"))


def why_no_gpu() -> str | None:
    if visible_gpus():
        return None
    _, reason = nvml_state()
    if reason is not None:
        return reason
    every, wanted = every_gpu(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not every:
        return "The NVIDIA driver runs, but lists no GPU that this process may use."
    first = wanted.split(",")[0].strip()
    if first.startswith("MIG-"):
        names = ", ".join(gpu.uuid for whole in every for gpu in slices_of(whole)) or "no slices"
        return f"CUDA_VISIBLE_DEVICES={wanted}: {first} is not a MIG slice of this machine, which has {names}."
    if not _names_gpus(first):
        return f"CUDA_VISIBLE_DEVICES={wanted!r} hides all {len(every)} GPUs of this machine."
    if _select(every, first):
        return f"CUDA_VISIBLE_DEVICES={wanted} names a GPU twice, so CUDA shows none."
    return f"CUDA_VISIBLE_DEVICES={wanted}: {first} does not match one of the {len(every)} GPUs of this machine."


def why_not_meant() -> str | None:
    """One sentence if no GPU is visible although the user expects some; else None.

    That is if `CUDA_VISIBLE_DEVICES` names GPUs that do not exist, or NVML does not answer although there are device
    files: in a container without `libnvidia-ml`, or after an update of a driver that is in use.
    """
    if visible_gpus():
        return None
    _, reason = nvml_state()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if reason is None:
        return why_no_gpu() if _names_gpus((wanted or "").strip()) else None
    if wanted is not None and wanted.strip() in ("", "-1"):
        return None
    if is_absent() and (WSL / "libnvidia-ml.so.1").exists():
        return f"WSL2 has the NVIDIA driver's libraries in {WSL}, but they are not found: LD_LIBRARY_PATH={WSL}."
    found = sorted(path for path in DEVICE_FILES.glob("nvidia*") if path.name[6:].isdecimal())
    if not found:
        return None
    remedy = ""
    if "libnvidia-ml.so.1" in reason:
        remedy = " A container gets that library with NVIDIA_DRIVER_CAPABILITIES=compute,utility."
    return f"There is a GPU ({found[0]}), but NVML does not answer: {reason}{remedy}"


# --- one GPU's metrics ------------------------------------------------------------------------------------------


def open_device(
    uuid: str | None = None, pci_bus_id: str | None = None, position: int | None = None
) -> tuple[NvmlDevice | None, str | None]:
    """(the GPU, a remark or None), or (None, why it cannot be read).

    uuid: with or without its prefix; torch gives it without. pci_bus_id: 'domain:bus:device.function' in hexadecimal,
    tried if the UUID finds nothing. position: CUDA's number, tried last: right only if both have the same order.
    """
    lib, reason = _connect()
    if lib is None:
        return None, reason
    visible = visible_gpus()
    if visible and visible[0].is_slice:  # CUDA may give the UUID and the PCI bus of the GPU that it is a part of
        uuid = visible[0].uuid
    ways = [] if uuid is None else [("UUID", prefix + uuid) for prefix in ("", "GPU-", "MIG-")]
    ways += [] if pci_bus_id is None else [("PciBusId", pci_bus_id)]
    for key, value in ways:
        handle = _ask(f"nvmlDeviceGetHandleBy{key}", value)
        if handle is not None:
            return NvmlDevice(lib, handle), None
    handle = _handle(visible[position]) if position is not None and position < len(visible) else None
    if handle is not None:
        return NvmlDevice(lib, handle), "NVML's GPU was found by its position, not by UUID or PCI bus."
    return None, "NVML has no GPU with this UUID, PCI bus or position."


def _metric(name: str, function: str, convert: Callable | None = None, *arguments: Any) -> Callable:
    """A method of NvmlDevice that reads a metric, or returns None."""

    def read(self: NvmlDevice) -> float | None:
        value = self._read(name, function, *arguments)
        return value if value is None or convert is None else convert(value)

    return read


class NvmlDevice:
    """One GPU's live metrics. A value that the driver does not report is None, with the reason in `reasons`."""

    def __init__(self, lib: ModuleType, handle: Any) -> None:
        self._lib, self._handle = lib, handle
        self._missing: set[str] = set()  # metrics that this driver or GPU lacks: not read again
        self.reasons: dict[str, str] = {}
        self.uuid, self.name = _ask("nvmlDeviceGetUUID", handle), _ask("nvmlDeviceGetName", handle)
        # Version 2 of the memory struct separates used from reserved; version 1 adds them.
        self._memory_version = getattr(lib, "nvmlMemory_v2", None)
        if not _ask("nvmlDeviceGetMemoryInfo", handle, version=self._memory_version):
            self._memory_version = None
        self._process_list = self._newest_process_list()

    def _newest_process_list(self) -> str:
        newest, older = (f"nvmlDeviceGetComputeRunningProcesses_v{form}" for form in (3, 2))
        numbers = re.match(r"(\d+)\.(\d+)", nvml_state()[0] or "")
        if numbers and BAD_LISTS[0] <= tuple(map(int, numbers.groups())) <= BAD_LISTS[1]:
            return older
        try:
            getattr(self._lib, newest)(self._handle)
        except self._lib.NVMLError_FunctionNotFound:
            return older
        except self._lib.NVMLError:
            pass
        return newest

    def _read(self, metric: str, function: str, *arguments: Any, **options: Any) -> Any:
        """The function's result, or None with a reason. A function that this driver lacks is called once."""
        if metric in self._missing:
            return None
        try:
            return getattr(self._lib, function)(self._handle, *arguments, **options)
        except self._lib.NVMLError as error:
            self.reasons[metric] = _explain(self._lib, error)
            if isinstance(error, (self._lib.NVMLError_FunctionNotFound, self._lib.NVMLError_NotSupported)):
                self._missing.add(metric)
            return None

    @property
    def used_includes_reserved(self) -> bool:
        """Whether the driver is too old to separate used memory from its own reserved memory (hundreds of MiB)."""
        return self._memory_version is None

    def used_bytes(self) -> int | None:
        memory = self._read("used", "nvmlDeviceGetMemoryInfo", version=self._memory_version)
        return memory and memory.used

    def free_bytes(self) -> int | None:
        memory = self._read("free", "nvmlDeviceGetMemoryInfo", version=self._memory_version)
        return memory and memory.free

    def process_bytes(self, pid: int) -> int | None:
        rows = self._rows()
        if rows is None:
            return None
        used = [row.usedGpuMemory for row in rows if row.pid == pid]
        if not used:
            self.reasons["process"] = (
                "NVML lists no such process on the GPU: in a container it knows processes by the host's numbers, "
                "and a process that holds nothing is not listed."
            )
            return None
        if not used[0]:  # NVML_VALUE_NOT_AVAILABLE, which pynvml turns into None; 0 by newer drivers in a container
            self.reasons["process"] = (
                "NVML lists the process without its memory (a virtual GPU, a container, or Windows)."
            )
            return None
        return sum(used)  # one row per process, or per slice if the GPU is partitioned

    def processes(self) -> list[int] | None:
        rows = self._rows()
        return None if rows is None else sorted({row.pid for row in rows})

    def _rows(self) -> list[Any] | None:
        rows = self._read("process", self._process_list)
        if rows and any(row.pid in NOBODY for row in rows):
            self.reasons["process"] = (
                "NVML's list of processes has ids that no process has: a fault of this driver, so it is not used."
            )
            return None
        return rows

    # share of the last 1/6 s to 1 s in which any kernel ran: not how well the GPU was filled
    utilization_percent = _metric("utilization", "nvmlDeviceGetUtilizationRates", lambda rates: rates.gpu)
    power_w = _metric("power", "nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1e3)
    power_limit_w = _metric("power limit", "nvmlDeviceGetEnforcedPowerLimit", lambda milliwatts: milliwatts / 1e3)
    sm_clock_mhz = _metric("clock", "nvmlDeviceGetClockInfo", None, 1)  # NVML_CLOCK_SM
    throttle_reasons = _metric("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons")  # bits: SLOWED, POWER_CAPPED
    # since the driver was loaded (from Volta on)
    energy_j = _metric("energy", "nvmlDeviceGetTotalEnergyConsumption", lambda millijoules: millijoules / 1e3)


# --- how GPUs are attached --------------------------------------------------------------------------------------


def topology() -> dict[str, list[dict]] | None:
    """How the visible GPUs are attached; None without any. Unknown values are None.

    gpus: of each its index, PCIe generation and width, current and maximum (an idle GPU may lower them), active
    NVLinks, whether ECC, persistence and MIG mode are on. pairs: of each two the path between them in the letters of
    `nvidia-smi topo -m`, whether one may read the other's memory (peer_to_peer: "ok", or why not), and whether by
    NVLink.
    """
    handles = [(gpu, _handle(gpu)) for gpu in visible_gpus()]
    if not handles:
        return None
    pairs = [(one, other) for number, one in enumerate(handles) for other in handles[number + 1 :]]
    return {"gpus": [_attached(*each) for each in handles], "pairs": [_between(*pair) for pair in pairs]}


def _attached(gpu: Gpu, handle: Any) -> dict:
    ecc, persistence = _ask("nvmlDeviceGetEccMode", handle), _ask("nvmlDeviceGetPersistenceMode", handle)
    return {
        "index": gpu.index,
        "pcie_generation": _ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": _ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": _ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": _ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "nvlinks": sum(bool(_ask("nvmlDeviceGetNvLinkState", handle, link)) for link in range(MOST_LINKS)),
        "ecc": None if ecc is None else bool(ecc[0]),
        "persistence": None if persistence is None else bool(persistence),
        "mig": gpu.is_partitioned or gpu.is_slice,
    }


def _between(one: tuple[Gpu, Any], other: tuple[Gpu, Any]) -> dict:
    handles = one[1], other[1]
    peer, by_nvlink = (_ask("nvmlDeviceGetP2PStatus", *handles, capability) for capability in (READ, BY_NVLINK))
    return {
        "gpus": [one[0].index, other[0].index],
        "path": PATHS.get(_ask("nvmlDeviceGetTopologyCommonAncestor", *handles)),
        "peer_to_peer": None if peer is None else PEER.get(peer, "unknown"),
        "nvlink": None if by_nvlink is None else by_nvlink == 0,
    }
