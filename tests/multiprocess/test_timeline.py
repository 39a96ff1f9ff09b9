"""A profiled run of every mode, with real processes: what one step's timeline holds on every rank."""

import itertools
import math

import pytest

from bench.predict.step import profile as profiles
from bench.record.view import Record
from bench.studies.breakdown.result import hidden_share, timeline_words
from tests.runs import NARROW, needs_horovod

RUNS = {
    "single": {"mode": "single", "gpus": 1},
    "dp": {"mode": "dp", "gpus": 2},
    "ddp": {"mode": "ddp", "gpus": 2},
    "ddp, overlap off": {"mode": "ddp", "gpus": 2, "overlap": 0},
    "ddp, fp16": {"mode": "ddp", "gpus": 2, "compression": "fp16"},
    "ddp, no exchange": {"mode": "ddp", "gpus": 2, "sync": 0},
    "horovod": {"mode": "horovod", "gpus": 2},
    "zero1": {"mode": "zero1", "gpus": 2},
    "fsdp": {"mode": "fsdp", "gpus": 2},
    "fsdp, one device": {"mode": "fsdp", "gpus": 1},
    "local": {"mode": "local", "gpus": 2, "local_steps": 3},
}
PHASES = ["data wait", "forward", "backward", "synchronize", "optimizer"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory, ranks):
    """``profiled(name)``: the record of a profiled run, made when it is first asked for. Horovod's has processes of its
    own, for its timeline is asked for by the launcher."""
    done = {}

    def get(name: str) -> Record:
        if name not in done:
            result = ranks.run(tmp_path_factory.mktemp("run"), profile=1, image_size=16, **NARROW | RUNS[name])
            assert result.code == 0, result.stderr
            assert not [path.name for path in result.run_dir.glob(".*")]  # nothing is left beside the record
            done[name] = result.loaded
        return done[name]

    return get


def timelines(record: Record) -> list[dict]:
    return [part.timeline for part in record.samples]


def lane(timeline: dict, name: str) -> list[dict]:
    return [span for span in timeline["spans"] if span["lane"] == name]


def row(name: str):
    return pytest.param(name, id=name, marks=needs_horovod if "horovod" in name else ())


@pytest.mark.parametrize("name", [row(name) for name in RUNS])
def test_every_rank_shows_phases_and_computation(profiled, name):
    record = profiled(name)
    assert len(timelines(record)) == (1 if RUNS[name]["mode"] == "dp" else RUNS[name]["gpus"])
    for timeline in timelines(record):
        assert [span["name"] for span in lane(timeline, "phase")] == PHASES
        busy = sum(span["end_s"] - span["start_s"] for span in lane(timeline, "compute"))
        assert busy > 0.02 * timeline["step_s"]  # also where it had no core for a while
        assert len(timeline["spans"]) < 500
        assert not [note for note in timeline["notes"] if "could not" in note or "did not" in note]
        assert "clock" not in timeline


@pytest.mark.parametrize("name", [row(name) for name in ("ddp", "ddp, overlap off", "ddp, fp16", "horovod")])
def test_every_gradient_is_sent_once_on_every_rank(profiled, name):
    for part in profiled(name).samples:
        sent = [span for span in lane(part.timeline, "communication") if span["name"] != "buffers"]
        assert sum(span["bytes"] for span in sent) == 4 * part.facts["parameters"]
        assert all(0 < span["start_s"] < span["end_s"] for span in sent)
        last = next(span for span in lane(part.timeline, "phase") if span["name"] == "optimizer")
        # The end is noted by another thread, for Horovod's on rank 0, which may have had no core for a while.
        assert max(span["start_s"] for span in sent) < last["start_s"]


def test_zero1_sends_all_weights_once_in_the_optimizers_step(profiled):
    for part in profiled("zero1").samples:
        last = next(span for span in lane(part.timeline, "phase") if span["name"] == "optimizer")
        sent = {name: [s for s in lane(part.timeline, "communication") if s["name"].startswith(name)]
                for name in ("bucket", "weights")}  # fmt: skip
        assert sum(span["bytes"] for span in sent["bucket"]) == 4 * part.facts["parameters"]
        (weights,) = sent["weights"]
        assert weights["bytes"] == 4 * part.facts["parameters"]
        assert last["start_s"] < weights["start_s"] < weights["end_s"] <= last["end_s"]


def test_fsdp_gathers_a_block_before_it_computes_and_scatters_it_inside_backward(profiled):
    """What is in no block is gathered once. How many bytes: in test_modes.py."""
    for part in profiled("fsdp").samples:
        backward = next(span for span in lane(part.timeline, "phase") if span["name"] == "backward")
        spans, moments = lane(part.timeline, "communication"), {}
        for span in spans:
            kind, block = span["name"].split(" ", 1)
            moments.setdefault(block, {"gather": [], "scatter": []})[kind].append(span["start_s"])
        assert len(moments) == part.facts["blocks"] + 1
        for block, found in moments.items():
            (scattered,) = found["scatter"]
            gathered = [moment > backward["start_s"] for moment in found["gather"]]
            assert gathered == ([False] if block == "the rest" else [False, True]), block
            assert max(backward["start_s"], *found["gather"]) < scattered < backward["end_s"], block


