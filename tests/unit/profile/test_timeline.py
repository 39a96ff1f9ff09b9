"""The timeline of one step: what is noted, how the clocks are fitted together, and the picture."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd import DeviceType

from bench.analysis.drawing import svg_of
from bench.analysis.suite import suite_of
from bench.config.options import RunConfig
from bench.modes import dp
from bench.profile import timeline as measure
from bench.profile.horovod_timeline import (
    BEGIN,
    END,
    engine_offset,
    fusions,
    is_mark,
    read_engine,
    share_communication,
)
from bench.profile.timeline import MARK, StepTimeline
from bench.studies.breakdown.result import hidden_share
from bench.studies.registry import study_of
from tests import records

CPU = torch.device("cpu")


# --- One step on a CPU ----------------------------------------------------------------------------------------------


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
    assert calls == ["step", "barrier", "step"]  # ranks begin the step that is watched together
    assert result["notes"] == [] and result["step"] == 7
    phases = spans_of(result, "phase")
    assert [span["name"] for span in phases] == ["forward", "backward", "idle"]
    assert [span["start_s"] for span in phases[1:]] == [span["end_s"] for span in phases[:-1]]
    assert phases[-1]["end_s"] == pytest.approx(result["step_s"], abs=1e-3)
    compute = spans_of(result, "compute")
    assert compute and {span["name"] for span in compute} == {"main thread"}
    assert all(0 <= span["start_s"] < span["end_s"] <= result["step_s"] + 1e-6 for span in compute)
    assert compute[-1]["end_s"] < phases[-1]["start_s"] + 0.02  # nobody computes while the step sleeps


def test_hooks_that_are_off_note_nothing():
    watched = StepTimeline(CPU)
    watched.phase("forward")
    with watched.span("communication", "bucket 0", 4):
        pass
    assert watched.watch_buckets(lambda state, bucket: "future")(None, None) == "future"
    assert watched.spans == [] and watched.launched == 0


def test_a_profiler_that_fails_is_a_note(monkeypatch):
    def broken(self):
        raise RuntimeError("no profiler here\nand more")

    monkeypatch.setattr(StepTimeline, "start_profiler", broken)
    steps = []
    watched = StepTimeline(CPU)
    result = take(watched, lambda: (watched.phase("forward"), steps.append(1)))
    assert len(steps) == measure.PROFILED_STEPS
    assert result["notes"] == ["torch.profiler did not start: RuntimeError: no profiler here"]
    assert [span["name"] for span in result["spans"]] == ["forward"]


def test_a_step_that_fails_is_raised():
    def broken():
        raise ConnectionError("a peer is gone")

    with pytest.raises(ConnectionError):
        StepTimeline(CPU).record(broken, nothing)


def test_phases_have_the_names_of_the_record():
    watched = StepTimeline(CPU)

    def step():
        for name in ("waiting for data", "forward", "optimizer step"):
            watched.phase(name)

    result = take(watched, step)
    assert [span["name"] for span in spans_of(result, "phase")] == ["data wait", "forward", "optimizer"]


def test_the_parts_of_dp_are_spans():
    mode = dp.Mode(RunConfig(mode="dp", num_devices=2, device="cpu", threads=2))
    mode.timeline = StepTimeline(CPU)
    model = mode.wrap_model(torch.nn.Linear(2, 2))
    result = take(mode.timeline, lambda: model(torch.ones(4, 2)))
    model.close()
    parts = [(span["name"], span["bytes"]) for span in spans_of(result, "dp")]
    assert parts == [(name, None) for name in ("scatter", "replicate", "forward", "gather")]


# --- DDP's buckets --------------------------------------------------------------------------------------------------


class Bucket:
    """As much of a GradBucket as is asked for."""

    def __init__(self, number: int, elements: int):
        self.number, self.gradients = number, torch.zeros(elements)

    def index(self):
        return self.number

    def buffer(self):
        return self.gradients


def test_a_bucket_lasts_from_its_launch_to_its_future():
    watched, futures = StepTimeline(CPU), []
    hook = watched.watch_buckets(lambda state, bucket: futures.append(torch.futures.Future()) or futures[-1])

    def step():
        hook(None, Bucket(0, 10))
        hook(None, Bucket(1, 20))
        time.sleep(0.01)
        for future in reversed(futures[-2:]):
            if not future.done():
                future.set_result(None)

    sent = {span["name"]: span for span in spans_of(take(watched, step), "communication")}
    assert {name: span["bytes"] for name, span in sent.items()} == {"bucket 0": 40, "bucket 1": 80}
    assert all(span["end_s"] - span["start_s"] > 0.009 for span in sent.values())
    assert sent["bucket 0"]["start_s"] < sent["bucket 1"]["start_s"]


def test_buckets_that_wait_for_the_last_one_are_sent_one_by_one():
    watched, waiting = StepTimeline(CPU), []

    def after_all(state, bucket):
        waiting.append(torch.futures.Future())
        future = waiting[-1]
        if bucket.index() == 1:
            for promised in waiting:
                time.sleep(0.05)
                promised.set_result(None)
            waiting.clear()
        return future

    hook = watched.watch_buckets(after_all, waits=True)

    def step():
        hook(None, Bucket(0, 10))
        time.sleep(0.15)
        hook(None, Bucket(1, 20))

    result = take(watched, step)
    first, second = sorted(spans_of(result, "communication"), key=lambda span: span["name"])
    assert first["start_s"] > 0.14 and first["end_s"] - first["start_s"] > 0.049
    assert second["start_s"] == first["end_s"] and second["end_s"] - second["start_s"] > 0.049


def test_a_bucket_without_an_end_is_a_note(monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE_S", 0.01)
    watched = StepTimeline(CPU)
    hook = watched.watch_buckets(lambda state, bucket: torch.futures.Future())
    result = take(watched, lambda: hook(None, Bucket(0, 10)))
    assert result["notes"] == ["1 of 1 buckets were not seen to end"]


# --- Lanes by thread and stream -------------------------------------------------------------------------------------


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


def test_on_a_device_the_streams_of_our_own_additions_compute():
    marks = [event(0, 10, name=MARK)]
    ours = [event(20, 30, device=0, stream=7), event(40, 50, device=1, stream=9)]
    others = [event(22, 48, device=0, stream=20), event(25, 28, device=1, stream=7)]
    additions = [event(2, 3, device=0, stream=7), event(4, 5, device=1, stream=9)]
    lanes = StepTimeline(CPU).device_lanes([*marks, *additions, *ours, *others], marks)
    assert lanes == {"cuda:0": ours[:1], "cuda:1": ours[1:]}


@pytest.mark.parametrize(
    "name",
    ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "ncclKernel_AllReduce_RING_LL_Sum_float(int)"],
)
def test_what_nccl_sends_on_the_models_stream_is_no_computation(name):
    """With OVERLAP=0 the collective is awaited at once, and runs on the stream of the model."""
    marks, addition = [event(10, 20, name=MARK)], event(12, 14, device=0, stream=7)
    kernels = [event(25, 30, device=0, stream=7), event(30, 70, name=name, device=0, stream=7),
               event(70, 75, device=0, stream=7)]  # fmt: skip
    lanes = StepTimeline(CPU).device_lanes([*marks, addition, *kernels], marks)
    assert lanes == {"cuda:0": [kernels[0], kernels[2]]}


def test_a_thread_that_waits_in_a_hook_does_not_compute():
    watched, layer = StepTimeline(CPU), nn.Linear(4, 4)
    future = torch.futures.Future()
    future.set_result(None)
    hook = watched.watch_buckets(lambda state, bucket: time.sleep(0.05) or future)

    def gradient_is_there(_):
        hook(None, Bucket(0, 16))

    layer.weight.register_post_accumulate_grad_hook(gradient_is_there)
    result = take(watched, lambda: layer(torch.ones(1, 4)).sum().backward())
    assert hidden_share(result["spans"]) < 0.1


def test_a_trace_without_our_ranges_is_refused():
    with pytest.raises(ValueError, match="our own ranges"):
        StepTimeline(CPU).add_compute([event(0, 9)])


def test_spans_are_few():
    many = [(i / 100, i / 100 + 0.001) for i in range(5000)]
    assert len(measure.compact(many, 1e-4, 200)) <= 200


def test_what_does_not_answer_is_left():
    with pytest.raises(TimeoutError):
        measure.within(0.01, lambda: time.sleep(0.2))
    with pytest.raises(KeyError):
        measure.within(1, lambda: {}["absent"])


# --- Horovod's file -------------------------------------------------------------------------------------------------

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


def test_tensors_of_one_reduction_are_one_span():
    tensors, _ = read_engine(FILE)
    found = fusions([t for t in tensors if t["shape"] and not is_mark(t)])
    assert [(f["start_s"], f["end_s"], f["bytes"]) for f in found] == [(1.2, 1.20051, 240), (1.3, 1.3009, 36)]


def test_a_file_without_header_is_refused():
    with pytest.raises(ValueError, match="header"):
        read_engine("")


def test_the_markers_hold_the_clock():
    tensors, _ = read_engine(FILE)
    begin, end = (11.0, 11.001), (11.5, 11.501)  # perf_counter is 10 s ahead
    assert engine_offset(tensors, 10.0003, begin, end) == 10.0003
    assert engine_offset(tensors, 3600.0, begin, end) == pytest.approx(10.0009)  # the wall clock was set
    with pytest.raises(ValueError, match="do not fit"):
        engine_offset(tensors, 10.0, begin, (12.5, 12.501))
    with pytest.raises(ValueError, match="own reductions"):
        engine_offset([], 10.0, begin, end)


def engine(tmp_path, monkeypatch, text: str | None, stop=nothing) -> dict:
    """The timeline of an empty step under a Horovod that has written ``text``."""
    path = tmp_path / "timeline.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    watched = StepTimeline(CPU)
    watched.watch_engine(lambda name: None, stop, writes=True)
    result = take(watched, nothing)
    assert not path.exists() or result["notes"]
    return result


@pytest.mark.parametrize("text", [None, "", HEADER, FILE], ids=["absent", "empty", "header only", "another run's"])
def test_a_file_of_no_use_is_a_note(tmp_path, monkeypatch, text):
    result = engine(tmp_path, monkeypatch, text)
    assert [note.partition(":")[0] for note in result["notes"]] == ["Horovod's timeline could not be read"]
    assert spans_of(result, "communication") == []


def test_an_engine_that_does_not_close_its_file_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "PATIENCE_S", 0.01)
    result = engine(tmp_path, monkeypatch, FILE, lambda: time.sleep(0.3))
    assert "TimeoutError" in result["notes"][0]


def part(rank: int, spans=(), **clock) -> dict:
    """One rank's sample."""
    clock = {"host": "a", "origin_s": 100.0, "engine": 99.0} | clock
    return {"rank": rank, "timeline": {"step": 1, "step_s": 1.0, "spans": list(spans), "notes": [], "clock": clock}}


