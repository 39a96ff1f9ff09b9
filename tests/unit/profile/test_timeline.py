"""The timeline of one step: what is noted, how the clocks are fitted together, and the picture."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd import DeviceType

from bench.profile import timeline as measure
from bench.profile.clocks import join_timelines
from bench.profile.horovod_timeline import BEGIN, END, engine_offset, read_engine
from bench.profile.timeline import BARRIERS, MARK, StepTimeline

CPU = torch.device("cpu")
BUCKET = SimpleNamespace(index=lambda: 0, buffer=lambda: torch.zeros(2))  # as much of a GradBucket as is asked for


def nothing():
    """No barrier, no step."""


def spans_of(result: dict, lane: str) -> list[dict]:
    return [span for span in result["spans"] if span["lane"] == lane]


def take(watched: StepTimeline, step, barrier=nothing) -> dict:
    """Record a step and return its timeline."""
    watched.record(step, barrier)
    return watched.result(7)


def test_a_step_has_phases_and_computation():
    watched, layer, calls = StepTimeline(CPU), nn.Linear(256, 256), []

    def step():
        calls.append("step")
        watched.phase("forward")
        loss = layer(torch.ones(256, 256)).sum()
        watched.phase("backward")
        loss.backward()
        watched.phase("idle")
        time.sleep(0.05)

    result = take(watched, step, lambda: calls.append("barrier"))
    assert calls == ["step", *["barrier"] * BARRIERS, "step"]  # ranks begin the step that is watched together
    assert result["notes"] == [] and result["step"] == 7
    phases = spans_of(result, "phase")
    assert [span["name"] for span in phases] == ["forward", "backward", "idle"]
    assert [span["start_s"] for span in phases[1:]] == [span["end_s"] for span in phases[:-1]]
    assert phases[-1]["end_s"] == pytest.approx(result["step_s"], abs=1e-3)
    compute = spans_of(result, "compute")
    assert compute and {span["name"] for span in compute} == {"main thread"}
    assert all(0 <= span["start_s"] < span["end_s"] <= result["step_s"] + 1e-6 for span in compute)
    assert compute[-1]["end_s"] < phases[-1]["start_s"] + 0.02  # nobody computes while the step sleeps


def test_a_profiler_that_fails_is_a_note_and_a_step_that_fails_is_raised(monkeypatch):
    def broken(*_):
        raise ConnectionError("a peer is gone\nand more")

    with pytest.raises(ConnectionError):
        StepTimeline(CPU).record(broken, nothing)
    monkeypatch.setattr(StepTimeline, "start_profiler", broken)
    steps = []
    watched = StepTimeline(CPU)
    result = take(watched, lambda: (watched.phase("forward"), steps.append(1)))
    assert len(steps) == measure.PROFILED_STEPS
    (note,) = result["notes"]
    assert note.endswith("ConnectionError: a peer is gone")
    assert [span["name"] for span in result["spans"]] == ["forward"]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_on_a_gpu_step_phases_and_communication_are_nested_nvtx_ranges(monkeypatch, on_gpu):
    seen = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("end"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    watched = StepTimeline(CPU)
    watched.on_gpu = on_gpu
    hook = watched.watch_buckets(lambda state, bucket: torch.futures.Future())

    def step():
        watched.phase("forward")
        with watched.span("communication", "buffers", 8):
            watched.phase("backward")
        hook(None, BUCKET).set_result(None)

    watched.record(step, nothing, profiled=False)
    ranges = ["step", "forward", "communication: buffers", "end", "backward", "end", "communication: bucket 0", "end",
              "end", "end"]  # fmt: skip
    assert seen == (ranges if on_gpu else [])


def test_a_bucket_without_an_end_is_a_note(monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE_S", 0.01)
    watched = StepTimeline(CPU)
    hook = watched.watch_buckets(lambda state, bucket: torch.futures.Future())
    (note,) = take(watched, lambda: hook(None, BUCKET))["notes"]
    assert "1 of 1" in note


def event(start, end, thread=1, name="any", scope=0, is_async=False, device=None, stream=0):
    """An event of torch.profiler, microseconds."""
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), thread=thread, scope=scope, is_async=is_async,
        device_type=DeviceType.CPU if device is None else DeviceType.CUDA, device_index=device,
        device_resource_id=stream,
    )  # fmt: skip


def test_named_ranges_and_other_threads_do_not_compute():
    events = [event(0, 9), event(0, 50, scope=measure.USER_SCOPE), event(20, 30, is_async=True), event(3, 8, thread=2)]
    watched = StepTimeline(CPU)
    assert watched.thread_lanes(events, main=1) == {"main thread": events[:1]}
    watched.all_threads = True
    assert watched.thread_lanes(events, main=1) == {"main thread": events[:1], "thread 1": events[3:]}
    with pytest.raises(ValueError):  # a trace without our own ranges
        watched.add_compute([event(0, 9)])


def test_on_a_device_the_streams_of_our_own_additions_compute_and_nccls_kernels_do_not():
    """With OVERLAP=0 the collective is awaited, and runs on the stream of the model."""
    marks = [event(0, 10, name=MARK)]
    ours = [event(20, 30, device=0, stream=7), event(40, 50, device=1, stream=9)]
    others = [
        event(22, 48, device=0, stream=20),
        event(25, 28, device=1, stream=7),
        event(30, 70, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", device=0, stream=7),
        event(50, 70, name="ncclKernel_AllReduce_RING_LL_Sum_float(int)", device=1, stream=9),
    ]
    additions = [event(2, 3, device=0, stream=7), event(4, 5, device=1, stream=9)]
    lanes = StepTimeline(CPU).device_lanes([*marks, *additions, *ours, *others], marks)
    assert lanes == {"cuda:0": ours[:1], "cuda:1": ours[1:]}


HEADER = '[\n{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":2000000000}},'


def operation(pid: int, name: str, start: int, inner: int, end: int, shape: str) -> str:
    """A negotiation and a reduction of one tensor, as Horovod 0.28 writes them; microseconds."""
    return f"""
{{"name": "process_name", "ph": "M", "pid": {pid}, "args": {{"name": "allreduce.{name}"}}}},
{{"name": "process_sort_index", "ph": "M", "pid": {pid}, "args": {{"sort_index": {pid}}}}},
{{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": {start - 500}, "pid": {pid}}},
{{"ph": "X", "name": "0", "ts": {start - 500}, "pid": {pid}, "dur": 0}},
{{"ph": "E", "ts": {start - 100}, "pid": {pid}}},
{{"ph": "B", "name": "ALLREDUCE", "ts": {start}, "pid": {pid}}},
{{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": {inner}, "pid": {pid}}},
{{"ph": "E", "ts": {end - 10}, "pid": {pid}}},
{{"ph": "E", "ts": {end}, "pid": {pid}, "args": {{"dtype": "float32", "shape": "{shape}"}}}},"""


FILE = (
    HEADER
    + operation(1, BEGIN, 1_000_000, 1_000_010, 1_000_100, "[1]")
    + operation(2, "fc.weight", 1_200_000, 1_200_020, 1_200_500, "[10, 5]")
    + operation(3, "fc.bias", 1_200_005, 1_200_025, 1_200_510, "[10]")
    + operation(4, "conv.weight", 1_300_000, 1_300_010, 1_300_900, "[3, 3]")
    + operation(5, END, 1_500_000, 1_500_010, 1_500_100, "[1]")
)


@pytest.mark.parametrize("text", [FILE[:-1] + "]", FILE, FILE + '{"ph": "B", "na'], ids=["whole", "open", "cut off"])
def test_horovods_file_is_read_as_far_as_it_goes(text):
    tensors, epoch_s = read_engine(text)
    assert epoch_s == 2000
    reductions = [t for t in tensors if t["shape"]]
    assert [t["name"].removeprefix("allreduce.") for t in reductions] == [
        BEGIN, "fc.weight", "fc.bias", "conv.weight", END,
    ]  # fmt: skip
    assert len(tensors) == 10  # a negotiation each


def test_the_markers_hold_the_clock():
    tensors, _ = read_engine(FILE)
    begin, end = (11.0, 11.001), (11.5, 11.501)  # perf_counter is 10 s ahead
    assert engine_offset(tensors, 10.0003, begin, end) == 10.0003
    assert engine_offset(tensors, 3600.0, begin, end) == pytest.approx(10.0009)  # the wall clock was set
    for found, later in ((tensors, (12.5, 12.501)), ([], end)):  # they do not fit; they are not there
        with pytest.raises(ValueError):
            engine_offset(found, 10.0, begin, later)


@pytest.mark.parametrize(("text", "error"), [
    (None, "FileNotFoundError"), ("", "ValueError"), (HEADER, "ValueError"), (FILE, "ValueError"),
    (lambda: time.sleep(0.3), "TimeoutError"), (lambda: {}["absent"], "KeyError"),
])  # fmt: skip
def test_a_file_of_no_use_or_one_that_cannot_be_closed_is_a_note(tmp_path, monkeypatch, text, error):
    path, stop = tmp_path / "timeline.json", text if callable(text) else nothing
    if isinstance(text, str):
        path.write_text(text)
    if error == "TimeoutError":
        monkeypatch.setattr(measure, "PATIENCE_S", 0.01)
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    watched = StepTimeline(CPU)
    watched.watch_engine(lambda name: None, stop, writes=True)
    result = take(watched, nothing)
    (note,) = result["notes"]
    assert error in note and spans_of(result, "communication") == []


def part(rank: int, spans=(), **clock) -> dict:
    """One rank's sample."""
    clock = {"host": "a", "origin_s": 100.0, "engine": True, "barriers": [(98.0, 99.0), (99.1, 99.5)]} | clock
    return {"rank": rank, "timeline": {"step": 1, "step_s": 1.0, "spans": list(spans), "notes": [], "clock": clock}}


SENT = {"lane": "communication", "name": "fusion 0", "start_s": 0.5, "end_s": 0.75, "bytes": 8}


def test_timelines_of_all_ranks_are_on_one_clock_and_the_others_get_what_rank_0_saw_of_horovod():
    """Ranks of a machine share its clock. The clock of host b is 93 s behind, and its barriers allow 92.7 to 93.2."""
    barriers = [(5.2, 6.1), (6.3, 6.4)]
    parts = [part(0, [SENT]), part(1, origin_s=100.25), part(2, host="b", origin_s=7.25, barriers=barriers)]
    join_timelines(parts)
    found = [each["timeline"] for each in parts]
    assert [timeline["start_s"] for timeline in found] == [0.0, 0.25, 0.2]
    assert [timeline["clock_error_s"] for timeline in found] == [0.0, 0.0, 0.25]
    for timeline in found[1:]:
        moved = {name: pytest.approx(SENT[name] - timeline["start_s"]) for name in ("start_s", "end_s")}
        assert timeline["spans"] == [SENT | moved] and len(timeline["notes"]) == 1
    assert not any("clock" in timeline for timeline in found)
    parts = [part(0, [SENT], engine=False), part(1, engine=False)]
    join_timelines(parts)
    assert parts[1]["timeline"]["spans"] == parts[1]["timeline"]["notes"] == []
    join_timelines([{"rank": 0}])  # a run that was not profiled
