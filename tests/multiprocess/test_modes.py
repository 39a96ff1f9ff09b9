"""The table of real runs of a few steps: what each mode and option does to the update, over real Gloo and real Horovod,
against one process; and what each run puts on record. (Of epochs: test_training.py.)"""

import itertools
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from bench.config.modes import MODES
from bench.launch.ports import free_port
from bench.predict.step.profile import profile_of
from bench.record.read import load
from bench.studies.breakdown.result import hidden_share, timeline_words
from tests import runs
from tests.multiprocess.ranks import Table, apart, each, equal_replicas, largest, norm, weights
from tests.runs import SMOOTH, TINY, needs_horovod, needs_mpi

GLOBAL_BATCH = 12
STEPS = 5  # 1 of warm-up and 4 timed
# Without a norm, every weight of a ResNet moves in so few steps at 8 pixels; of smaller networks whole layers do not.
COMMON = SMOOTH | {
    "norm": "none", "warmup": 1, "steps": STEPS - 1, "snapshots": f"1,{STEPS}", "seed": 3, "threads": 2, "lr": 0.05,
}  # fmt: skip

# In float64 (exact.py) another order of summing leaves this of a weight.
EXACT = {"model": f"{runs.ROOT}/tests/multiprocess/exact.py:plain"}
EXACT_BOUND = 1e-11
# Float32 sums in another order differ by some 1e-8 here, and the network is smooth. So each tensor must agree to a
# thousandth of its way and each weight to its last bits. A gradient that is summed instead of averaged, or not
# exchanged, is off by a half or more.
BOUND_OF_WAY = 1e-3
LAST_BITS = 2e-7  # of a weight below 1: two or three
BOUND = 1e-5
# Adam divides a gradient by its own size, so a gradient that is nothing but rounding error moves its weight by a full
# LR one way or the other. Few are: all but one weight in a thousand must agree, and so must the mean.
ADAM = {"optimizer": "adam", "lr": 1e-3}
ADAM_MEAN_BOUND = 1e-7
APART_AT_MOST = 1e-3
HALF_APART = 0.05  # of the way, in half precision
BF16_APART = 0.5  # of the way: two roads of rounding, through batch norms of six images; a sum for a mean is off by one

PHASES = ["data wait", "forward", "backward", "synchronize", "optimizer"]
# Variables of another run, which a shell may hold: no launch takes a rank or an address from them.
LEFT_OVER = {"RANK": "3", "LOCAL_RANK": "3", "MASTER_PORT": "1", "HOROVOD_RANK": "5", "HOROVOD_LOCAL_RANK": "5",
             "OMPI_COMM_WORLD_RANK": "7", "OMPI_MCA_ess_base_vpid": "7"}  # fmt: skip


def two(mode: str, **options) -> dict:
    return {"mode": mode, "gpus": 2} | options


def three(mode: str, **options) -> dict:
    return {"mode": mode, "gpus": 3} | options


def same_update(run, name, reference="single"):
    """As one process: start, data and, to the last bits, every weight, all of which move."""
    exact = run.rows[name].get("model") == EXACT["model"]
    single, several = run(f"{reference}, exact" if exact else reference), run(name)
    way = apart(weights(single, 1), weights(single, STEPS))
    differences = apart(weights(single, STEPS), weights(several, STEPS))
    for tensor, difference in differences.items():
        bound = BOUND_OF_WAY * np.linalg.norm(way[tensor]) + LAST_BITS * np.sqrt(difference.size)
        assert np.linalg.norm(difference) <= bound, tensor
    assert not exact or largest(differences) <= EXACT_BOUND
    assert all(moved.max() > 0 for moved in way.values()) and largest(way) > 1e-4
    assert equal_replicas(several)
    assert set(each(several, "initial_weights_sha256")) == set(each(single, "initial_weights_sha256"))
    shares = each(several, "first_indices")
    assert sorted(index for share in shares for index in share) == sorted(*each(single, "first_indices"))
    assert len({len(share) for share in shares}) == 1


