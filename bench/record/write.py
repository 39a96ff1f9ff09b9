"""What a run leaves behind, as JSON: written whole or not at all, checked against its schema.

Raw samples are kept: every figure of ``summary`` can be computed again from ``samples`` by the functions of
``bench/formulas.py``.
"""

import datetime
import json
import os
from pathlib import Path

from bench import files, mistakes
from bench.config.command_line import make_command
from bench.config.modes import MODES
from bench.config.options import RunConfig, to_dict
from bench.config.workloads import workload_of
from bench.measure import steady
from bench.record.privacy import without_names, without_paths
from bench.record.schema import SCHEMA_VERSION, check
from bench.record.summary import summarise, summarise_accuracy

PROVENANCE = {
    "step_time_s": {
        "cpu": "monotonic clock between the ends of two steps, per rank; summary: the slowest rank of each step",
        "cuda": "CUDA events between steps, read once at the end, per rank; summary: the slowest rank of each step",
    },
    "phase_time_s": {
        "cpu": "monotonic clock at the phases' ends, per rank",
        "cuda": "CUDA events at the phases' ends on the current stream, read once at the end, per rank",
    },
    "data_wait_s": "monotonic clock on the host around the loader's next(), per rank",
    "throughput_per_s": "examples of all timed steps over the slowest rank's time for them",
    "median_throughput_per_s": "throughput_per_s, were every timed step the median one: one long step does not move it",
    "independent_throughput_per_s": "sum over processes of own examples over own time: none waits",
    "others_cpu_share": "CPU time of all processes of a machine during the timed steps, less that of the ranks and "
    "their loader workers, over cores times wall time; the operating system's counters, read before and after",
    "steal_share": "CPU time that the machine's host gave to others during the timed steps, over cores times wall "
    "time; the operating system's counter",
    "foreign_gpu_processes": "processes that NVML listed on a device during the timed steps, less the run's ranks; not "
    "known where NVML has other process numbers than the run",
    "gpu_slowed_share": "share of the samples during the timed steps in which NVML said that heat or power supply held "
    "the clock down, on the device where it is largest",
    "top1": "counted over the validation set, each image once, by the plain model with rank 0's batch-norm statistics",
    "replicas": "distance: between all parameters of two ranks (by_layer: of a layer), root mean square over pairs of "
    "ranks, after the steps named, sums in float64; theory: the distance over that before the first step, by "
    "formulas.replica_distance_factors; ranks: each rank alone on the whole validation set, with its own weights and "
    "buffers; average: the mean of the ranks' weights, with the mean of their buffers or with batch norm's statistics "
    "re-estimated on an epoch of training images, as torch.optim.swa_utils.update_bn does",
    "peak_memory_gib": {
        "cpu": "sampled PSS (USS or RSS where the system has none: the key says which) of each process and its loader "
        "workers; rss_hwm: the kernel's peak, shared pages counted",
        "cuda": "NVML device and process figures sampled; torch's allocated and reserved: the allocator's exact peaks",
    },
}


def write_record(
    run_dir, config: RunConfig, topology, label: str, environment: dict, parts: list[dict], accuracy: list,
    observed: dict,
):  # fmt: skip
    """Rank 0 of a finished run: put the parts of all ranks together and write RUN_DIR/record.json.

    topology: this rank's ``Topology``. environment: of this machine. parts: one dict per rank, in rank order, as
    gathered, each with its ``local_rank`` and, from the first rank of another machine, that one's ``environment``.
    accuracy: one row per epoch. observed: what the detectors of bench/mistakes look at. Raises BadRecord when the
    result does not fit the schema, OSError when it cannot be written.
    """
    nodes = nodes_of([(part.pop("local_rank"), part.pop("environment", None)) for part in parts])
    record = {
        **frame(run_dir, config, "ok"),
        "topology": describe_topology(config, topology, label, parts),
        "environment": environment,
        "nodes": nodes,
        "samples": parts,
        "summary": summarise(config.mode, config.global_batch, parts),
        "observed": observed,
        "provenance": provenance_of(config),
    }
    if accuracy:
        metrics = [metric.key for metric in workload_of(config).metrics]
        record["accuracy"] = summarise_accuracy(metrics, config.target, accuracy)
    save(run_dir, record)


def nodes_of(places: list[tuple[int, dict | None]]) -> list[dict]:
    """The machines of a run. places: by rank, the local rank, and the environment where it is another machine's first.

    >>> nodes_of([(0, None), (1, None), (0, {"machine": "b"})])
    [{'ranks': [0, 1]}, {'ranks': [2], 'environment': {'machine': 'b'}}]
    """
    nodes = []
    for rank, (local_rank, environment) in enumerate(places):
        if local_rank == 0 or not nodes:
            nodes.append({"ranks": []} | ({"environment": environment} if environment else {}))
        nodes[-1]["ranks"].append(rank)
    return nodes


