"""Answers as pure functions of records. No torch is imported."""

import statistics

from bench.profile.memory_parts import TENSORS
from bench.proof.gpu_check.base import Answer
from bench.record.view import Record

LONGEST_LOOK_MS = 50.0  # at NVML: memory is sampled four times a second
CLOCKS_APART, CLOCKS_APART_S = 0.01, 0.005  # CUDA events and wall clock: a share, and for short runs seconds
LONGEST_WAIT_S, LONGEST_WAIT = 1e-3, 0.05  # seconds, or share of a step: a slow GPU's queue may be full
LANES_APART = 0.02
SLOWEST_HARNESS = 0.98  # its throughput over a bare loop's
WIDEST_SPREAD = 0.03  # of repeats
FASTER_THAN_DEFAULT = 1.02  # then the default should change
PARTS_APART = 0.1  # bytes asked of the allocator in one step, and blocks that it allocated in others


def machine(found: dict) -> Answer:
    loaded, compiled = ([int(part) for part in found[name].split(".")] for name in ("nccl", "nccl of torch"))
    return Answer(found["device seen"] and found["sample ms"] <= LONGEST_LOOK_MS and loaded >= compiled, found)


def clocks(record: Record) -> Answer:
    part = record.samples[0]
    events = sum(part.step_time_s)
    wall = part.moments["last_timed_step"] - part.moments["first_timed_step"]
    ok = abs(events - wall) <= max(CLOCKS_APART * wall, CLOCKS_APART_S)
    return Answer(ok, {"events s": events, "wall s": wall, "steps": len(part.step_time_s)})


def phases(record: Record) -> Answer:
    """No phase is negative; 0 is possible between two events."""
    part = record.samples[0]
    together = [sum(each) for each in zip(*part.phase_time_s.values(), strict=True)]
    beyond = max(inside - step for inside, step in zip(together, part.step_time_s, strict=True))
    ok = bool(part.phase_time_s) and beyond <= 1e-5 and min(together) > 0
    ok = ok and all(min(each) >= 0 for each in part.phase_time_s.values())
    shares = {name: sum(each) / sum(part.step_time_s) for name, each in part.phase_time_s.items()}
    return Answer(ok, {"beyond a step s": beyond, **{f"{name} share": share for name, share in shares.items()}})


def data_wait(record: Record) -> Answer:
    part = record.samples[0]
    median, step = statistics.median(part.data_wait_s), statistics.median(part.step_time_s)
    ok = median < max(LONGEST_WAIT_S, LONGEST_WAIT * step)
    return Answer(ok, {"median s": median, "longest s": max(part.data_wait_s), "step s": step})


def memory(record: Record) -> Answer:
    rows = record.peak_memory
    process, whole = rows[0].get("nvml_process"), rows[0].get("nvml_device")
    ok = whole is not None and (process is None or process <= whole)  # some containers show no process
    return Answer(ok, {"process GiB": process, "device GiB": whole, "allocated GiB": rows[0].get("torch_allocated")})


def memory_parts(record: Record) -> Answer:
    device = record.samples[0].devices[0]
    peak, parts = device["peak_memory_gib"], device["memory_parts"].get("gib", {})
    inside, allocated = sum(parts.get(kind, 0) for kind in TENSORS), peak["torch_allocated"]
    ok = abs(inside / allocated - 1) <= PARTS_APART and inside <= peak["torch_reserved"]
    return Answer(ok, {"parts GiB": inside, "allocated GiB": allocated, "reserved GiB": peak["torch_reserved"],
                       "notes": "; ".join(device["memory_parts"]["notes"])})  # fmt: skip


def equal_replicas(record: Record) -> Answer:
    ranks = len(record.samples)
    said = {"ranks": ranks} | ({"equal replicas": "not exercised: one rank"} if ranks == 1 else {})
    return Answer(len({part.final_weights_sha256 for part in record.samples}) == 1, said)


def strides(logs: str) -> Answer:
    warned = "do not match bucket view strides" in logs
    return Answer(not warned, {"warned": "gradients have other strides than their buckets"} if warned else {})


def lanes(record: Record, *expected: str) -> Answer:
    seen = [{span["lane"] for span in part.timeline["spans"]} for part in record.samples]
    notes = "; ".join(dict.fromkeys(note for part in record.samples for note in part.timeline["notes"]))
    return Answer(all({*expected} <= each for each in seen), {"lanes": ", ".join(sorted(seen[0])), "notes": notes})


def fullest(record: Record) -> Answer:
    peaks = [row["torch_allocated"] for row in record.peak_memory]
    peaks[0] -= record.samples[0].facts.get("data_on_device_bytes", 0) / 2**30
    return Answer(peaks[0] == max(peaks), {f"device {i} GiB": peak for i, peak in enumerate(peaks)})


def speed(record: Record) -> Answer:
    return both(Answer(True, {"examples/s": record.median_throughput}), clocks(record), memory(record))


def noted_foreign(record: Record) -> Answer:
    count = record["summary"].get("foreign_gpu_processes")
    return Answer(bool(count), {"foreign processes": count, "examples/s": record.median_throughput})


def spread(records: list[Record]) -> Answer:
    speeds = [record.median_throughput for record in records]
    apart = max(speeds) / min(speeds) - 1
    return Answer(apart <= WIDEST_SPREAD, {"spread": apart, **{f"run {i} /s": s for i, s in enumerate(speeds, 1)}})


def against_bare(harness_s: list[float], bare_s: list[float], examples: int) -> Answer:
    ratio = statistics.median(bare / harness for harness, bare in zip(harness_s, bare_s, strict=True))
    speeds = {name: examples / statistics.median(each) for name, each in (("harness", harness_s), ("bare", bare_s))}
    figures = {"ratio": ratio, "pairs": len(bare_s), **{f"{name} examples/s": speed for name, speed in speeds.items()}}
    return Answer(ratio >= SLOWEST_HARNESS, figures)


def fastest(default: float, others: dict[str, float], reported: dict[str, float] | None = None) -> Answer:
    """Whether none of ``others`` is faster than the default. reported: settings that are not judged, as they change
    the precision or the batch."""
    ratios = {name: speed / default for name, speed in (others | (reported or {})).items()}
    ok = all(ratios[name] <= FASTER_THAN_DEFAULT for name in others)
    return Answer(ok, {"default examples/s": default, **{f"{name} / default": ratio for name, ratio in ratios.items()}})


def same_lane(busy_s: float, known_s: float) -> Answer:
    return Answer(abs(busy_s / known_s - 1) <= LANES_APART, {"lane s": busy_s, "events s": known_s})


def within(differences: dict[str, float], bounds: dict[str, float]) -> Answer:
    return Answer(all(differences[name] <= bound for name, bound in bounds.items()), differences)  # nan is not


def awaited(failure: dict, rank: int) -> Answer:
    """The other ranks wait in a collective for the rank that hangs."""
    others = [place for other, place in enumerate(failure.get("where") or []) if other != rank]
    known = [place.get("awaits") or place["function"] for place in others if place and place["collective"]]
    return Answer(len(known) == len(others) > 0, {"the others": ", ".join(known) or "not known to wait"})


def failure(found: dict, kind: str, rank: int, left: int) -> Answer:
    """The run reports the fault and its rank. left: number of processes."""
    ok = (found["kind"], found["rank"], left) == (kind, rank, 0)
    return Answer(ok, {"kind": found["kind"], "rank": found["rank"], "left": left, "message": found["message"]})


def both(*answers: Answer) -> Answer:
    figures = {name: value for answer in answers for name, value in answer.figures.items()}
    return Answer(all(answer.ok for answer in answers), figures)