def test_a_run_with_batch_norm_says_what_fsdp_does_with_its_running_statistics(profiled):
    notes = {name: "\n".join(profiled(name).data["topology"]["notes"]) for name in ("fsdp", "ddp")}
    assert "running statistics" in notes["fsdp"] and "each rank keeps its own" in notes["fsdp"]
    assert "running statistics" not in notes["ddp"]


def test_the_watched_step_of_local_is_one_that_averages(profiled):
    """Step 6 of 6. After three steps of the training and two for the profiler it would be step 5."""
    record = profiled("local")
    assert [part.timeline["step"] % 3 for part in record.samples] == [2, 2]  # counted from 0: the last of three
    for part in record.samples:
        (sent,) = lane(part.timeline, "communication")
        assert sent["name"] == "weights" and sent["bytes"] >= 4 * part.facts["parameters"]
    assert "the step in which weights are averaged, one of 3" in timeline_words(record)


def test_buckets_begin_inside_backward(profiled):
    for timeline in timelines(profiled("ddp")):
        backward = next(span for span in lane(timeline, "phase") if span["name"] == "backward")
        buckets = [span for span in lane(timeline, "communication") if span["name"].startswith("bucket")]
        assert len(buckets) > 1
        assert all(backward["start_s"] < span["start_s"] < backward["end_s"] for span in buckets)
        (buffers,) = [span for span in lane(timeline, "communication") if span["name"] == "buffers"]
        assert buffers["end_s"] < backward["start_s"]


def test_without_overlap_buckets_go_one_after_the_other(profiled):
    for timeline in timelines(profiled("ddp, overlap off")):
        buckets = sorted(
            (span["start_s"], span["end_s"])
            for span in lane(timeline, "communication")
            if span["name"].startswith("bucket")
        )
        assert len(buckets) > 1
        assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(buckets))
        assert hidden_share(timeline["spans"]) < 0.1  # a thread that waits inside a hook does not compute


def test_without_exchange_no_gradient_is_sent(profiled):
    for timeline in timelines(profiled("ddp, no exchange")):
        assert [span for span in lane(timeline, "communication") if span["name"] != "buffers"] == []


@needs_horovod
def test_reductions_are_those_of_rank_0_on_every_rank(profiled):
    first, second = (lane(timeline, "communication") for timeline in timelines(profiled("horovod")))
    assert [span["bytes"] for span in first] == [span["bytes"] for span in second]
    shifts = [b["start_s"] - a["start_s"] for a, b in zip(first, second, strict=True)]
    assert max(shifts) - min(shifts) < 1e-5  # the same moments, on the other rank's clock
    assert any("rank 0 alone" in note for note in timelines(profiled("horovod"))[1]["notes"])


def test_dp_has_its_four_parts_and_a_row_a_thread(profiled):
    (timeline,) = timelines(profiled("dp"))
    assert [span["name"] for span in lane(timeline, "dp")] == ["scatter", "replicate", "forward", "gather"]
    assert len({span["name"] for span in lane(timeline, "compute")}) == 3
    assert lane(timeline, "communication") == []


def test_one_device_says_when_it_needs_each_parameter_and_when_its_gradient_is_there(profiled):
    """Every parameter; the last layer is needed last and ready first, and nothing is before or after its pass."""
    record = profiled("single")
    found = record.samples[0].profile
    names = [row["name"] for row in found["parameters"]]
    sizes = sum(math.prod(row["shape"]) for row in found["parameters"])
    assert sizes == record.samples[0].facts["parameters"] and len(set(names)) == len(names)
    for phase, what in (("forward_s", "needed_s"), ("backward_s", "ready_s")):
        steps = range(len(found[phase]))
        assert all(0 <= row[what][i] <= found[phase][i] for row in found["parameters"] for i in steps)
    moments = {row["name"]: (row["needed_s"][0], row["ready_s"][0]) for row in found["parameters"]}
    first, last = moments["conv1.weight"], moments["fc.weight"]
    assert first[0] < last[0] and last[1] < first[1]
    assert {row["block"] for row in found["parameters"]} > {"", "layer1.0", "layer2.0"}
    assert profiles.profile_of(record, "the run").nbytes == 4 * sizes  # a forecast can be made of it
    assert not profiled("ddp").samples[0].profile


def test_a_sharded_model_on_one_device_has_a_timeline_and_no_profile(profiled):
    """Its parameters in forward are not those between steps, so no parameter has a moment of its own."""
    (sample,) = profiled("fsdp, one device").samples
    assert lane(sample.timeline, "compute") and not sample.profile