def write_evaluation(run_dir, config: RunConfig, topology, environment: dict, result: dict, notes: list[str]) -> None:
    """Rank 0 of a run that only validated (EVALUATE=1): there are no steps, so there is nothing but the accuracy."""
    record = frame(run_dir, config, "evaluated") | {"environment": environment, "samples": [], "summary": {}}
    record["topology"] = {"world_size": topology.world_size, "num_devices": topology.num_devices, "notes": notes}
    metrics = {metric.key: result[metric.key] for metric in workload_of(config).metrics}
    record["accuracy"] = metrics | {"epochs": [{"epoch": 0, "steps": 0, "elapsed_s": 0.0, **result}]}
    save(run_dir, record | {"provenance": {"top1": PROVENANCE["top1"]}})


def write_failure(run_dir: Path, config: RunConfig, environment: dict, failure: dict) -> None:
    """The launcher, after a run that did not end well. failure: rank, kind, message and traceback."""
    record = frame(run_dir, config, "failed") | {"topology": {}, "environment": environment, "samples": []}
    check(record := record | {"summary": {}, "provenance": {}, "failure": failure}, run_dir)
    public = {name: without_paths(failure[name]) for name in ("message", "traceback")}
    save(run_dir, record | {"failure": failure | public})


def frame(run_dir, config: RunConfig, status: str) -> dict:
    """The head that every record has."""
    public = without_names(config)
    started = float(os.environ.get("BENCH_STARTED_AT", "0")) or steady.now()
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": Path(run_dir).name,
        "status": status,
        "started_at": datetime.datetime.fromtimestamp(started, datetime.timezone.utc).isoformat(
            timespec="milliseconds"
        ),
        "command": make_command(public),
        "config": to_dict(public),
        "workload": workload_of(config).to_dict(),
    }


def describe_topology(config: RunConfig, topology, label: str, parts: list[dict]) -> dict:
    """Where the processes sat, what stood for a device, and what could not be made equal."""
    threads = sum(part["threads"] for part in parts)
    notes = [mistakes.MISTAKES[config.mistake].warning] if config.mistake != "none" else []
    notes += [label] if label else []
    notes += parts[0].get("notes", [])
    if config.device == "cpu" and config.num_devices > 1:
        notes.append(f"no GPU is used: {config.num_devices} CPU workers stand for {config.num_devices} devices")
    if threads > config.threads:
        notes.append(
            f"{threads} compute threads in {len(parts)} processes share the {config.threads} that single would get: "
            "a process, or a replica of dp, cannot have less than one thread"
        )
    if skipped := max((part.get("skipped_steps", 0) for part in parts), default=0):
        notes.append(f"{skipped} steps were skipped by all ranks: their loss or gradients would have done harm")
    unreadable = sorted({name for part in parts for name in part.get("skipped_images", [])})
    if unreadable:
        notes.append(
            f"{len(unreadable)} images could not be read and were left out (SKIP_BAD=1): {names_of(unreadable)}"
        )
    return {
        "world_size": topology.world_size,
        "num_devices": topology.num_devices,
        "devices_per_process": topology.devices_per_process,
        "device": config.device,
        "threads_total": threads,
        "threads_allowed": config.threads,
        "loader_workers_total": sum(part["loader_workers"] for part in parts),
        "global_batch": config.global_batch,
        "notes": notes,
    }


def names_of(names: list[str], most: int = 5) -> str:
    """The first few names of a list.

    >>> names_of(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def provenance_of(config: RunConfig) -> dict:
    """How each figure of this record was taken."""
    kind = config.device
    independent = "independent_" if MODES[config.mode].baseline else ""
    return {
        "step_time_s": PROVENANCE["step_time_s"][kind],
        "phase_time_s": PROVENANCE["phase_time_s"][kind],
        "data_wait_s": PROVENANCE["data_wait_s"],
        "others_cpu_share": PROVENANCE["others_cpu_share"],
        "steal_share": PROVENANCE["steal_share"],
        **(
            {name: PROVENANCE[name] for name in ("foreign_gpu_processes", "gpu_slowed_share")} if kind == "cuda" else {}
        ),
        "throughput_per_s": PROVENANCE[f"{independent}throughput_per_s"],
        "median_throughput_per_s": PROVENANCE["median_throughput_per_s"],
        "peak_memory_gib": PROVENANCE["peak_memory_gib"][kind],
        **({"top1": PROVENANCE["top1"]} if config.epochs else {}),
        **({"replicas": PROVENANCE["replicas"]} if config.replicas else {}),
    }


def save(run_dir: Path, record: dict) -> Path:
    """Check a record and write it whole: to a temporary name on the same disk, then renamed."""
    check(record, run_dir)
    path = Path(run_dir) / "record.json"
    with files.written_whole(path, path.with_suffix(".json.tmp")) as temporary, temporary.open("w") as file:
        json.dump(record, file, indent=1, allow_nan=False)
    return path