SENT = {"lane": "communication", "name": "fusion 0", "start_s": 0.5, "end_s": 0.75, "bytes": 8}


@pytest.mark.parametrize(
    ("clock", "start"),
    [({"origin_s": 100.25}, 0.25), ({"host": "b", "origin_s": 7.25, "engine": 6.0}, 0.25)],
    ids=["one machine", "another machine"],
)
def test_the_other_ranks_get_what_rank_0_saw(clock, start):
    parts = [part(0, [SENT]), part(1, **clock)]
    share_communication(parts)
    (span,) = parts[1]["timeline"]["spans"]
    assert span == SENT | {"start_s": start, "end_s": start + 0.25}
    assert len(parts[1]["timeline"]["notes"]) == 1
    assert not any("clock" in p["timeline"] for p in parts)


def test_ranks_that_saw_their_own_communication_keep_it():
    parts = [part(0, [SENT], engine=None), part(1, engine=None)]
    share_communication(parts)
    assert parts[1]["timeline"] == {"step": 1, "step_s": 1.0, "spans": [], "notes": []}
    share_communication([{"rank": 0}])  # a run that was not profiled


# --- The picture ----------------------------------------------------------------------------------------------------


def span(lane: str, name: str, start: float, end: float, nbytes: int | None = None) -> dict:
    return {"lane": lane, "name": name, "start_s": start, "end_s": end, "bytes": nbytes}