def same_update_with_adam(run, name):
    differences = apart(weights(run("single, adam"), STEPS), weights(run(name), STEPS))
    every = np.concatenate([difference.ravel() for difference in differences.values()])
    assert every.mean() <= ADAM_MEAN_BOUND and (every > BOUND).mean() <= APART_AT_MOST


def clipped_update(run, name):
    """Each step is as long as clipping lets it be."""
    for before, after in itertools.pairwise(weights(run(name), step) for step in range(1, STEPS + 1)):
        assert norm(apart(before, after)) == pytest.approx(0.05 * 0.01, rel=1e-3)
    same_update(run, name, "single, clipped")


def scaled_update(run, name):
    """In half precision with a scaled loss, clipped and in passes: nearly that of float32."""
    single, result = run("single, clipped, exact"), run(name)
    way = norm(apart(weights(single, 1), weights(single, STEPS)))
    assert norm(apart(weights(single, STEPS), weights(result, STEPS))) < HALF_APART * way
    facts(autocast="float16", loss_scaling=True)(run, name)
    assert set(each(result, "skipped_steps")) == {0} and equal_replicas(result)


def rounded_update(least, most):
    """COMPRESSION loses digits, is recorded, and keeps replicas equal."""

    def lossy(run, name):
        result = run(name)
        assert least < largest(apart(weights(run("single"), STEPS), weights(result, STEPS))) < most
        facts(compression=run.rows[name]["compression"])(run, name)
        assert equal_replicas(result)

    return lossy


def no_exchange(run, name):
    """INJECT=no-exchange: the replicas begin equal and drift apart."""
    result = run(name)
    assert largest(apart(weights(run("single"), STEPS), weights(result, STEPS))) > 1e-4
    assert len(set(each(result, "final_weights_sha256"))) == 2
    facts(gradient="each process its own")(run, name)


def another_update(run, name):
    """MODE=independent: the ranks begin and end apart, which also shows that each rank draws its own weights."""
    single, result = run("single"), run(name)
    starts = each(result, "initial_weights_sha256")
    assert len(set(starts)) == len(set(each(result, "final_weights_sha256"))) == 2
    assert starts[0] == each(single, "initial_weights_sha256")[0]
    assert largest(apart(weights(single, STEPS), weights(result, STEPS))) > 100 * BOUND
    assert result.record["topology"]["notes"]


def averaged_now_and_then(run, name):
    """MODE=local, after steps 2 and 4 of 5: not single's weights; what is saved is the mean, the same on each rank."""
    single, result = run("single"), run(name)
    assert set(each(result, "initial_weights_sha256")) == set(each(single, "initial_weights_sha256"))
    assert equal_replicas(result)
    assert largest(apart(weights(single, STEPS), weights(result, STEPS))) > BOUND
    facts(memory_format="channels_last")(run, name)
    assert "every 2 steps" in each(result, "facts")[0]["gradient"]
    for part in result.loaded.samples:  # the watched step is one that averages
        (sent,) = lane(part.timeline, "communication")
        assert part.timeline["step"] % 2 == 1  # counted from 0
        assert sent["name"] == "weights" and sent["bytes"] >= 4 * part.facts["parameters"]
    assert "one of 2" in timeline_words(result.loaded)


def averaged_every_step(run, name):
    """With SGD, weights averaged every step are those of averaged gradients, but for the rounding of the mean, which is
    that of a weight and not of its way."""
    single = run("single")
    differences = apart(weights(single, STEPS), weights(run(name), STEPS))
    way = norm(apart(weights(single, 1), weights(single, STEPS)))
    assert largest(differences) <= BOUND and norm(differences) <= 10 * BOUND_OF_WAY * way


def synced_norms(run, name):
    """NORM=sync, in channels last: batch norm's statistics are those of one process on the whole batch. Each rank's own
    are not."""
    result = run(name)
    same_update(run, name, "single, batch norm")
    own = apart(weights(run("single, batch norm, exact"), STEPS), weights(run("ddp x2, batch norm"), STEPS))
    assert largest(own) > 1e-3
    assert {re.sub(" × .*", "", f["norm"]) for f in each(result, "facts")} == {"ReducedBatchNorm2d"}
    assert all(f["memory_format"].startswith("channels_last") for f in each(result, "facts"))


