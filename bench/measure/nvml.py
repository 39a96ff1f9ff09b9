"""What the NVIDIA driver says about the GPUs, asked through NVML. Needs no torch, and no driver to be imported.

Two libraries number the same GPUs differently. NVML follows the PCI bus. CUDA puts the fastest GPU first, unless
`CUDA_DEVICE_ORDER=PCI_BUS_ID`. On a machine whose GPUs are all of one kind both orders are the same; on a mixed one
they are not, and memory would be read from the wrong GPU. So a list made without torch (here) is in NVML's order,
and a process that has torch finds its GPU by UUID, else by PCI bus, and only then by position: `open_device`.

A GPU in MIG mode is listed with `is_partitioned`, and its slices are `slices_of`. CUDA gives a process one slice, the
first that `CUDA_VISIBLE_DEVICES` names, so a run on one device can have it, and no other.
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
WSL = Path("/usr/lib/wsl/lib")  # where Windows puts the driver's libraries for Linux
# Reasons for which a clock is held down, as bits (nvml.h): hardware slowdown, heat by software and by hardware, power
# brake. A power cap is not among them: a board at its limit of power is at work.
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
POWER_CAPPED = 0x4  # by software, at the limit that the board is set to
# Drivers 535.43.02 to 535.86.05 write rows of another length into the third form of the list of processes.
BAD_LISTS = ((535, 43), (535, 86))
NOBODY = {0, 0xFFFFFFFF}  # process ids that no process has


@dataclass(frozen=True)
class Gpu:
    """One GPU. `index` is NVML's number, the one nvidia-smi prints; CUDA's is the position in `visible_gpus()`.

    memory_total_gib, compute_capability ("9.0"): None where the driver does not say. is_partitioned: it is in MIG mode.
    is_slice: it is a slice of the GPU with this index; its UUID begins with "MIG-".
    """

    index: int
    uuid: str
    name: str
    memory_total_gib: float | None
    pci_bus_id: str | None
    compute_capability: str | None = None
    is_partitioned: bool = False
    is_slice: bool = False


def nvml_state() -> tuple[str | None, str | None]:
    """(driver version, None), or (None, one sentence on why NVML does not answer). Never raises."""
    lib, reason = _connect()
    if lib is None:
        return None, reason
    try:
        return _text(lib.nvmlSystemGetDriverVersion()), None
    except lib.NVMLError as error:
        return None, _explain(lib, error)


def is_absent() -> bool:
    """Whether this machine has no NVIDIA driver at all, as most laptops."""
    lib, reason = _connect()
    return lib is None and "libnvidia-ml.so.1 was not found" in reason


def cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver serves, as in (13, 0); None where it does not say. Never raises.

    NVML reads it from the driver's libcuda as a process would find it, so a compatibility package counts.
    """
    lib, _ = _connect()
    if lib is None:
        return None
    number = _try(lib, lib.nvmlSystemGetCudaDriverVersion_v2) or _try(lib, lib.nvmlSystemGetCudaDriverVersion)
    return (number // 1000, number % 1000 // 10) if number else None


def visible_gpus() -> list[Gpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves to this process, or the one MIG slice; empty without a driver. Never
    raises."""
    every = every_gpu()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if (wanted or "").startswith("MIG-"):
        return _by_slice(every, wanted.split(",")[0].strip())
    return every if wanted is None else _select(every, wanted)


def why_no_gpu() -> str | None:
    """One sentence on why `visible_gpus()` is empty, or None where it is not."""
    if visible_gpus():
        return None
    _, reason = nvml_state()
    if reason is not None:
        return reason
    count, wanted = len(every_gpu()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if count == 0:
        return "The NVIDIA driver runs, and lists no GPU that this process may use."
    entries = [entry.strip() for entry in (wanted or "").split(",")]
    if entries[0].startswith("MIG-"):
        names = ", ".join(gpu.uuid for whole in every_gpu() for gpu in slices_of(whole)) or "no slices"
        return f"CUDA_VISIBLE_DEVICES={wanted}: {entries[0]} is no MIG slice of this machine, which has {names}."
    if not _names_gpus(entries[0]):
        return f"CUDA_VISIBLE_DEVICES={wanted!r} hides all {count} GPUs of this machine."
    if _select(every_gpu(), entries[0]):
        return f"CUDA_VISIBLE_DEVICES={wanted} names a GPU twice, and CUDA then shows none."
    return f"CUDA_VISIBLE_DEVICES={wanted}: {entries[0]} is none of this machine's {count} GPUs, or names several."


def why_not_meant() -> str | None:
    """One sentence where no GPU is visible though some are meant to be used; else None.

    So it is where `CUDA_VISIBLE_DEVICES` names GPUs that cannot be had, and where the driver does not answer though its
    device files are there: in a container without `libnvidia-ml`, after an update of a driver that is in use.
    """
    if visible_gpus():
        return None
    _, reason = nvml_state()
    if reason is None:
        return why_no_gpu() if _names_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()) else None
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    if is_absent() and (WSL / "libnvidia-ml.so.1").exists():
        return f"WSL2 has the NVIDIA driver's libraries in {WSL}, and they are not found: LD_LIBRARY_PATH={WSL}."
    found = sorted(path for path in DEVICE_FILES.glob("nvidia*") if path.name[6:].isdecimal())
    if not found:
        return None
    remedy = ""
    if "libnvidia-ml.so.1" in reason:
        remedy = " A container gets that library with NVIDIA_DRIVER_CAPABILITIES=compute,utility."
    return f"There is a GPU ({found[0]}), and NVML does not answer: {reason}{remedy}"


def _names_gpus(entry: str) -> bool:
    """Whether an entry of `CUDA_VISIBLE_DEVICES` has the form of a GPU's name; what hides all GPUs has not."""
    return entry[:1].isdecimal() or entry.startswith(("GPU-", "MIG-"))


def every_gpu() -> list[Gpu]:
    """All GPUs in NVML's order, leaving out those that the driver refuses to open (lost, or not permitted)."""
    lib, _ = _connect()
    if lib is None:
        return []
    found = []
    try:
        for index in range(lib.nvmlDeviceGetCount()):
            try:
                found.append(_describe(lib, index, lib.nvmlDeviceGetHandleByIndex(index)))
            except lib.NVMLError:
                continue
    except lib.NVMLError:
        return []
    return found


def lost_gpus() -> list[str]:
    """A sentence for each GPU that the driver lists and does not let this process open."""
    lib, _ = _connect()
    if lib is None:
        return []
    lost = []
    for index in range(_try(lib, lib.nvmlDeviceGetCount) or 0):
        try:
            lib.nvmlDeviceGetHandleByIndex(index)
        except lib.NVMLError as error:
            lost.append(f"GPU {index} cannot be used: {_explain(lib, error)}")
    return lost


def slices_of(gpu: Gpu) -> list[Gpu]:
    """The MIG slices of a GPU that this process may use, in NVML's order; empty for one that is whole. Never raises."""
    lib, _ = _connect()
    parent = lib and gpu.is_partitioned and _try(lib, lambda: lib.nvmlDeviceGetHandleByIndex(gpu.index))
    if not parent:
        return []
    found = []
    for number in range(_try(lib, lambda: lib.nvmlDeviceGetMaxMigDeviceCount(parent)) or 0):
        handle = _try(lib, lambda number=number: lib.nvmlDeviceGetMigDeviceHandleByIndex(parent, number))
        if handle is not None:
            whole = {"pci_bus_id": gpu.pci_bus_id, "compute_capability": gpu.compute_capability}
            found.append(replace(_describe(lib, gpu.index, handle), **whole, is_partitioned=False, is_slice=True))
    return found


def _describe(lib: ModuleType, index: int, handle: Any) -> Gpu:
    memory = _try(lib, lambda: lib.nvmlDeviceGetMemoryInfo(handle).total)  # none where it is the host's
    capability = _try(lib, lambda: lib.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(
        index=index,
        uuid=_text(lib.nvmlDeviceGetUUID(handle)),
        name=_text(lib.nvmlDeviceGetName(handle)),
        memory_total_gib=None if memory is None else round(memory / GIB, 3),
        pci_bus_id=_try(lib, lambda: _text(lib.nvmlDeviceGetPciInfo(handle).busId)),
        compute_capability=None if capability is None else "{}.{}".format(*capability),
        is_partitioned=bool((_try(lib, lambda: lib.nvmlDeviceGetMigMode(handle)) or [0])[0]),
    )


# --- CUDA_VISIBLE_DEVICES ---------------------------------------------------------------------------------------


def _select(every: list[Gpu], wanted: str) -> list[Gpu]:
    """The GPUs that the value `wanted` names, by CUDA's own rules.

    The list ends at the first entry that names no GPU, so '' and '-1' leave none and '0,-1,1' leaves GPU 0. Naming a
    GPU twice leaves none. A UUID may be cut short as long as it names one GPU: 'GPU-3f'.
    """
    pick = _by_uuid if wanted.startswith("GPU-") else _by_number
    chosen: list[Gpu] = []
    for entry in wanted.split(","):
        gpu = pick(every, entry.strip())
        if gpu is None:
            break
        if gpu in chosen:
            return []
        chosen.append(gpu)
    return chosen


def _by_uuid(every: list[Gpu], entry: str) -> Gpu | None:
    matches = [gpu for gpu in every if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _by_slice(every: list[Gpu], entry: str) -> list[Gpu]:
    """None of them where the entry names none or several."""
    matches = [gpu for whole in every for gpu in slices_of(whole) if gpu.uuid.startswith(entry)]
    return matches if len(matches) == 1 else []


def _by_number(every: list[Gpu], entry: str) -> Gpu | None:
    return every[int(entry)] if entry.isdecimal() and int(entry) < len(every) else None


# --- one GPU's figures ------------------------------------------------------------------------------------------


def open_device(
    uuid: str | None = None, pci_bus_id: str | None = None, position: int | None = None
) -> tuple[NvmlDevice | None, str | None]:
    """(the GPU, a remark or None), or (None, why it cannot be read). Never raises.

    uuid: with or without its prefix; torch gives it without. pci_bus_id: 'domain:bus:device.function' in hexadecimal,
    tried where the UUID finds nothing. position: CUDA's number, tried last: right only where both count alike.
    """
    lib, reason = _connect()
    if lib is None:
        return None, reason
    visible = visible_gpus()
    if visible and visible[0].is_slice:  # CUDA may tell the UUID and the PCI bus of the GPU that it is a part of
        uuid = visible[0].uuid
    if uuid is not None:
        for full in [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]:
            handle = _try(lib, lambda full=full: lib.nvmlDeviceGetHandleByUUID(full))
            if handle is not None:
                return NvmlDevice(lib, handle), None
    if pci_bus_id is not None:
        handle = _try(lib, lambda: lib.nvmlDeviceGetHandleByPciBusId(pci_bus_id))
        if handle is not None:
            return NvmlDevice(lib, handle), None
    if position is not None and position < len(visible):
        handle = _try(lib, lambda: lib.nvmlDeviceGetHandleByIndex(visible[position].index))
        if handle is not None:
            return NvmlDevice(lib, handle), "NVML's GPU was found by its position, not by UUID or PCI bus."
    return None, "NVML knows no GPU with this UUID, PCI bus or position."


def _try(lib: ModuleType, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except lib.NVMLError:
        return None


class NvmlDevice:
    """One GPU's live figures. A figure that the driver cannot give is None, and `reasons[figure]` says why."""

    def __init__(self, lib: ModuleType, handle: Any) -> None:
        self._lib, self._handle = lib, handle
        self._lacking: set[str] = set()  # figures that this driver or GPU will never give: not asked for again
        self.reasons: dict[str, str] = {}
        self.uuid = _try(lib, lambda: _text(lib.nvmlDeviceGetUUID(handle)))
        self.name = _try(lib, lambda: _text(lib.nvmlDeviceGetName(handle)))
        self._memory_version = self._newest_memory_version()
        self._list_processes = self._newest_process_list()

    @property
    def used_includes_reserved(self) -> bool:
        """True where the driver is too old to tell used memory from what it keeps for itself (hundreds of MiB)."""
        return self._memory_version is None

    def used_bytes(self) -> int | None:
        """By everybody."""
        return self._ask(
            "used", lambda: self._lib.nvmlDeviceGetMemoryInfo(self._handle, version=self._memory_version).used
        )

    def free_bytes(self) -> int | None:
        return self._ask(
            "free", lambda: self._lib.nvmlDeviceGetMemoryInfo(self._handle, version=self._memory_version).free
        )

    def process_bytes(self, pid: int) -> int | None:
        """Its CUDA context included."""
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
        return sum(used)  # one row per process, but one per slice where the GPU is partitioned

    def utilization_percent(self) -> int | None:
        """Share of the last 1/6 s to 1 s in which any kernel ran: not how well the GPU was filled."""
        return self._ask("utilization", lambda: self._lib.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def power_w(self) -> float | None:
        return self._ask("power", lambda: self._lib.nvmlDeviceGetPowerUsage(self._handle) / 1e3)

    def power_limit_w(self) -> float | None:
        """Less than another GPU's makes it slower."""
        return self._ask("power limit", lambda: self._lib.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1e3)

    def processes(self) -> list[int] | None:
        """In a container they may be the host's numbers."""
        rows = self._rows()
        return None if rows is None else sorted({row.pid for row in rows})

    def _rows(self) -> list[Any] | None:
        """None where the list of compute processes cannot be had, or is not what it seems."""
        rows = self._ask("process", lambda: self._list_processes(self._handle))
        if rows and any(row.pid in NOBODY for row in rows):
            self.reasons["process"] = (
                "NVML's list of processes has ids that no process has: a fault of this driver, so it is not used."
            )
            return None
        return rows

    def sm_clock_mhz(self) -> int | None:
        return self._ask("clock", lambda: self._lib.nvmlDeviceGetClockInfo(self._handle, self._lib.NVML_CLOCK_SM))

    def throttle_reasons(self) -> int | None:
        """Bits of nvml.h; ``SLOWED`` are those that disturb."""
        return self._ask("throttle", lambda: self._lib.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def energy_j(self) -> float | None:
        """Since the driver was loaded (from Volta on)."""
        return self._ask("energy", lambda: self._lib.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3)

    def _ask(self, figure: str, read: Callable[[], Any]) -> Any:
        """What `read` returns, or None with a reason. What this driver lacks is asked for once."""
        if figure in self._lacking:
            return None
        try:
            return read()
        except self._lib.NVMLError as error:
            self.reasons[figure] = _explain(self._lib, error)
            if isinstance(error, (self._lib.NVMLError_FunctionNotFound, self._lib.NVMLError_NotSupported)):
                self._lacking.add(figure)
            return None

    def _newest_memory_version(self) -> int | None:
        """The second form of the memory struct tells used from reserved; the first adds the two together."""
        version = getattr(self._lib, "nvmlMemory_v2", None)
        if version and _try(self._lib, lambda: self._lib.nvmlDeviceGetMemoryInfo(self._handle, version=version)):
            return version
        return None

    def _newest_process_list(self) -> Callable[[Any], list[Any]]:
        """The second form where the driver is older, or garbles the third."""
        newest = self._lib.nvmlDeviceGetComputeRunningProcesses_v3
        older = getattr(self._lib, "nvmlDeviceGetComputeRunningProcesses_v2", newest)
        if BAD_LISTS[0] <= _driver_numbers(self._lib) <= BAD_LISTS[1]:
            return older
        try:
            newest(self._handle)
        except self._lib.NVMLError_FunctionNotFound:
            return older
        except self._lib.NVMLError:
            return newest
        return newest


# --- how GPUs are attached ---------------------------------------------------------------------------------------

MOST_LINKS = 18  # NVLinks of a GPU
# Of nvml.h: nvmlGpuTopologyLevel_t in the letters of `nvidia-smi topo -m`, and nvmlGpuP2PStatus_t.
PATHS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
PEER = {0: "ok", 1: "not by this chipset", 2: "not by these GPUs", 3: "not by this PCIe topology", 4: "disabled",
        5: "not supported"}  # fmt: skip
READ, BY_NVLINK = 0, 2  # nvmlGpuP2PCapsIndex_t


def topology() -> dict[str, list[dict]] | None:
    """How the visible GPUs are attached; None without any. What the driver does not say is None. Never raises.

    gpus: of each its index, PCIe generation and width, now and at most (an idle GPU may lower them), active NVLinks,
    whether ECC, persistence and MIG mode are on. pairs: of each two the path between them in the letters of
    `nvidia-smi topo -m`, whether one may read the other's memory (peer_to_peer: "ok", or why not), and whether it
    does so by NVLink.
    """
    lib, _ = _connect()
    handles = [(gpu, _try(lib, lambda gpu=gpu: lib.nvmlDeviceGetHandleByIndex(gpu.index))) for gpu in visible_gpus()]
    if not handles:
        return None
    pairs = [(one, other) for number, one in enumerate(handles) for other in handles[number + 1 :]]
    return {
        "gpus": [_attached(lib, gpu, handle) for gpu, handle in handles],
        "pairs": [_between(lib, one, other) for one, other in pairs],
    }


def _attached(lib: ModuleType, gpu: Gpu, handle: Any) -> dict:
    def ask(function: str, *arguments: Any) -> Any:
        return _try(lib, lambda: getattr(lib, function)(handle, *arguments))

    links = [ask("nvmlDeviceGetNvLinkState", link) for link in range(MOST_LINKS)]
    ecc, persistence = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetPersistenceMode")
    return {
        "index": gpu.index,
        "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "nvlinks": sum(map(bool, links)),
        "ecc": None if ecc is None else bool(ecc[0]),
        "persistence": None if persistence is None else bool(persistence),
        "mig": gpu.is_partitioned or gpu.is_slice,
    }


def _between(lib: ModuleType, one: tuple[Gpu, Any], other: tuple[Gpu, Any]) -> dict:
    handles = one[1], other[1]
    path = _try(lib, lambda: lib.nvmlDeviceGetTopologyCommonAncestor(*handles))
    peer = _try(lib, lambda: lib.nvmlDeviceGetP2PStatus(*handles, READ))
    by_nvlink = _try(lib, lambda: lib.nvmlDeviceGetP2PStatus(*handles, BY_NVLINK))
    return {
        "gpus": [one[0].index, other[0].index],
        "path": PATHS.get(path),
        "peer_to_peer": None if peer is None else PEER.get(peer, "unknown"),
        "nvlink": None if by_nvlink is None else by_nvlink == 0,
    }


# --- the library ------------------------------------------------------------------------------------------------


@functools.cache
def _connect() -> tuple[ModuleType | None, str | None]:
    """(pynvml with NVML started, None), or (None, why not). Asked once per process; NVML is left open till its end."""
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
        lib.NVMLError_FunctionNotFound: "The NVIDIA driver is too old: its NVML lacks the function asked for.",
        lib.NVMLError_DriverNotLoaded: "The NVIDIA driver is installed but not loaded.",
        lib.NVMLError_LibRmVersionMismatch: "The NVIDIA driver was updated while in use: restart the machine.",
        lib.NVMLError_NoPermission: "The NVIDIA driver refuses this process (NVML: no permission).",
        lib.NVMLError_NotSupported: "This GPU does not give the figure (NVML: not supported).",
    }
    return sentences.get(type(error), f"NVML failed: {str(error).rstrip('.')}.")


def _text(value: str | bytes) -> str:
    """pynvml gives text or bytes, by function and by version."""
    return value.decode() if isinstance(value, bytes) else value


def _driver_numbers(lib: ModuleType) -> tuple[int, ...]:
    """535.54.03 is (535, 54), and a made-up 570.00.stub is (570, 0); empty where there is no version."""
    found = re.match(r"(\d+)\.(\d+)", _text(_try(lib, lib.nvmlSystemGetDriverVersion) or ""))
    return tuple(map(int, found.groups())) if found else ()
