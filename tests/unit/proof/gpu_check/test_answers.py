"""`bench doctor gpu`: what it asks of a record, here of made-up ones."""

import math
from types import SimpleNamespace

import pytest

from bench.proof.gpu_check import a2_single, answers
from tests import records


def on_gpu(mode: str = "single", change=None, **options):
    """A record of a GPU that nobody sells. change: a function that changes its data."""
    record = records.record(mode, device="cuda", num_devices=options.pop("num_devices", 1), **options)
    return records.edited([record], change)[0] if change else record


def later(seconds: float):
    """A record whose events and wall clock are this far apart."""
    return on_gpu(change=lambda data: data["samples"][0]["moments"].update(last_timed_step=WALL_END + seconds))


WALL_END = on_gpu().samples[0].moments["last_timed_step"]
WALL_S = answers.clocks(on_gpu()).figures["wall s"]


def waits(seconds: float, step: float):
    """A record of steps of this length that wait so long for their data."""
    times = {"data_wait_s": [seconds] * records.STEPS, "step_time_s": [step] * records.STEPS}
    return on_gpu(change=lambda data: data["samples"][0].update(times))


def of_dp(first_gib: float, data_gib: float):
    """A record of DP on two GPUs, of which the first has so much allocated and holds so much data, the other 4 GiB."""

    def change(data: dict) -> None:
        for row, gib in zip(data["summary"]["peak_memory_gib"], (first_gib, 4.0), strict=True):
            row["torch_allocated"] = gib
        data["samples"][0]["facts"]["data_on_device_bytes"] = int(data_gib * 2**30)

    return on_gpu("dp", change, num_devices=2)


def pair(other_weights: bool = False):
    weights = {"final_weights_sha256": "d" * 64} if other_weights else {}
    return on_gpu("ddp", lambda data: data["samples"][1].update(weights), num_devices=2)


def parts(allocated: float = 4.0, reserved: float = 5.0, **gib: float):
    """A record of a GPU with so much allocated and held, and these parts of it."""

    def change(data: dict) -> None:
        device = data["samples"][0]["devices"][0]
        device["peak_memory_gib"] |= {"torch_allocated": allocated, "torch_reserved": reserved, "nvml_device": 9.0}
        device["memory_parts"] = {"source": "torch's memory snapshot", "notes": [], **({"gib": gib} if gib else {})}

    return on_gpu(change=change)


def foreign(count: int):
    return on_gpu(change=lambda data: data["summary"].update(foreign_gpu_processes=count))


def profiled(mode: str):
    return next(r for r in records.profiled_records() if r.config.profile and r.config.mode == mode)