def skipped_by_all(run, name):
    """fp16: the scaler sees the reduced gradients, so all ranks leave out the step in which one has an infinite one."""
    result = run(name)
    assert set(each(result, "skipped_steps")) == {1} and equal_replicas(result)


def half_of_the_bytes(run, name):
    """PARAM_DTYPE=bf16: fsdp sends half of the bytes, and steps as well as autocast, which rounds the weights too."""
    plain, result = run("fsdp, bf16"), run(name)
    exact = run.rows[name].get("reduce_dtype") == "fp32"
    for verb, share in (("gather", 2), ("scatter", 1 if exact else 2)):
        blocks, whole = sent_by_block(result, verb), sent_by_block(plain, verb)
        norms = {block: blocks.pop(f"norms of {block}", 0) for block in whole} | {"bn1": blocks.pop("bn1")}
        assert norms["layer2"] and {b: share * blocks.get(b, 0) + norms[b] for b in whole} == whole
    assert [each(one, "facts")[0]["compression"] for one in (plain, result)] == ["none", "none" if exact else "bf16"]
    way = norm(apart(weights(plain, 1), weights(plain, STEPS)))
    difference = norm(apart(weights(plain, STEPS), weights(result, STEPS)))
    assert difference < LAST_BITS * way if exact else 0 < difference < BF16_APART * way
    assert equal_replicas(result)


def sent_by_block(result, verb: str) -> dict[str, int]:
    """Block -> the bytes that FSDP gathers of it, or scatters, in a step."""
    found = {}
    for span in lane(result.loaded.samples[0].timeline, "communication"):
        name = span["name"].removeprefix(f"{verb} ")
        if name != span["name"]:
            found[name] = found.get(name, 0) + span["bytes"]
    return found


def on_record(run, name):
    """Topology, samples and options fit together; more threads than one process has are noted."""
    record, options = run(name).record, run.rows[name]
    topology, devices = record["topology"], options["gpus"]
    assert topology["num_devices"] == devices and topology["global_batch"] == GLOBAL_BATCH
    assert topology["world_size"] * topology["devices_per_process"] == devices
    assert each(run(name), "rank") == list(range(topology["world_size"]))
    assert len(set(each(run(name), "pid"))) == topology["world_size"]
    assert {len(times) for times in each(run(name), "step_time_s")} == {STEPS - 1}
    assert topology["loader_workers_total"] == options.get("workers", 0)
    assert topology["threads_allowed"] == COMMON["threads"]
    noted = any("compute threads" in note for note in topology["notes"])
    assert noted == (topology["threads_total"] > topology["threads_allowed"]) == (devices > COMMON["threads"])


def nothing_else_is_left(run, name):
    """Of a launch: a whole record, logs without a warning, and no file outside of the run's folder."""
    result = run(name)
    load(result.run_dir / "record.json")
    ranks = range(result.record["topology"]["world_size"])
    logs = {f"rank{rank}.log" for rank in ranks}
    saved = {f"rank{rank}-step{step}.npz" for rank in ranks for step in (1, STEPS)}
    assert {path.name for path in result.run_dir.iterdir()} == logs | saved | {"launcher.log", "record.json"}
    assert [path.name for path in result.out.parent.iterdir()] == [result.out.name] and len(result.run_dirs) == 1
    assert result.stdout.splitlines()[-1] == f"record: {result.run_dir / 'record.json'}"
    for log in logs:
        text = re.sub(r"(?m)^step \d+ of 5, .* GiB\n", "", (result.run_dir / log).read_text())  # on a slow machine
        if "profiled" in name:  # torch's profiler prints in its own form when it begins and ends
            text = re.sub(r"(?m)^\w+:[-\d]+ [:\d]+ \d+:\d+ \w+\.cpp:\d+\] .*\n", "", text)
        assert not text, log


def lane(timeline: dict, name: str) -> list[dict]:
    return [span for span in timeline["spans"] if span["lane"] == name]


