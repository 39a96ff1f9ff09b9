"""Every allocation of one step, run once after the timed ones: by torch's profiler on a CPU, by the history of torch's
allocator on a GPU. `memory_parts.py` divides them by purpose.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator

import torch

from bench.measure.memory import CudaProbe
from bench.measure.nvml import GIB
from bench.profile import memory_parts
from bench.profile.memory_parts import WORKSPACE, Event, Note, at_peak, in_places, with_sizes

MOST_EVENTS = 1_000_000  # of a step on a GPU; a resnet152 has some ten thousand
OPERATIONS = ("aten::",)  # prefix of torch's tensor operations
COLLECTIVES = ("c10d::", "gloo:")  # prefixes of torch's collectives, as called and as run by Gloo
HOST = (
    "torch.profiler, every allocation of one more step on the CPU in the training thread; DDP's buckets by its own "
    "account; what an engine's threads take, as Horovod's fusion buffer, is not seen"
)
HISTORY = "torch's allocator: its history of one more step; NVML just after it"


def record_step(
    step: Callable[[], None], devices: list[torch.device], kept: Callable[[], Iterable], noted: list[Note],
    buckets: Callable[[], list[int]],
) -> list[dict]:  # fmt: skip
    """Run a step and return, for each device, its memory by kind at the peak: ``gib`` ({kind: GiB}), ``source`` and
    ``notes``; no ``gib`` if recording failed.

    kept: called afterwards; (kind, tensor) of all known persistent tensors. noted: the step's own tensors. buckets:
    called afterwards; the bytes of each buffer of the backend.
    """
    recording = HistoryOfGpus(devices) if devices[0].type == "cuda" else ProfileOfHost()
    recording.start()
    try:
        step()
    finally:
        recording.stop()
    try:
        known = {address_of(tensor): (kind, tensor) for kind, tensor in reversed(list(kept()))}
        return [recording.parts(device, known, noted, buckets()) for device in recording.devices]
    except Exception as error:  # torch's private interfaces may change
        why = f"the memory by kind is unknown: {type(error).__name__}: {error}"
        return [{"source": recording.source, "notes": [why]} for _ in recording.devices]


def address_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class ProfileOfHost:
    """The CPU's allocations. Earlier blocks are seen only if they are known."""

    source, devices = HOST, [torch.device("cpu")]

    def start(self) -> None:
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True,
                                               record_shapes=True)  # fmt: skip
        self.profiler.__enter__()

    def stop(self) -> None:
        self.profiler.__exit__(None, None, None)

    def parts(self, device: torch.device, known: dict, noted: list[Note], buckets: list[int]) -> dict:
        after = {address: tensor.untyped_storage().nbytes() for address, (_, tensor) in known.items()}
        kinds = {address: kind for address, (kind, _) in known.items()}
        events = self.events(set(after))
        tensors, whole = (
            at_peak(with_sizes(in_places(some, after, kinds, noted), "buckets", buckets, complete=False))[0]
            for some in ([event for event in events if not event.workspace], events)
        )
        tensors[WORKSPACE] = sum(whole.values()) - sum(tensors.values())
        return {"gib": in_gib(tensors), "source": self.source, "notes": []}

    def events(self, staying: Collection[int] = ()) -> list[Event]:
        """In order. staying: addresses of known tensors that remain after the step.

        The profiler does not see that Gloo's threads free memory. Memory that a collective allocates for itself counts
        as freed when it ends; gathered or sent tensors after the last operation on them.
        """
        from torch._C._profiler import _EventType

        found, used = [], defaultdict(list)
        nodes = list(self.profiler.profiler.kineto_results.experimental_event_tree())
        while nodes:
            node = nodes.pop()
            nodes += node.children
            if node.tag == _EventType.Allocation and node.extra_fields.device.type == "cpu":
                found.append(node)
            elif node.tag == _EventType.TorchOp:
                for address in storages(node.extra_fields.inputs):
                    used[address].append(node)
        found.sort(key=lambda node: (node.start_time_ns, node.id))
        events, next_at = [], {}  # address -> index of the next event there
        for node in reversed(found):
            event = Event(node.extra_fields.ptr, node.extra_fields.alloc_size, node.start_time_ns)
            later = next_at.get(event.address)
            goes = later is not None and events[later].size < 0
            if event.size > 0 and goes and events[later].moment <= end_of(node, OPERATIONS):
                events[later], event = (each._replace(workspace=True) for each in (events[later], event))
            elif event.size > 0 and not goes:
                until = math.inf if later is None else events[later].moment
                stays = later is None and event.address in staying
                on_it = [each for each in used[event.address] if event.moment <= each.start_time_ns < until]
                sent = not stays and any(each.name.startswith(COLLECTIVES) for each in on_it)
                if end := end_of(node, COLLECTIVES) or (max(each.end_time_ns for each in on_it) if sent else 0):
                    events.append(Event(event.address, -event.size, min(end, until)))
            next_at[event.address] = len(events)
            events.append(event)
        events.reverse()
        return sorted(events, key=lambda event: event.moment)


def storages(inputs: Iterable) -> Iterator[int]:
    """The base address of each tensor among an operation's inputs."""
    for each in inputs:
        if isinstance(each, list):
            yield from storages(each)
        elif address := getattr(each, "storage_data_ptr", None):
            yield address


def end_of(node, names: tuple[str, ...]) -> int:
    """When the outermost such operation around an event ended; 0 where there is none."""
    end = 0
    while node := node.parent:
        if node.name.startswith(names):
            end = node.end_time_ns
    return end


class HistoryOfGpus:
    source = HISTORY

    def __init__(self, devices: list[torch.device]):
        self.devices = devices
        self.why = None  # recording failed

    def start(self) -> None:
        self.call("all", max_entries=MOST_EVENTS)

    def stop(self) -> None:
        for device in self.devices:
            torch.cuda.synchronize(device)
        if self.why is None:
            self.snapshot = torch.cuda.memory._snapshot()
        self.call(None)

    def call(self, enabled: str | None, **options) -> None:
        try:
            torch.cuda.memory._record_memory_history(enabled=enabled, context=None, **options)
        except Exception as error:
            self.why = self.why or f"torch keeps no history of its allocations: {type(error).__name__}: {error}"

    def parts(self, device: torch.device, known: dict, noted: list[Note], buckets: list[int]) -> dict:
        if self.why:
            return {"source": self.source, "notes": [self.why]}
        events, after = memory_parts.of_snapshot(self.snapshot, device.index)
        kinds = {address: kind for address, (kind, tensor) in known.items() if tensor.device == device}
        trace = in_places(events, after, kinds, noted)
        tensors, _ = at_peak(with_sizes(trace, "buckets", buckets, complete=True))
        row = CudaProbe(device).read()
        figures = [row[name] for name in ("torch_reserved_gib", "nvml_process_gib", "nvml_device_gib")]
        parts, notes = memory_parts.of_gpu(tensors, *(None if x is None else round(x * GIB) for x in figures))
        full = ["the step made more allocations than are kept"] if len(events) >= MOST_EVENTS else []
        return {"gib": in_gib(parts), "source": self.source, "notes": [*notes, *full]}


def in_gib(parts: dict[str, int]) -> dict[str, float]:
    return {kind: round(size / GIB, 6) for kind, size in parts.items()}