MACHINE = {"device seen": True, "sample ms": 3.0, "nccl": "2.30.7", "nccl of torch": "2.28.9"}
STRIDES = "step 1\nUserWarning: Grad strides do not match bucket view strides. This may indicate grad was not created"
BESIDE = {"cache": 1.0, "context, libraries": 2.0}
BOUNDS = {"plain": 1e-4, "later": 10}
KILLED = {"kind": "killed", "message": "it was"}
AT = {"file": "bench/training/loop.py", "line": 1, "function": "take_step"}
MEETS, ALONE = AT | {"collective": True}, AT | {"collective": False}
TELLS = MEETS | {"awaits": "all_reduce of [3], number 7"}
RIGHT = {
    "the machine": lambda: answers.machine(MACHINE),
    "NCCL's versions by number": lambda: answers.machine(MACHINE | {"nccl of torch": "2.9.6"}),
    "1 % apart": lambda: answers.clocks(later(0.009 * WALL_S)),
    "phases": lambda: answers.phases(on_gpu()),
    "two events in a row at one rank": lambda: answers.phases(on_gpu(phases={"synchronize": 0.0})),
    "data on the device": lambda: answers.data_wait(waits(0.0002, 0.001)),
    "a queue that is full": lambda: answers.data_wait(waits(0.002, 0.06)),
    "memory": lambda: answers.memory(on_gpu()),
    "no process in a container": lambda: answers.memory(on_gpu(memory={"torch_allocated": 5.0, "nvml_device": 6.0})),
    "DP's first device": lambda: answers.fullest(of_dp(4.5, 0.2)),
    "replicas": lambda: answers.equal_replicas(pair()),
    "strides": lambda: answers.strides("step 1 of 3\n"),
    "parts of the memory": lambda: answers.memory_parts(parts(weights=1.0, activations=2.8, **BESIDE)),
    "lanes": lambda: answers.lanes(profiled("ddp"), "phase", "compute", "communication"),
    "a lane as long as the kernels": lambda: answers.same_lane(1.015, 1.0),
    "differences": lambda: answers.within({"plain": 1e-5, "later": 3.0}, BOUNDS),
    "one disturbed block": lambda: answers.against_bare([1.0, 1.0, 9.0], [0.985, 0.985, 0.5], 640),
    "within repeats": lambda: answers.fastest(100.0, {"fp16": 101.9, "fused=0": 80.0}),
    "nothing to compare": lambda: answers.fastest(100.0, {}),
    "repeats": lambda: answers.spread([on_gpu(throughput=t) for t in (100.0, 101.0, 102.0)]),
    "a foreign process": lambda: answers.noted_foreign(foreign(1)),
    "a killed rank": lambda: answers.failure(KILLED | {"rank": 1}, "killed", 1, 0),
    "its stack says what is awaited": lambda: answers.awaited({"where": [MEETS, None]}, 1),
}
WRONG = {
    "slow NVML": lambda: answers.machine(MACHINE | {"sample ms": 70.0}),
    "no NVML": lambda: answers.machine(MACHINE | {"device seen": False, "sample ms": None}),
    "an older NCCL comes first": lambda: answers.machine(MACHINE | {"nccl": "2.28.3"}),
    "1 % and more apart": lambda: answers.clocks(later(0.011 * WALL_S)),
    "2 % the other way": lambda: answers.clocks(later(-0.02 * WALL_S)),
    "phases longer than the step": lambda: answers.phases(on_gpu(phases={"backward": 0.7})),
    "waiting for what is on the device": lambda: answers.data_wait(waits(0.002, 0.03)),
    "a process with more than there is": lambda: answers.memory(
        on_gpu(memory={"nvml_process": 7.0, "nvml_device": 6.0})
    ),
    "memory without NVML": lambda: answers.memory(on_gpu(memory={"torch_allocated": 5.0})),
    "DP's data alone": lambda: answers.fullest(of_dp(4.5, 0.6)),  # DATA=synthetic lies only on device 0
    "replicas that differ": lambda: answers.equal_replicas(pair(other_weights=True)),
    "strides that do not match": lambda: answers.strides(STRIDES),
    "a part is missing": lambda: answers.memory_parts(parts(weights=1.0, activations=2.0, **BESIDE)),
    "parts of more than torch holds": lambda: answers.memory_parts(parts(4.0, 3.9, weights=1.0, activations=3.0)),
    "no parts": lambda: answers.memory_parts(parts()),
    "a lane that is not there": lambda: answers.lanes(profiled("ddp"), "dp"),
    "a longer lane": lambda: answers.same_lane(1.03, 1.0),
    "an empty lane": lambda: answers.same_lane(0, 1.0),
    "a large difference": lambda: answers.within({"plain": 1e-3, "later": 3.0}, BOUNDS),
    "no number": lambda: answers.within({"plain": 1e-5, "later": math.nan}, BOUNDS),
    "slower than a bare loop": lambda: answers.against_bare([1.0] * 5, [0.97] * 5, 640),
    "a faster setting": lambda: answers.fastest(100.0, {"fused=0": 103.0}, {"fp16": 124.0}),
    "repeats that differ": lambda: answers.spread([on_gpu(throughput=t) for t in (100.0, 101.0, 104.0)]),
    "a foreign process unseen": lambda: answers.noted_foreign(foreign(0)),
    "another rank": lambda: answers.failure(KILLED | {"rank": 0}, "killed", 1, 0),
    "another failure": lambda: answers.failure(KILLED | {"rank": 1, "kind": "hung"}, "killed", 1, 0),
    "somebody is left": lambda: answers.failure(KILLED | {"rank": 1}, "killed", 1, 2),
    "nobody awaits anything": lambda: answers.awaited({"where": [ALONE, AT]}, 1),
    "no stack": lambda: answers.awaited({"where": [None, AT]}, 1),
    "nothing is known": lambda: answers.awaited({}, 1),
    "one of two": lambda: answers.both(answers.speed(on_gpu()), answers.same_lane(2.0, 1.0)),
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_is_right_is_proven(what):
    assert RIGHT[what]().ok


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_found(what):
    assert not WRONG[what]().ok


def test_figures():
    assert answers.equal_replicas(on_gpu()).figures == {"ranks": 1, "equal replicas": "not exercised: one rank"}
    assert answers.equal_replicas(pair()).figures == {"ranks": 2}
    figures = answers.against_bare([1.0] * 5, [0.985] * 5, examples=640).figures
    assert figures["harness examples/s"] == 640 and 649 < figures["bare examples/s"] < 650
    assert answers.awaited({"where": [TELLS, ALONE]}, 1).figures == {"the others": "all_reduce of [3], number 7"}
    assert {"examples/s", "events s", "device GiB"} <= answers.speed(on_gpu()).figures.keys()


def test_another_precision_or_batch_is_reported_and_not_judged():
    """On an H100 fp16 was 1.24 times and a batch of 512 1.04 times as fast as the default: neither is a failure."""
    found = answers.fastest(100.0, {"fp16": 102.1, "fused=0": 80.0})
    assert not found.ok and found.figures["fp16 / default"] == pytest.approx(1.021)
    (check,) = [each for each in a2_single.PART.checks if each.name == "default"]
    for of_not_fused, ok in ((0.9, True), (1.1, False)):

        def run(fused=True, factor=of_not_fused, **options):
            speed = 1.24 if options.get("precision") else 1.04 if options.get("per_device_batch") else 1.0
            return SimpleNamespace(median_throughput=4000 * speed * (1.0 if fused else factor))

        found = check.run(SimpleNamespace(run=run))
        assert found.ok == ok and found.figures["fp16 / default"] == pytest.approx(1.24)