def on_one_clock(run, name):
    """Two ranks of a machine; with PROFILE=torch the trace of each is kept."""
    record, folder = run(name).loaded, run(name).run_dir
    starts = [part.timeline["start_s"] for part in record.samples]
    assert min(starts) == 0 and max(starts) < 60 and {part.timeline["clock_error_s"] for part in record.samples} == {0}
    for rank in (0, 1):
        events = json.loads((folder / f"rank{rank}-torch-profile.json").read_text())["traceEvents"]
        assert any(event["name"] == "aten::addmm" for event in events)
    for first, second in zip(*(buckets_of(part.timeline) for part in record.samples), strict=True):
        begins, ends = ([s[at] + start for s, start in zip((first, second), starts, strict=True)]
                        for at in ("start_s", "end_s"))  # fmt: skip
        assert max(begins) < min(ends)  # no rank has a sum before all have given it


def phase(timeline: dict, name: str) -> dict:
    return next(span for span in lane(timeline, "phase") if span["name"] == name)


def buckets_of(timeline: dict) -> list[dict]:
    return [span for span in lane(timeline, "communication") if span["name"].startswith("bucket")]


def timeline(run, name):
    """Phases and computation; in the modes that exchange gradients whole, each is sent once."""
    record, options = run(name).loaded, run.rows[name]
    assert len(record.samples) == (1 if options["mode"] == "dp" else options["gpus"])
    for part in record.samples:
        found = part.timeline
        assert [name for name, _ in itertools.groupby(span["name"] for span in lane(found, "phase"))] == PHASES
        busy = sum(span["end_s"] - span["start_s"] for span in lane(found, "compute"))
        assert busy > 0.02 * found["step_s"]  # also where it had no core for a while
        assert len(found["spans"]) < 500 and "clock" not in found
        assert not [note for note in found["notes"] if "could not" in note or "did not" in note]
        if options["mode"] in ("ddp", "horovod") and options.get("sync", 1):
            sent = [span for span in lane(found, "communication") if span["name"] != "buffers"]
            size = 2 if "compression" in options and options["mode"] == "horovod" else 4  # DDP's buckets are as before
            assert sum(span["bytes"] for span in sent) == size * part.facts["parameters"]
            assert len(sent) > 1 or options["mode"] == "horovod"  # which may fuse all that is there in one cycle
            assert all(0 < span["start_s"] < span["end_s"] for span in sent)
            # The end is noted by another thread, for Horovod's on rank 0, which may have had no core for a while.
            assert max(span["start_s"] for span in sent) < phase(found, "optimizer")["start_s"]


def buckets_begin_inside_backward(run, name):
    for part in run(name).loaded.samples:
        backward = phase(part.timeline, "backward")
        buckets = buckets_of(part.timeline)
        assert len(buckets) > 1
        assert all(backward["start_s"] < span["start_s"] < backward["end_s"] for span in buckets)


def buffers_go_before_backward(run, name):
    for part in run(name).loaded.samples:
        (buffers,) = [span for span in lane(part.timeline, "communication") if span["name"] == "buffers"]
        assert buffers["end_s"] < phase(part.timeline, "backward")["start_s"]


def one_bucket_after_the_other(run, name):
    """OVERLAP=0: a thread that waits inside a hook does not compute."""
    for part in run(name).loaded.samples:
        buckets = sorted((span["start_s"], span["end_s"]) for span in buckets_of(part.timeline))
        assert len(buckets) > 1
        assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(buckets))
        assert hidden_share(part.timeline["spans"]) < 0.1


def nothing_is_sent(run, name):
    for part in run(name).loaded.samples:
        assert not [span for span in lane(part.timeline, "communication") if span["name"] != "buffers"]


def reductions_of_rank_0(run, name):
    """Horovod's timeline is rank 0's, on the clock of each rank."""
    timelines = [part.timeline for part in run(name).loaded.samples]
    first, second = (lane(found, "communication") for found in timelines)
    assert [span["bytes"] for span in first] == [span["bytes"] for span in second]
    shifts = [b["start_s"] - a["start_s"] for a, b in zip(first, second, strict=True)]
    assert max(shifts) - min(shifts) < 1e-5
    assert any("rank 0" in note for note in timelines[1]["notes"])


