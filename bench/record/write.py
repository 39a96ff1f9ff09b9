"""What a run leaves behind, as JSON: written whole or not at all, checked against its definition.

Raw samples are kept: every figure of ``summary`` can be computed again from ``samples`` by the functions of
``bench/formulas.py``.
"""

import datetime
import json
from collections.abc import Callable
from pathlib import Path

from bench import files, mistakes
from bench.config.command_line import make_command
from bench.config.modes import MODES
from bench.config.options import RunConfig, to_dict
from bench.config.workloads import workload_of
from bench.errors import as_unicode, shortened
from bench.measure import node, steady
from bench.record import SCHEMA_VERSION
from bench.record.privacy import without_names, without_paths
from bench.record.schema import check
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
    "throughput_per_s": "units (workload/units) of all timed steps over the slowest rank's time for them",
    "median_throughput_per_s": "throughput_per_s, were every timed step the median one: one long step does not move it",
    "independent_throughput_per_s": "sum over processes of own units (workload/units) over own time: none waits",
    "others_cpu_share": "CPU time of all processes of a machine during the timed steps, less that of the ranks and "
    "their loader workers, over cores times wall time; the operating system's counters, read before and after",
    "steal_share": "CPU time that the machine's host gave to others during the timed steps, over cores times wall "
    "time; the operating system's counter",
    "foreign_gpu_processes": "processes that NVML listed on a device during the timed steps, less the run's ranks; not "
    "known where NVML has other process numbers than the run",
    "gpu_slowed_share": "share of the samples during the timed steps in which NVML said that heat or power supply held "
    "the clock down, on the device where it is largest",
    "gpu_power_capped_share": "share of the samples during the timed steps in which NVML said that the board was at "
    "its power limit, on the device where it is largest; a fact, and no disturbance",
    "disturbed_above": "the thresholds of bench/record/disturbance.py when this run was recorded",
    "metric": "over the validation set, each example once, by the plain model with rank 0's batch-norm statistics",
    "replicas": "distance: between all parameters of two ranks (by_layer: of a layer), root mean square over pairs of "
    "ranks, after the steps named, sums in float64; theory: the distance over that before the first step, by "
    "formulas.replica_distance_factors; ranks: each rank alone on the whole validation set, with its own weights and "
    "buffers; average: the mean of the ranks' weights, with the mean of their buffers or with batch norm's statistics "
    "re-estimated on an epoch of training images, as torch.optim.swa_utils.update_bn does",
    "peak_memory_gib": {
        "cpu": "sampled PSS (USS or RSS where the system has none: the key says which) of each process and its loader "
        "workers; rss_hwm: the kernel's peak, shared pages counted",
        "cuda": "NVML device and process figures sampled, over the whole run; torch's allocated and reserved: the "
        "allocator's exact peaks over the timed steps, reset at their start; what it had reserved by then, as for "
        "cuDNN's trials, it may hold still",
    },
    "gpu_defaults": "options that were left open, set by the GPUs' generation and memory before a study set its own "
    "(bench/config/gpu_defaults.py); PLAIN=1 leaves them as PyTorch has them",
}
OF_GPUS = ("foreign_gpu_processes", "gpu_slowed_share", "gpu_power_capped_share")


WORDS = {"killed": "was killed", "raised": "raised", "machine lost": "was lost with its machine",
         "launcher": "was lost"}  # fmt: skip
NODE_KEYS = ("key", "machine")  # of a part's node: what only tells it from the others
MOST_MESSAGE, MOST_TRACE = 2_000, 15_000  # letters of a failure, which may quote anything


