"""The metrics of a record that follow from its samples; they can be computed again at any time."""

import statistics
from collections.abc import Mapping

from bench import formulas
from bench.config.modes import MODES
from bench.config.workloads import Metric
from bench.measure.nvml import POWER_CAPPED, SLOWED
from bench.record.disturbance import thresholds


def summarise(mode: str, units: int, parts: list[dict], started: float | None = None) -> dict:
    """The metrics that tables show. units: of throughput in a step over all devices. parts: one dict per rank, as in
    the record's ``samples``. started: when the command began; by default when rank 0's process did."""
    times = [part["step_time_s"] for part in parts]
    started = parts[0]["moments"]["worker_started"] if started is None else started
    steps = formulas.slowest_rank(times)
    waits = [wait for part in parts for wait in part["data_wait_s"]]
    # on rank 0's machine: another one has another clock
    first = [part["moments"]["first_timed_step"] for part in on_one_machine(parts)[0]]
    middle = formulas.median_steps(times, MODES[mode].baseline)
    return {
        "throughput_per_s": throughput_of(mode)(times, units),
        "median_throughput_per_s": throughput_of(mode)(middle, units),
        "step_time_s": {
            "n": len(steps),
            "mean": statistics.fmean(steps),
            "median": formulas.percentile(steps, 50),
            "p5": formulas.percentile(steps, 5),
            "p95": formulas.percentile(steps, 95),
        },
        "data_wait_s": {"median": formulas.percentile(waits, 50), "p95": formulas.percentile(waits, 95)},
        "peak_memory_gib": [
            {"rank": part["rank"], "device": device["device"]}
            | ({"node": part["node"]} if "node" in part else {})
            | device["peak_memory_gib"]
            for part in parts
            for device in part["devices"]
        ],
        **disturbance(parts),
        "command_to_first_timed_step_s": max(first) - started,
    }  # fmt: skip


def disturbance(parts: list[dict]) -> dict:
    """What else used the machines during the timed steps, as far as it was measured: PROVENANCE in write.py defines
    each metric. disturbed_above: the thresholds."""
    loads = [part["load"] for part in parts if "load" in part]
    steal = [load["steal_s"] / (load["cores"] * load["wall_s"]) for load in loads if load.get("steal_s") is not None]
    return {
        **({"others_cpu_share": others_cpu_share(parts)} if len(loads) == len(parts) else {}),
        **({"steal_share": max(steal)} if steal else {}),
        **gpu_disturbance(parts),
        "disturbed_above": thresholds(),
    }


def gpu_disturbance(parts: list[dict]) -> dict:
    devices = [device for part in parts for device in part["devices"]]
    foreign = []  # process numbers are those of one machine
    for machine in on_one_machine(parts):
        ranks = {part.get("pid") for part in machine}
        foreign += [set(seen) - ranks for part in machine for device in part["devices"]
                    if part.get("pid") in (seen := device.get("processes", ()))]  # fmt: skip
    shares = {
        name: [share for device in devices if (share := share_with(bits, device)) is not None]
        for name, bits in (("gpu_slowed_share", SLOWED), ("gpu_power_capped_share", POWER_CAPPED))
    }
    found = {"foreign_gpu_processes": max(map(len, foreign))} if foreign else {}
    return found | {name: max(values) for name, values in shares.items() if values}


def joules_per_example(record: Mapping) -> float | None:
    """Energy of the GPUs per example of the timed steps, in joules; None where it was not recorded, and with EPOCHS,
    whose validations are in it. Ranks that share a GPU count it once."""
    parts = record["samples"]
    if not parts or record["config"].get("epochs"):
        return None
    boards = {}
    for part in parts:
        for device in part["devices"]:
            board = device.get("uuid") or (part["rank"], device["device"])
            boards.setdefault(board, []).append(device.get("energy_j"))
    if any(energy is None or energy <= 0 for found in boards.values() for energy in found):
        return None  # 0: shorter than the counter's interval
    examples = record["topology"]["global_batch"] * len(parts[0]["step_time_s"])
    return formulas.joules_per_example([max(found) for found in boards.values()], examples)


def share_with(bits: int, device: dict) -> float | None:
    """Of the samples of a GPU from its mark "timed" to the one taken at "end": the share with one of these reasons."""
    times, marks = device["timeline"].get("time_s", []), device.get("marks") or {}
    first, end = marks.get("timed", 0.0), marks.get("end", float("inf"))
    last = next((at for at in times if at >= end), end)  # it is taken just after its mark
    rows = zip(times, device["timeline"].get("throttle_reasons", [None] * len(times)), strict=True)
    reasons = [each for at, each in rows if each is not None and first <= at <= last]
    return sum(bool(each & bits) for each in reasons) / len(reasons) if reasons else None


def others_cpu_share(parts: list[dict]) -> float:
    return max(map(others_on_machine, on_one_machine(parts)))


def others_on_machine(parts: list[dict]) -> float:
    """Of one machine. Between namespaces of one machine the kernel's interrupts are the run's own links.

    >>> load = {"own_cpu_s": 4.0, "machine_cpu_s": 10.0, "interrupts_s": 2.0, "cores": 2, "wall_s": 5.0}
    >>> [others_on_machine([{"load": load, "node": number} for number in nodes]) for nodes in ((0, 0), (0, 1))]
    [0.2, 0.0]
    """
    loads = [part["load"] for part in parts]
    links = loads[0].get("interrupts_s", 0.0) if len({part.get("node") for part in parts}) > 1 else 0.0
    own = [load["own_cpu_s"] for load in loads] + [links]
    return formulas.others_cpu_share(loads[0]["machine_cpu_s"], own, loads[0]["cores"], loads[0]["wall_s"])


def on_one_machine(parts: list[dict]) -> list[list[dict]]:
    """The parts of each machine, rank 0's first: they share a processor, its clock and its process ids."""
    machines = {}
    for part in parts:
        machines.setdefault(part.get("load", {}).get("machine", 0), []).append(part)
    return list(machines.values())


def summarise_accuracy(metrics: tuple[Metric, ...], target: float | None, rows: list[dict]) -> dict:
    """metrics: the workload's, the one that is compared first. rows: one per epoch, without metrics if nothing was
    validated."""
    first = metrics[0]
    found = {"epochs": rows, **{metric.key: rows[-1][metric.key] for metric in metrics if metric.key in rows[-1]}}
    if first.key in rows[-1]:
        found[f"best_{first.key}"] = first.best(row[first.key] for row in rows)
    if target is not None:
        seconds = formulas.time_to_accuracy_s(rows, target, first.key, first.better == "down")
        found |= {"target": target, "time_to_accuracy_s": seconds}
    return found


def throughput_of(mode: str):
    return formulas.independent_throughput_per_s if MODES[mode].baseline else formulas.throughput_per_s