def weights_in_the_optimizers_step(run, name):
    """zero1: all gradients in buckets, then all weights once."""
    for part in run(name).loaded.samples:
        last, size = phase(part.timeline, "optimizer"), 4 * part.facts["parameters"]
        assert sum(span["bytes"] for span in buckets_of(part.timeline)) == size
        (sent,) = [span for span in lane(part.timeline, "communication") if span["name"].startswith("weights")]
        assert sent["bytes"] == size and last["start_s"] < sent["start_s"] < sent["end_s"] <= last["end_s"]


def blocks_are_gathered_and_scattered(run, name):
    """fsdp: of each block the weights twice and the gradient once, inside backward; what is in no block once."""
    for part in run(name).loaded.samples:
        backward, spans, moments = phase(part.timeline, "backward"), lane(part.timeline, "communication"), {}
        sent = {kind: sum(s["bytes"] for s in spans if s["name"].startswith(kind)) for kind in ("gather", "scatter")}
        once = sum(s["bytes"] for s in spans if s["name"] == "gather the rest")
        size, blocks = 4 * part.facts["parameters"], part.facts["blocks"]
        assert sent == {"gather": 2 * size - once, "scatter": size} and 0 < once < 0.01 * size
        assert blocks == 4 and len(spans) == 3 * blocks + 2
        for span in spans:
            kind, block = span["name"].split(" ", 1)
            moments.setdefault(block, {"gather": [], "scatter": []})[kind].append(span["start_s"])
        assert len(moments) == blocks + 1
        for block, found in moments.items():
            (scattered,) = found["scatter"]
            gathered = [moment > backward["start_s"] for moment in found["gather"]]
            assert gathered == ([False] if block == "the rest" else [False, True]), block
            assert max(backward["start_s"], *found["gather"]) < scattered < backward["end_s"], block


def a_row_for_each_thread(run, name):
    (part,) = run(name).loaded.samples
    assert [span["name"] for span in lane(part.timeline, "dp")] == ["scatter", "replicate", "forward", "gather"]
    assert len({span["name"] for span in lane(part.timeline, "compute")}) == 3
    assert lane(part.timeline, "communication") == []
    assert any("together" in note for device in part.devices for note in device["notes"])  # they share its memory


def moments_of_parameters(run, name):
    """Of one device: the last layer is needed last and ready first; a forecast can be made of it."""
    record = run(name).loaded
    found = record.samples[0].profile
    parameters = {row["name"]: row for row in found["parameters"]}
    sizes = sum(math.prod(row["shape"]) for row in parameters.values())
    assert sizes == record.samples[0].facts["parameters"] and len(parameters) == len(found["parameters"])
    for passed, what in (("forward_s", "needed_s"), ("backward_s", "ready_s")):
        for row in parameters.values():
            assert all(0 <= moment <= end for moment, end in zip(row[what], found[passed], strict=True))
    first, last = parameters["conv1.weight"], parameters["fc.weight"]
    assert first["needed_s"][0] < last["needed_s"][0] and last["ready_s"][0] < first["ready_s"][0]
    assert {row["block"] for row in parameters.values()} > {"", "layer1.0", "layer2.0"}
    assert profile_of(record, "the run").nbytes == 4 * sizes
    assert not run("ddp x2, profiled").loaded.samples[0].profile


def steps_that_are_not_timed_are_counted(run, name):
    """In the log: those in which a profiler looks, and the one of which every allocation is recorded."""
    log = (run(name).run_dir / "rank0.log").read_text()
    steps = [tuple(map(int, pair)) for pair in re.findall(r"^step (\d+) of (\d+),", log, re.MULTILINE)]
    assert steps[:STEPS] == [(step, STEPS) for step in range(1, STEPS + 1)] and len(steps) > STEPS + 1
    assert all(step <= total == steps[-1][0] for step, total in steps[STEPS:])