def write_record(
    run_dir, config: RunConfig, topology, label: str, environment: dict, parts: list[dict], accuracy: list,
    observed: dict,
):  # fmt: skip
    """Rank 0 of a finished run: put the parts of all ranks together and write RUN_DIR/record.json.

    topology: this rank's ``Topology``. environment: of this machine. parts: one dict per rank, in rank order, as
    gathered, each with its ``node`` (training/results.py), in whose place its number remains. accuracy: one row per
    epoch. observed: what the detectors of bench/mistakes look at. Raises BadRecord when the result does not fit the
    schema, OSError when it cannot be written.
    """
    nodes, units = nodes_of(parts), config.global_batch * workload_of(config).per_example
    record = {
        **frame(run_dir, config, "ok"),
        "topology": describe_topology(config, topology, label, parts),
        "environment": environment,
        "nodes": nodes,
        "samples": parts,
        "summary": summarise(config.mode, units, parts, steady.command_began()),
        "observed": observed,
        "provenance": provenance_of(config),
    }
    if accuracy:
        record["accuracy"] = summarise_accuracy(workload_of(config).metrics, config.target, accuracy)
    save(run_dir, record)


def nodes_of(parts: list[dict]) -> list[dict]:
    """The machines of a run, in the order of their first rank. Takes each part's ``node`` away; where there are several
    it has their number instead, and its load says which ranks share a processor.

    >>> nodes_of([{"node": {"key": "a", "machine": "m"}}, {"node": {"key": "a", "machine": "m"}}])
    [{'ranks': [0, 1]}]
    >>> parts = [{"node": {"key": name, "machine": "m", "name": name}, "devices": [{}], "load": {}} for name in "ab"]
    >>> nodes_of(parts)[1], parts[1]
    ({'ranks': [1], 'devices': 1, 'name': 'b'}, {'devices': [{}], 'load': {'machine': 0}, 'node': 1})
    """
    places = [part.pop("node") for part in parts]
    keys, machines = (list(dict.fromkeys(place[name] for place in places)) for name in ("key", "machine"))
    if len(keys) == 1:
        return [{"ranks": list(range(len(parts)))}]
    nodes = []
    for number, key in enumerate(keys):
        ranks = [rank for rank, place in enumerate(places) if place["key"] == key]
        for rank in ranks:
            parts[rank]["node"] = number
            parts[rank]["load"]["machine"] = machines.index(places[rank]["machine"])
        devices = sum(len(parts[rank]["devices"]) for rank in ranks)
        known = {name: value for rank in reversed(ranks) for name, value in places[rank].items()}  # the first rank's
        nodes.append({"ranks": ranks, "devices": devices} | {k: v for k, v in known.items() if k not in NODE_KEYS})
    nodes[0].pop("environment", None)  # it is the record's
    return nodes


def write_evaluation(
    run_dir, config: RunConfig, topology, environment: dict, result: dict, seconds: float, notes: list[str]
) -> None:
    """Rank 0 of a run that only validated (EVALUATE=1): there are no steps, so there is only the accuracy and the
    seconds that it took."""
    record = frame(run_dir, config, "evaluated") | {"environment": environment, "samples": [], "summary": {}}
    record["topology"] = {"world_size": topology.world_size, "num_devices": topology.num_devices, "notes": notes}
    metrics = {metric.key: result[metric.key] for metric in workload_of(config).metrics}
    record["accuracy"] = metrics | {
        "epochs": [{"epoch": 0, "steps": 0, "elapsed_s": seconds, "validate_s": seconds, **result}]
    }
    save(run_dir, record | {"provenance": {workload_of(config).metrics[0].key: PROVENANCE["metric"]}})


def add_survival(run_dir: Path, config: RunConfig, told: Callable[[int], dict]) -> None:
    """The launcher, after a run with ELASTIC: what was survived becomes a part of the record, and its command is what
    was asked for. told: images seen at the end -> the record's ``elastic``."""
    record = json.loads((Path(run_dir) / "record.json").read_text())
    record["elastic"] = told(record["accuracy"]["epochs"][-1]["images_seen"])
    record["command"] = make_command(without_names(config))
    record["topology"]["notes"] += notes_of(record["elastic"])
    save(run_dir, record)


