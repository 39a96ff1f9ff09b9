"""Memory by what it is for, on GPUs that are not here: snapshots of torch's documented form, and a made-up driver."""

import pytest

from bench.profile.memory_parts import BESIDES, Note, at_peak, in_places, of_gpu, of_snapshot, with_sizes

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


def test_a_bucket_that_the_allocator_does_not_have_is_not_made_up():
    events, after = of_snapshot(SNAPSHOT, device=1)
    parts, _ = at_peak(with_sizes(in_places(events, after, {}, []), "buckets", [77], complete=True))
    assert "buckets" not in parts


def test_the_parts_of_a_gpu_add_up_to_what_the_driver_counts():
    tensors = {"weights": 10, "activations": 30}
    parts, notes = of_gpu(tensors, reserved=50, process=57, device=60)
    assert sum(parts.values()) == 60 and not notes and list(parts)[2:] == list(BESIDES)
    parts, notes = of_gpu(tensors, reserved=50, process=45, device=60)  # the process is sampled a moment too early
    assert sum(parts.values()) == 60 and parts["context, libraries"] == 0 and "below 0 by 5 bytes" in notes[0]


# torch.cuda as far as the recorder asks it; the step is the one above.
RECORD = """
import json, os
from types import SimpleNamespace
import torch
GIB = 2**30
calls, snapshot = [], json.loads(os.environ["STUB_NVML_SNAPSHOT"].replace(";", ","))
cuda = torch.cuda
cuda.get_device_properties = lambda i: SimpleNamespace(name=f"GPU {i}", uuid="b1111111-0000-0000-0000-000000000001")
cuda.reset_peak_memory_stats = lambda i: None
cuda.synchronize = lambda device: calls.append("synchronize")
cuda.memory_stats = lambda i: {"reserved_bytes.all.current": GIB // 8}
def history(enabled, **options):
    if os.environ.get("STUB_NVML_NO_HISTORY"): raise RuntimeError("no history")
    calls.append(enabled)
cuda.memory._record_memory_history, cuda.memory._snapshot = history, lambda: snapshot
from bench.profile.allocations import record_step
from bench.profile.memory_parts import Note
noted = [Note("images", 5, 0)]
found = record_step(lambda: calls.append("step"), [torch.device("cuda", 1)], lambda: [], noted, lambda: [])
print(json.dumps([calls, found]))
"""


@pytest.fixture(scope="module")
def recorded(nvml_stub):
    import json

    def run(**settings):
        snapshot = json.dumps(SNAPSHOT).replace(",", ";")
        return nvml_stub.run(RECORD, used_mib=[0, 300], snapshot=snapshot, **settings)

    return run


@pytest.mark.slow
def test_a_recorded_step_of_a_gpu_has_the_drivers_figures_besides(recorded):
    calls, (found,) = recorded(processes=["1:self:200"])
    assert calls == ["all", "step", "synchronize", None]  # recording is off before anything is read
    mib = {kind: round(1024 * size) for kind, size in found["gib"].items()}
    assert mib == {"images": 2, "activations": 31, "kept": 60, "cache": 128 - 93, "context, libraries": 72,
                   "other processes": 100}  # fmt: skip
    assert sum(mib.values()) == 300 and found["notes"] == []


@pytest.mark.slow
def test_what_cannot_be_had_is_a_note_and_the_step_is_taken(recorded):
    _, (found,) = recorded(processes=["1:4242:200"])  # in a container
    assert "context, libraries" not in found["gib"] and "NVML has no figure of this process" in found["notes"][0]
    calls, (found,) = recorded(no_history="1")
    assert "step" in calls and "gib" not in found and "torch keeps no history" in found["notes"][0]
