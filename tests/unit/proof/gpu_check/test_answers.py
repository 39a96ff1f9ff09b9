"""`bench doctor gpu`: what it asks of a record, here of made-up ones."""

import math

import pytest

from bench.proof.gpu_check import a2_single, answers
from tests import records


def on_gpu(mode: str = "single", **options):
    """A record of a GPU that nobody sells."""
    return records.record(mode, device="cuda", num_devices=options.pop("num_devices", 1), **options)


def changed(record, change):
    """The record with ``change(data)`` made."""
    (found,) = records.edited([record], change)
    return found


MACHINE = {"device seen": True, "sample ms": 3.0, "nccl": "2.30.7", "nccl of torch": "2.28.9"}


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        ({}, True),
        ({"sample ms": 70.0}, False),
        ({"device seen": False, "sample ms": None}, False),  # no NVML
        ({"nccl": "2.28.3"}, False),  # an older one comes first on the library path
        ({"nccl of torch": "2.9.6"}, True),  # by number
    ],
)
def test_what_machine_this_is(found, ok):
    assert answers.machine(MACHINE | found).ok == ok


def test_events_against_the_wall_clock():
    assert answers.clocks(on_gpu()).ok

    def later(seconds):
        def change(data):
            data["samples"][0]["moments"]["last_timed_step"] += seconds

        return change

    whole = answers.clocks(on_gpu()).figures["wall s"]
    assert answers.clocks(changed(on_gpu(), later(0.009 * whole))).ok
    assert not answers.clocks(changed(on_gpu(), later(0.011 * whole))).ok
    assert not answers.clocks(changed(on_gpu(), later(-0.02 * whole))).ok


def test_phases_are_no_longer_than_the_step():
    assert answers.phases(on_gpu()).ok
    assert not answers.phases(on_gpu(phases={"backward": 0.7})).ok
    assert answers.phases(on_gpu(phases={"synchronize": 0.0})).ok  # two events in a row at one rank


def test_the_host_does_not_wait_for_what_is_on_the_device():
    def waits(seconds, step):
        times = {"data_wait_s": [seconds] * records.STEPS, "step_time_s": [step] * records.STEPS}
        return answers.data_wait(changed(on_gpu(), lambda data: data["samples"][0].update(times))).ok

    assert waits(0.0002, 0.001) and not waits(0.002, 0.03) and waits(0.002, 0.06)  # a queue that is full


def test_memory_by_nvml():
    assert answers.memory(on_gpu()).ok
    assert answers.memory(on_gpu(memory={"torch_allocated": 5.0, "nvml_device": 6.0})).ok  # no process in a container
    assert not answers.memory(on_gpu(memory={"nvml_process": 7.0, "nvml_device": 6.0})).ok
    assert not answers.memory(on_gpu(memory={"torch_allocated": 5.0})).ok


def of_dp(first_gib: float, data_gib: float):
    """A record of DP on two GPUs, of which the first has so much allocated and holds so much data, the other 4 GiB."""

    def change(data: dict) -> None:
        for row, gib in zip(data["summary"]["peak_memory_gib"], (first_gib, 4.0), strict=True):
            row["torch_allocated"] = gib
        data["samples"][0]["facts"]["data_on_device_bytes"] = int(data_gib * 2**30)

    return changed(on_gpu("dp", num_devices=2), change)


def test_data_on_the_first_device_does_not_make_it_the_fullest():
    """DATA=synthetic lies on device 0 alone: 0.29 GiB at 224 pixels, more than a small model's gradients."""
    assert [answers.fullest(of_dp(*gib)).ok for gib in ((4.5, 0.2), (4.5, 0.6), (4.5, 0.0))] == [True, False, True]


def test_replicas_that_differ_are_found():
    pair = on_gpu("ddp", num_devices=2)
    assert answers.equal_replicas(pair).ok
    other = changed(pair, lambda data: data["samples"][1].update(final_weights_sha256="d" * 64))
    assert not answers.equal_replicas(other).ok


def test_one_rank_shows_no_equal_replicas():
    assert answers.equal_replicas(on_gpu()).figures == {"ranks": 1, "equal replicas": "not exercised: one rank"}
    assert answers.equal_replicas(on_gpu("ddp", num_devices=2)).figures == {"ranks": 2}


def test_gradients_in_another_memory_order_are_found_in_a_log():
    warning = "UserWarning: Grad strides do not match bucket view strides. This may indicate grad was not created"
    assert answers.strides("step 1 of 3\n").ok and not answers.strides(f"step 1\n{warning}\n").ok


def parts(allocated: float = 4.0, reserved: float = 5.0, **gib: float):
    """A record of a GPU with so much allocated and held, and these parts of it."""

    def change(data: dict) -> None:
        device = data["samples"][0]["devices"][0]
        device["peak_memory_gib"] |= {"torch_allocated": allocated, "torch_reserved": reserved, "nvml_device": 9.0}
        device["memory_parts"] = {"source": "torch's memory snapshot", "notes": [], **({"gib": gib} if gib else {})}

    return changed(on_gpu(), change)


