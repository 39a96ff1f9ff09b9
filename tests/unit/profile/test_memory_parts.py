"""Memory by what it is for: on GPUs that are not here, with snapshots of torch's documented form and a made-up driver;
and on a CPU a real collective over Gloo, whose memory another thread lets go."""

import json
import threading

import pytest
import torch
import torch.distributed as dist

from bench.profile.allocations import record_step
from bench.profile.memory_parts import WORKSPACE, Note, at_peak, in_places, of_gpu, of_snapshot, with_sizes

MIB = 2**20


def block(address: int, mib: int, state: str = "active_allocated") -> dict:
    return {"address": address, "size": mib * MIB, "requested_size": mib * MIB - 100, "state": state}


def action(name: str, address: int, mib: int) -> dict:
    return {"action": name, "addr": address, "size": mib * MIB - 100, "stream": 0, "time_us": 0}


# One GPU's step: weights of 10 MiB at 1, a bucket of 10 at 2, momentum of 10 at 3 and the pool of images, which nobody
# knows, at 4 were there. The batch comes at 5; activations at 6 and 7; gradients at 8, while 7 goes; then 6 and 5 go.
SNAPSHOT = {
    "device_traces": [
        [],
        [action("segment_alloc", 5, 64), action("alloc", 5, 2), action("alloc", 6, 30), action("alloc", 7, 8),
         action("free_requested", 7, 8), action("free_completed", 7, 8), action("alloc", 7, 1), action("alloc", 8, 10),
         action("free_requested", 7, 1), action("free_completed", 7, 1), action("free_requested", 6, 30),
         action("free_completed", 6, 30), action("free_requested", 5, 2), action("free_completed", 5, 2)],
    ],
    "segments": [
        {"device": 0, "address": 1, "blocks": [block(1, 999)]},
        {"device": 1, "address": 1, "blocks": [block(1, 10), block(2, 10), block(3, 10), block(4, 20), block(8, 10),
                                               block(9, 4, "inactive"), block(10, 3, "active_awaiting_free")]},
    ],
    "allocator_settings": {},
}  # fmt: skip


def test_the_peak_of_a_gpus_step_is_divided_by_what_each_block_is_for():
    events, after = of_snapshot(SNAPSHOT, device=1)
    known = {1: "weights", 3: "optimizer state", 8: "gradients"}
    trace = in_places(events, after, known, [Note("images", 5, 0)])
    parts, when = at_peak(with_sizes(trace, "buckets", [10 * MIB - 100], complete=True))
    mib = {kind: round(size / MIB) for kind, size in parts.items()}
    assert mib.pop("activations") == 31 and mib.pop("kept") == 20 and mib.pop("images") == 2
    assert mib == dict.fromkeys(("weights", "gradients", "optimizer state", "buckets"), 10)
    assert events[when - 1][:2] == (8, 10 * MIB - 100)  # the last that came before anything went for good


def test_the_parts_of_a_gpu_add_up_to_what_the_driver_counts():
    """Also where the process is sampled a moment too early."""
    parts, notes = of_gpu({"weights": 10, "activations": 30}, reserved=50, process=45, device=60)
    assert sum(parts.values()) == 60 and parts["context, libraries"] == 0 and "5 bytes" in notes[0]


# torch.cuda as far as the recorder asks it; the step is the one above.
RECORD = """
from types import SimpleNamespace
import torch
from bench.profile.allocations import record_step
from bench.profile.memory_parts import Note
GIB = 2**30
calls, cuda = [], torch.cuda
cuda.get_device_properties = lambda i: SimpleNamespace(name=f"GPU {i}", uuid="b1111111-0000-0000-0000-000000000001")
cuda.reset_peak_memory_stats = lambda i: None
cuda.synchronize = lambda device: calls.append("synchronize")
cuda.memory_stats = lambda i: {"reserved_bytes.all.current": GIB // 8}
def history(enabled, **options):
    if os.environ.get("STUB_NVML_NO_HISTORY"): raise RuntimeError("no history")
    calls.append(enabled)
cuda.memory._record_memory_history = history
cuda.memory._snapshot = lambda: json.loads(os.environ["STUB_NVML_SNAPSHOT"].replace(";", ","))
def ask():
    calls.clear()
    noted = [Note("images", 5, 0)]
    found = record_step(lambda: calls.append("step"), [torch.device("cuda", 1)], lambda: [], noted, lambda: [])
    return [list(calls), *found]
"""


@pytest.mark.slow
def test_a_recorded_step_of_a_gpu_has_the_drivers_figures_and_what_is_missing_is_a_note(nvml_stub):
    usual = {"used_mib": [0, 300], "snapshot": json.dumps(SNAPSHOT).replace(",", ";")}
    rows = [{"processes": ["1:self:200"]}, {"processes": ["1:4242:200"]}, {"no_history": 1}]
    whole, container, bare = nvml_stub.each(RECORD, [usual | row for row in rows])
    calls, found = whole
    assert calls == ["all", "step", "synchronize", None]  # recording is off before anything is read
    mib = {kind: round(1024 * size) for kind, size in found["gib"].items()}
    assert mib == {"images": 2, "activations": 31, "kept": 60, "cache": 128 - 93, "context, libraries": 72,
                   "other processes": 100}  # fmt: skip
    assert sum(mib.values()) == 300 and found["notes"] == []
    _, found = container
    assert "context, libraries" not in found["gib"] and len(found["notes"]) == 1
    calls, found = bare
    assert "step" in calls and "gib" not in found and len(found["notes"]) == 1


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def filled(step, kept=lambda: []) -> dict[str, int]:
    """MiB at the peak by kind, without kernels' workspaces."""
    (found,) = record_step(step, [torch.device("cpu")], kept, [], lambda: [])
    assert found["notes"] == []
    return {kind: round(1024 * gib) for kind, gib in found["gib"].items() if kind != WORKSPACE}


def numbers(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4)


def reduced(mib: int) -> list[torch.Tensor]:
    dist.all_reduce(total := numbers(mib))
    return [total]


def elsewhere(held: list) -> None:
    """Let go in a thread of which the profiler knows nothing, as Gloo's may be the last to do."""
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


@pytest.mark.parametrize("let_go", [list.clear, elsewhere])
def test_what_a_collective_used_is_gone_after_its_last_operation_whichever_thread_lets_go(alone, let_go):
    """The peak is at the end: 20 MiB that were made of the sum, and 70 of what comes last."""
    there, kept = [], []

    def step():
        held = reduced(20)
        there.append(held[0] + 1)
        let_go(held)
        numbers(70)

    assert sum(filled(step).values()) == 90

    def step_that_keeps():
        kept.extend(reduced(20))
        numbers(70)

    found = filled(step_that_keeps, lambda: [("weights", each) for each in kept])
    assert found["weights"] == 20 and found["activations"] == 70