def phases_fill_the_step(run, name):
    for part in run(name).record["samples"]:
        phases = part["phase_time_s"]
        assert list(phases) == PHASES[1:]
        inside = [sum(times) for times in zip(part["data_wait_s"], *phases.values(), strict=True)]
        shares = [time / step for time, step in zip(inside, part["step_time_s"], strict=True)]
        assert 0.5 < max(shares) <= 1  # a single step may have had no core between its phases


def a_timeline_and_no_profile(run, name):
    """fsdp on one device: its parameters in forward are not those between steps, so none has its own moment."""
    (sample,) = run(name).loaded.samples
    assert lane(sample.timeline, "compute") and not sample.profile


def facts(**expected):
    """Read back from the live objects."""

    def facts_on_record(run, name):
        for found in each(run(name), "facts"):
            assert expected.items() <= found.items()

    return facts_on_record


def passes_on_record(run, name):
    """DDP with a static graph fails where the first pass exchanges nothing: it is left out there."""
    assert {"passes before"} < set(run(name).record["samples"][0]["phase_time_s"])
    assert not any(found.get("static_graph") for found in each(run(name), "facts"))


PROFILE = {"profile": 1}
CLIPPED = EXACT | {"clip_norm": 0.01, "momentum": 0, "snapshots": "1,2,3,4,5"}
FP16 = {"precision": "fp16", "allow_slow": 1}
SCALED = FP16 | {"clip_norm": 0.01, "momentum": 0, "accumulate": 2}
OVERFLOWING = FP16 | {"model": EXACT["model"].replace("plain", "overflowing"), "steps": 2, "snapshots": None}
# Batch norms are gathered by themselves, in float32. bf16 has no instructions on every CPU.
FSDP_BF16 = two("fsdp", norm="batch", precision="bf16", allow_slow=1, profile=1) | TINY
CHECKPOINTED = EXACT | {"activation_checkpointing": 1}
SYNCED = CHECKPOINTED | {"norm": "sync", "channels_last": 1}
ONE = {"mode": "single", "gpus": 1}
EVERY = (same_update, on_record)
PASSES = (*EVERY, passes_on_record, facts(recomputed_blocks=4))
LAUNCHED = (*EVERY, nothing_else_is_left)