def test_parts_of_the_memory_are_what_torch_counts():
    beside = {"cache": 1.0, "context, libraries": 2.0}
    assert answers.memory_parts(parts(weights=1.0, activations=2.8, **beside)).ok
    assert not answers.memory_parts(parts(weights=1.0, activations=2.0, **beside)).ok  # a part is missing
    assert not answers.memory_parts(parts(4.0, 3.9, weights=1.0, activations=3.0)).ok  # more than torch holds
    assert not answers.memory_parts(parts()).ok  # it was not taken


def test_lanes_of_a_timeline():
    (ddp,) = [record for record in records.profiled_records() if record.config.profile and record.config.mode == "ddp"]
    assert answers.lanes(ddp, "phase", "compute", "communication").ok
    assert not answers.lanes(ddp, "dp").ok


def test_a_lane_as_long_as_the_kernels():
    assert answers.same_lane(1.015, 1.0).ok and not answers.same_lane(1.03, 1.0).ok and not answers.same_lane(0, 1.0).ok


def test_differences_within_their_bounds():
    bounds = {"plain": 1e-4, "later": 10}
    assert answers.within({"plain": 1e-5, "later": 3.0}, bounds).ok
    assert not answers.within({"plain": 1e-3, "later": 3.0}, bounds).ok
    assert not answers.within({"plain": 1e-5, "later": math.nan}, bounds).ok


def test_the_harness_against_a_bare_loop():
    found = answers.against_bare([1.0] * 5, [0.985] * 5, examples=640)
    assert found.ok and not answers.against_bare([1.0] * 5, [0.97] * 5, 640).ok
    assert found.figures["harness examples/s"] == 640 and 649 < found.figures["bare examples/s"] < 650
    assert answers.against_bare([1.0, 1.0, 9.0], [0.985, 0.985, 0.5], 640).ok  # one disturbed block


def test_a_default_is_the_fastest_but_for_what_repeats_differ_by():
    assert answers.fastest(100.0, {"fp16": 101.9, "fused=0": 80.0}).ok and answers.fastest(100.0, {}).ok
    found = answers.fastest(100.0, {"fp16": 102.1, "fused=0": 80.0})
    assert not found.ok and found.figures["fp16 / default"] == pytest.approx(1.021)


def test_another_precision_or_batch_is_reported_and_not_judged():
    found = answers.fastest(100.0, {"fused=0": 80.0}, {"fp16": 124.0, "batch 512": 104.0})
    assert found.ok and found.figures["fp16 / default"] == pytest.approx(1.24)
    assert found.figures["batch 512 / default"] == pytest.approx(1.04)
    assert not answers.fastest(100.0, {"fused=0": 103.0}, {"fp16": 124.0}).ok


def test_the_check_of_the_default_judges_settings_of_its_own_precision_and_batch():
    """On an H100 fp16 was 1.24 times and a batch of 512 1.04 times as fast as the default: neither is a failure."""

    class Run:
        def __init__(self, options):
            speed = 1.24 if options.get("precision") else 1.04 if options.get("per_device_batch") else 1.0
            self.median_throughput = 4000 * speed * self.of_fused.get(options.get("fused"), 1.0)

    class OneGpu:
        def run(self, **options):
            return Run(options)

    (check,) = [each for each in a2_single.PART.checks if each.name == "default"]
    for fused, ok in ((0.9, True), (1.1, False)):
        Run.of_fused = {False: fused}
        found = check.run(OneGpu())
        assert found.ok == ok and found.figures["fp16 / default"] == pytest.approx(1.24)


def test_repeats_and_foreign_load():
    assert answers.spread([on_gpu(throughput=t) for t in (100.0, 101.0, 102.0)]).ok
    assert not answers.spread([on_gpu(throughput=t) for t in (100.0, 101.0, 104.0)]).ok

    def foreign(count):
        return changed(on_gpu(), lambda data: data["summary"].update(foreign_gpu_processes=count))

    assert answers.noted_foreign(foreign(1)).ok and not answers.noted_foreign(foreign(0)).ok


@pytest.mark.parametrize(("kind", "rank", "left", "ok"), [("killed", 1, 0, True), ("killed", 0, 0, False),
                                                          ("hung", 1, 0, False), ("killed", 1, 2, False)])  # fmt: skip
def test_a_failure_is_named_and_leaves_nobody(kind, rank, left, ok):
    assert answers.failure({"kind": kind, "rank": rank, "message": "it was"}, "killed", 1, left).ok is ok


def test_what_the_others_wait_for_is_known_where_a_rank_hangs():
    at = {"file": "bench/training/loop.py", "line": 1, "function": "take_step"}
    known = {"where": [at | {"collective": True, "awaits": "all_reduce of [3], number 7"}, at | {"collective": False}]}
    found = answers.awaited(known, 1)
    assert found.ok and found.figures == {"the others": "all_reduce of [3], number 7"}
    assert answers.awaited({"where": [at | {"collective": True}, None]}, 1).ok  # its stack says so
    for nothing in ({"where": [at | {"collective": False}, at]}, {"where": [None, at]}, {}):
        assert not answers.awaited(nothing, 1).ok


def test_several_answers_are_one():
    speed = answers.speed(on_gpu())
    assert speed.ok and {"examples/s", "events s", "device GiB"} <= speed.figures.keys()
    assert not answers.both(speed, answers.same_lane(2.0, 1.0)).ok