def notes_of(survived: dict) -> list[str]:
    """What must be known of a run that was interrupted, a sentence each."""
    rows = survived["interruptions"]
    notes = []
    for row in rows:
        who = {"joined": "devices have joined", "unseen": "a restart"}.get(row["kind"])
        who = who or f"rank {row['rank']}{' on ' + row['host'] if row['host'] else ''} {WORDS[row['kind']]}"
        after = "" if row["devices_after"] == row["devices_before"] else (
            f", from {row['devices_before']} devices to {row['devices_after']}")  # fmt: skip
        notes.append(
            f"interrupted after {row['when_s']:.1f} s ({who}){after}: {row['seconds_lost']:.1f} s lost, "
            f"{row['steps_repeated']} steps repeated"
        )
    if rows:
        once = all(row["more"] == row["never"] == 0 for row in survived["epochs"])
        wrong = "; ".join(f"epoch {row['epoch']}: {row['more']} more than once, {row['never']} never"
                          for row in survived["epochs"] if row["more"] or row["never"])  # fmt: skip
        notes.append("every example of an epoch counts in the weights exactly once" if once else f"examples: {wrong}")
        notes.append("times and memory are of the steps after the last interruption, and the seconds of training are "
                     "without what was lost: no measurement to compare")  # fmt: skip
        if any(row["devices_before"] != row["devices_after"] for row in rows):
            notes.append(survived["rule"])
    return notes


def write_failure(
    run_dir: Path, config: RunConfig, started: float, environment: dict, failure: dict, survived: dict | None = None
) -> None:
    """The launcher, after a run that did not end well. started: when its command began. failure: rank, kind, message
    and traceback. survived: with ELASTIC, what the run had survived before."""
    record = frame(run_dir, config, "failed", started) | {"topology": {}, "environment": environment, "samples": []}
    record |= {"elastic": survived} if survived else {}
    limits = {"message": MOST_MESSAGE, "traceback": MOST_TRACE}
    failure = failure | {name: shortened(as_unicode(str(failure[name])), most) for name, most in limits.items()
                         if failure[name] is not None}  # fmt: skip
    check(record := record | {"summary": {}, "provenance": {}, "failure": failure}, run_dir)
    public = {name: without_paths(failure[name]) for name in ("message", "traceback")}
    save(run_dir, record | {"failure": failure | public})


def frame(run_dir, config: RunConfig, status: str, started: float | None = None) -> dict:
    """The head that every record has. started: when its command began; a rank has that from its launcher."""
    label = node.network()
    public = without_names(config)
    started = started or steady.command_began() or steady.now()
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
        **({"network": {"label": label}} if label else {}),
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
            f"{len(unreadable)} {workload_of(config).batched} could not be read and were left out (SKIP_BAD=1): "
            f"{names_of(unreadable)}"
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
        "disturbed_above": PROVENANCE["disturbed_above"],
        **({name: PROVENANCE[name] for name in OF_GPUS} if kind == "cuda" else {}),
        "throughput_per_s": PROVENANCE[f"{independent}throughput_per_s"],
        "median_throughput_per_s": PROVENANCE["median_throughput_per_s"],
        "peak_memory_gib": PROVENANCE["peak_memory_gib"][kind],
        **({"gpu_defaults": PROVENANCE["gpu_defaults"]} if config.label.gpu_defaults else {}),
        **({workload_of(config).metrics[0].key: PROVENANCE["metric"]} if config.epochs else {}),
        **({"replicas": PROVENANCE["replicas"]} if config.replicas else {}),
    }


def save(run_dir: Path, record: dict, name: str = "record.json", form: str = "Run") -> Path:
    """Check a record and write it whole: to a temporary name on the same disk, then renamed. form: its definition."""
    check(record, run_dir, form)
    path = Path(run_dir) / name
    with files.written_whole(path, path.with_suffix(".json.tmp")) as temporary, temporary.open("w") as file:
        json.dump(record, file, indent=1, allow_nan=False)
    return path