TABLE = {
    # What others are compared with.
    "single": (
        ONE | PROFILE | {"memory": 1, "print_every": 1},
        on_record, timeline, moments_of_parameters, steps_that_are_not_timed_are_counted,
    ),
    "single, exact": (ONE | EXACT, on_record, phases_fill_the_step),
    "single, clipped, exact": (ONE | CLIPPED, on_record),
    "single, adam": (ONE | ADAM, on_record),
    "single, batch norm, exact": (ONE | EXACT | {"norm": "batch"}, on_record),
    # How ranks are started, by every engine. Fresh programs: Horovod's; by torchrun those in test_slurm.py, by spawn
    # those in unit/measure/test_clock.py.
    "ddp x2 by torchrun at a tcp address": (two("ddp", launcher="torchrun", dist_url="tcp"), *LAUNCHED),
    "ddp x2 by spawn at a file, tuned, loader workers": (
        two("ddp", launcher="spawn", dist_url="file", tuned=1, workers=2), *LAUNCHED,
    ),
    "horovod x2, tuned, fusion, profiled": (
        two("horovod", tuned=1, fusion_mb=1, profile=1), *LAUNCHED, timeline, reductions_of_rank_0,
    ),
    "horovod x2 by mpirun, tuned, profiled": (
        two("horovod", launcher="mpirun", tuned=1, profile=1), *LAUNCHED, timeline, reductions_of_rank_0,
    ),
    "dp x2, profiled": (two("dp", profile=1), *EVERY, timeline, a_row_for_each_thread),
    # What changes the speed and not the update, and other numbers of ranks and threads. Three is not a power of two,
    # and no tensor divides by three.
    "dp x4": ({"mode": "dp", "gpus": 4} | EXACT, *EVERY),
    "ddp x2, profiled": (
        two("ddp", profile="torch"), *EVERY, timeline, on_one_clock, buckets_begin_inside_backward,
        facts(bucket_cap_mb=25.0),
    ),
    "ddp x2, reductions after backward, profiled": (
        two("ddp", overlap=0, bucket_cap_mb=1, profile=1), *EVERY, timeline, one_bucket_after_the_other,
    ),
    "horovod x3": (three("horovod") | EXACT, *EVERY),
    "zero1 x2 in passes, checkpointed, profiled": (
        two("zero1", accumulate=3, activation_checkpointing=1, profile=1),
        *PASSES, timeline, weights_in_the_optimizers_step,
    ),
    "zero1 x3, views, no overlap": (three("zero1", gradient_as_bucket_view=1, overlap=0) | EXACT, *EVERY),
    "fsdp x2, profiled": (two("fsdp", profile=1), *EVERY, timeline, blocks_are_gathered_and_scattered),
    "fsdp x2, weights kept, prefetched": (two("fsdp", reshard=0, prefetch=1), *EVERY),
    "fsdp, one device, profiled": ({"mode": "fsdp", "gpus": 1} | PROFILE, *EVERY, timeline, a_timeline_and_no_profile),
    # Passes are one batch, exchanged once; and activations are recomputed.
    "dp x2 in passes, checkpointed": (two("dp", accumulate=3) | CHECKPOINTED, *PASSES),
    "ddp x3 in passes, static graph, small buckets, views, fused, checkpointed, unfair": (
        three("ddp", accumulate=2, static_graph=1, bucket_cap_mb=1, gradient_as_bucket_view=1, fused=1, step_barrier=1,
              item_sync=1) | CHECKPOINTED,
        *PASSES, facts(bucket_cap_mb=1.0, step_barrier=True, item_sync=True),
    ),
    "horovod x2 in passes, reductions after backward, fused, checkpointed": (
        two("horovod", accumulate=3, overlap=0, fused=1) | CHECKPOINTED, *PASSES,
    ),
    "fsdp x3 in passes, checkpointed": (three("fsdp", accumulate=2) | CHECKPOINTED, *PASSES),
    # Clipping, and fp16 with its scaled loss, which is clipped as well.
    **{f"{mode} x2, clipped": (two(mode) | CLIPPED, clipped_update) for mode in ("ddp", "fsdp")},
    **{f"{mode} x2, fp16": (two(mode) | SCALED, scaled_update) for mode in ("dp", "ddp", "horovod", "zero1", "fsdp")},
    **{f"{mode} x2, fp16, infinite on one rank": (two(mode, fused=int(mode == "ddp")) | OVERFLOWING, skipped_by_all)
       for mode in ("ddp", "horovod", "fsdp")},
    # Optimizers with more state.
    **{f"{mode} x2, adam": (two(mode) | ADAM, same_update_with_adam) for mode in ("horovod", "zero1", "fsdp")},
    # Another update. PowerSGD begins at the third step.
    "ddp x2, fp16 on the wire, in passes, profiled": (
        two("ddp", compression="fp16", accumulate=3, profile=1), rounded_update(1e-8, 1e-3), timeline,
    ),
    "ddp x2, bf16 on the wire": (two("ddp", compression="bf16"), rounded_update(1e-7, 1e-2)),
    "ddp x2, powersgd": (two("ddp", compression="powersgd"), rounded_update(1e-5, 1.0)),
    "horovod x2, fp16 on the wire, in passes, profiled": (
        two("horovod", compression="fp16", accumulate=3, profile=1), rounded_update(1e-8, 1e-3), timeline,
    ),
    "ddp x2, no exchange, in passes, profiled": (
        two("ddp", sync=0, tuned=1, accumulate=3, profile=1), no_exchange, timeline, nothing_is_sent,
    ),
    "horovod x2, no exchange": (two("horovod", sync=0), no_exchange),
    "independent": (two("independent"), another_update, on_record),
    "local": (two("local", local_steps=2, channels_last=1) | PROFILE, averaged_now_and_then, timeline),
    "local, averaged every step": (two("local", local_steps=1, channels_last=1), averaged_every_step),
    # Batch norm.
    "ddp x2, batch norm": (two("ddp", norm="batch", profile=1) | EXACT, buffers_go_before_backward),
    "ddp x3, synced norms, checkpointed": (three("ddp") | SYNCED, synced_norms),
    "horovod x2, synced norms, checkpointed": (two("horovod") | SYNCED, synced_norms),
    "fsdp, bf16": (FSDP_BF16, timeline),
    "fsdp, bf16, gathered in it": (FSDP_BF16 | {"param_dtype": "bf16"}, half_of_the_bytes),
    "fsdp, bf16, gathered in it, reduced in fp32": (
        FSDP_BF16 | {"param_dtype": "bf16", "reduce_dtype": "fp32"}, half_of_the_bytes,
    ),
}  # fmt: skip
# Others show the same.
WIDE = (
    "zero1 x3, views, no overlap", "fsdp x2, weights kept, prefetched", "horovod x3", "local, averaged every step",
    "ddp x2, fp16", "fsdp, bf16, gathered in it",
)  # fmt: skip
QUICK = (
    "dp x4", "ddp x3 in passes, static graph, small buckets, views, fused, checkpointed, unfair",
    "horovod x2 in passes, reductions after backward, fused, checkpointed",
)  # fmt: skip