STEP = [span("phase", "forward", 0, 0.1), span("phase", "backward", 0.1, 0.3), span("compute", "main thread", 0, 0.28)]
BUCKETS = [span("communication", "bucket 0", 0.15, 0.25, 2**20), span("communication", "bucket 1", 0.2, 0.31, 2**20)]
PARTS = [span("dp", "scatter", 0, 0.01), span("dp", "forward", 0.01, 0.09), span("dp", "gather", 0.09, 0.094)]


def pictures(**spans) -> dict:
    """The pictures of a breakdown with a profiled run of each named mode."""
    found = records.suite_records("breakdown", records.breakdown_programs(), rounds=2)
    name = found[0].label.suite
    for number, (mode, content) in enumerate(spans.items()):
        labels = {"study": "breakdown", "suite": name, "program": mode, "round": 0, "seconds": 900 + number}
        timeline = {"step": 9, "step_s": 0.32, "spans": content, "notes": []} if content is not None else None
        devices = 1 if mode == "single" else 6 if mode == "ddp" else 2
        found.append(records.record(mode=mode, num_devices=devices, profile=True, timeline=timeline, **labels))
    suite = suite_of(name, found)
    study = study_of(suite)
    return study.figures(study.result(suite))


def texts(drawn) -> str:
    """Everything that is written in a picture, on one line."""
    found = [text.get_text() for text in drawn.texts]
    for axes in drawn.axes:
        found += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        found += [label.get_text() for label in axes.get_yticklabels()]
    return " ".join(" ".join(found).split())


def test_a_panel_a_mode():
    drawn = pictures(single=STEP, dp=STEP + PARTS, ddp=STEP + BUCKETS, horovod=STEP)["timeline"]
    written = texts(drawn)
    assert len(drawn.axes) == 4
    assert "single: 320 ms; no communication" in written
    assert "scatter, replicate and gather take 4.4 %" in written
    assert "81 % (rank 0)" in written and "0: 1 MiB" in written  # 130 of 160 ms
    assert "no proof that it is free (upper bound: no_sync)" in written
    assert "the first 4 of 6 ranks are drawn" in written and "rank 3" in written and "rank 4" not in written
    assert "no communication was seen" in written  # Horovod's file could not be read


def test_a_picture_repeats_byte_for_byte():
    one, two = (svg_of(pictures(dp=STEP + PARTS, ddp=STEP + BUCKETS)["timeline"]) for _ in range(2))
    assert one == two and "<svg" in one


def test_lanes_that_are_missing_are_named():
    written = texts(pictures(ddp=BUCKETS)["timeline"])
    assert "ddp: phase and compute could not be recorded" in written


def test_an_empty_timeline_is_still_drawn():
    assert "timeline" in pictures(ddp=[])


def test_without_a_timeline_there_is_no_picture_of_it():
    assert set(pictures(ddp=STEP)) - set(pictures(ddp=None)) == {"timeline"}