def cases():
    """(row, expectation) for each expectation of each row."""
    for name, (_, *expectations) in TABLE.items():
        marks = [needs_mpi if "mpirun" in name else needs_horovod] * ("horovod" in name)
        marks += [pytest.mark.quick] * (name in QUICK) + [pytest.mark.wide] * (name in WIDE)
        for expectation in expectations:
            yield pytest.param(name, expectation, id=f"{name}-{expectation.__name__}", marks=marks)


@pytest.fixture(scope="module")
def run(tmp_path_factory, ranks, forked_programs):
    """``run(name)``: the finished run of a row."""

    def start(name, **options):
        folder = tmp_path_factory.mktemp("run")
        options = COMMON | options | {"batch": GLOBAL_BATCH // options["gpus"] // options.get("accumulate", 1)}
        if nothing_else_is_left not in TABLE[name]:
            return ranks.run(folder, **options)
        urls = {"tcp": f"tcp://127.0.0.1:{free_port()}", "file": f"file://{folder}/meet"}
        options |= {"dist_url": urls[options["dist_url"]]} if "dist_url" in options else {}
        copies = None if options["mode"] == "horovod" else forked_programs
        return runs.run(folder / "a #folder? of 100%", LEFT_OVER, copies, **options)  # a path is not a web address

    return Table({name: options for name, (options, *_) in TABLE.items()}, start)


@pytest.mark.parametrize(("name", "expectation"), list(cases()))
def test_a_run(run, name, expectation):
    expectation(run, name)


def test_every_mode_has_its_rows():
    assert {row[0]["mode"] for row in TABLE.values()} == set(MODES)


# A rank of Horovod. Written: how far Adam ends from one process, without and with broadcast_optimizer_state.
TRAIN_ADAM = """
import json, pathlib, sys, torch, horovod.torch as hvd
hvd.init()
ends = []
for distributed, broadcast in ((False, False), (True, False), (True, True)):
    torch.manual_seed(0)
    model, images = torch.nn.Linear(8, 2), torch.randn(6, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    if broadcast:
        hvd.broadcast_optimizer_state(optimizer, 0)
    for _ in range(5):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    ends.append(model.weight.detach())
if hvd.rank() == 0:
    pathlib.Path(sys.argv[1]).write_text(json.dumps([float((end - ends[0]).abs().max()) for end in ends[1:]]))
"""


@needs_horovod
@pytest.mark.usefixtures("copied_python")
def test_broadcasting_a_fresh_adams_state_breaks_it(tmp_path):
    """Why MODE=horovod does not: `broadcast_optimizer_state` takes a hidden step."""
    rank = [sys.executable, "-c", TRAIN_ADAM, str(tmp_path / "apart")]
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "-H", "localhost:2", "--gloo", *rank]
    subprocess.run(command, env=runs.environment(), check=True, capture_output=True, timeout=100)
    without, broadcast = json.loads((tmp_path / "apart").read_text())
    assert without <= 1e-6 and broadcast > 1e-3
