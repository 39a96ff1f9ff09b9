"""Writes a run's record as JSON, atomically, checked against its definition.

Raw samples are kept: every metric of ``summary`` can be computed again from ``samples`` (bench/formulas.py).
"""

import contextlib
import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import files, mistakes
from bench.config.command_line import make_command
from bench.config.modes import MODES, describe_emulation
from bench.config.options import RunConfig, to_dict
from bench.config.workloads import workload_of
from bench.errors import UserError, as_unicode, shortened
from bench.measure import node, steady
from bench.record import SCHEMA_VERSION
from bench.record.privacy import without_names, without_paths
from bench.record.schema import check
from bench.record.summary import summarise, summarise_accuracy

PROVENANCE = {  # a text, or one by device
    "step_time_s": {
        "cpu": "monotonic clock between the ends of two steps, per rank; summary: the slowest rank of each step",
        "cuda": "CUDA events between steps, read once at the end, per rank; summary: the slowest rank of each step",
    },
    "phase_time_s": {
        "cpu": "monotonic clock at the phases' ends, per rank",
        "cuda": "CUDA events at the phases' ends on the current stream, read once at the end, per rank",
    },
    "data_wait_s": "monotonic clock on the host around the loader's next(), per rank",
    "throughput_per_s": "units (workload/units) of all timed steps divided by the slowest rank's time for them",
    "median_throughput_per_s": "throughput_per_s if every timed step were the median one: a long step has no influence",
    "others_cpu_share": "CPU time of all processes of a machine during the timed steps, minus that of the ranks and "
    "their loader workers, divided by cores times wall time; the operating system's counters, read before and after",
    "steal_share": "CPU time that the machine's host gave to others during the timed steps, divided by cores times "
    "wall time; the operating system's counter",
    "disturbed_above": "the thresholds of bench/record/disturbance.py when this run was recorded",
    "peak_memory_gib": {
        "cpu": "sampled PSS (USS or RSS where the system has none: see the key) of each process and its loader "
        "workers; rss_hwm: the kernel's peak, which includes shared pages",
        "cuda": "NVML device and process memory sampled over the whole run; torch's allocated and reserved: the "
        "allocator's exact peaks over the timed steps, reset at their start; reserved may include what earlier steps "
        "took, as for cuDNN's trials",
    },
}
PROVENANCE_OF_GPUS = {
    "foreign_gpu_processes": "processes that NVML listed on a device during the timed steps, minus the run's ranks; "
    "unknown where NVML has other process ids than the run",
    "gpu_slowed_share": "share of the samples during the timed steps in which NVML reported that heat or power supply "
    "held the clock down, on the device where it is largest",
    "gpu_power_capped_share": "share of the samples during the timed steps in which NVML reported that the board was "
    "at its power limit, on the device where it is largest; not a disturbance",
}
INDEPENDENT_THROUGHPUT = "sum over processes of own units (workload/units) divided by own time: none waits"
METRIC = "over the validation set, each example once, by the plain model with rank 0's batch-norm statistics"
REPLICAS = (
    "distance: between all parameters of two ranks (by_layer: of a layer), root mean square over pairs of ranks, after "
    "the steps named, sums in float64; theory: that distance divided by the one before the first step, by "
    "formulas.replica_distance_factors; ranks: each rank on the whole validation set, with its own weights and "
    "buffers; average: the mean of the ranks' weights, with the mean of their buffers or with batch norm's statistics "
    "re-estimated on an epoch of training images, as torch.optim.swa_utils.update_bn does"
)
GPU_DEFAULTS = (
    "options that were left open, set by the GPUs' generation and memory before a study set its own "
    "(bench/config/gpu_defaults.py); TORCH_DEFAULTS=1 leaves them as PyTorch has them"
)
BATCH_SEARCH = (
    "runs of three steps in fresh processes before this one, in their order; fitted: no rank ran out of memory, and on "
    "a CPU 5 % of the limit were left; peak_gib: on GPUs NVML's process memory or torch's reserved, on a CPU rss_hwm"
)

WORDS = {"killed": "was killed", "raised": "raised", "machine lost": "was lost with its machine",
         "launcher": "was lost"}  # fmt: skip
MOST_LETTERS = {"message": 2_000, "traceback": 15_000}  # of a failure, which may quote anything
MOST_NAMES = 5  # of unreadable images in a note


def write_record(
    run_dir, config: RunConfig, topology, label: str, environment: dict, parts: list[dict], accuracy: list,
    observed: dict,
) -> dict:  # fmt: skip
    """Rank 0 of a finished run: put the parts of all ranks together, write RUN_DIR/record.json and return it.

    topology: this rank's ``Topology``. parts: one dict per rank, in rank order, each with its ``node``
    (training/measuring.py), which is replaced by its number. accuracy: one row per epoch. observed: the input of the
    detectors. Raises BadRecord, OSError.
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
    return record


def nodes_of(parts: list[dict]) -> list[dict]:
    """The machines of a run, in the order of their first rank. Takes each part's ``node`` away; with several machines
    it becomes their number, and its load says which ranks share a processor.

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
        for name in ("key", "machine"):
            del known[name]
        nodes.append({"ranks": ranks, "devices": devices} | known)
    nodes[0].pop("environment", None)  # it is the record's
    return nodes


def write_evaluation(
    run_dir, config: RunConfig, topology, environment: dict, result: dict, seconds: float, notes: list[str]
) -> None:
    """Rank 0 of a run that only validated (EVALUATE=1): the accuracy and the seconds that it took."""
    record = frame(run_dir, config, "evaluated") | {"environment": environment, "samples": [], "summary": {}}
    record["topology"] = {"world_size": topology.world_size, "num_devices": topology.num_devices, "notes": notes}
    metrics = {metric.key: result[metric.key] for metric in workload_of(config).metrics}
    row = {"epoch": 0, "steps": 0, "elapsed_s": seconds, "validate_s": seconds, **result}
    record["accuracy"] = metrics | {"epochs": [row]}
    save(run_dir, record | {"provenance": {workload_of(config).metrics[0].key: METRIC}})


def add_survival(run_dir: Path, config: RunConfig, elastic: Callable[[int], dict]) -> None:
    """The launcher, after a run with MIN_DEVICES: add what the run survived, and the command that the user gave.
    elastic: images seen at the end -> the record's ``elastic``."""
    record = json.loads((Path(run_dir) / "record.json").read_text())
    record["elastic"] = elastic(record["accuracy"]["epochs"][-1]["images_seen"])
    record["command"] = make_command(without_names(config))
    record["topology"]["notes"] += notes_of(record["elastic"])
    save(run_dir, record)


def notes_of(survived: dict) -> list[str]:
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
        wrong = "; ".join(f"epoch {row['epoch']}: {row['more']} more than once, {row['never']} never"
                          for row in survived["epochs"] if row["more"] or row["never"])  # fmt: skip
        notes.append(f"examples: {wrong}" if wrong else "every example of an epoch counts in the weights exactly once")
        notes.append("times and memory cover only the steps after the last interruption, and the seconds of training "
                     "exclude the lost time: do not compare them with other runs")  # fmt: skip
        if any(row["devices_before"] != row["devices_after"] for row in rows):
            notes.append(survived["rule"])
    return notes


def write_failure(
    run_dir: Path, config: RunConfig, started: float, environment: dict, failure: dict, survived: dict | None = None
) -> None:
    """The launcher, after a run that failed. started: when its command began. failure: rank, kind, message and
    traceback. survived: with MIN_DEVICES, what the run survived before."""
    record = frame(run_dir, config, "failed", started) | {"topology": {}, "environment": environment, "samples": []}
    record |= {"elastic": survived} if survived else {}
    failure = failure | {name: shortened(as_unicode(str(failure[name])), most) for name, most in MOST_LETTERS.items()
                         if failure[name] is not None}  # fmt: skip
    check(record := record | {"summary": {}, "provenance": {}, "failure": failure}, run_dir)
    public = {name: without_paths(failure[name]) for name in MOST_LETTERS}
    save(run_dir, record | {"failure": failure | public})


def frame(run_dir, config: RunConfig, status: str, started: float | None = None) -> dict:
    """The head that every record has. started: when its command began; a rank gets that from its launcher."""
    label = node.network()
    public = without_names(config)
    began = datetime.datetime.fromtimestamp(started or steady.command_began() or steady.now(), datetime.timezone.utc)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": Path(run_dir).name,
        "status": status,
        "started_at": began.isoformat(timespec="milliseconds"),
        "command": make_command(public),
        "config": to_dict(public.labelled(batch_search=None)),
        "workload": workload_of(config).to_dict(),
        **({"network": {"label": label}} if label else {}),
        **({"batch_search": json.loads(config.label.batch_search)} if config.label.batch_search else {}),
    }


def describe_topology(config: RunConfig, topology, label: str, parts: list[dict]) -> dict:
    threads = sum(part["threads"] for part in parts)
    notes = [mistakes.MISTAKES[config.mistake].warning] if config.mistake != "none" else []
    notes += ([label] if label else []) + parts[0].get("notes", [])
    if config.device == "cpu" and config.num_devices > 1:
        notes.append(f"no GPU is used: {describe_emulation(config.mode, config.num_devices)}")
    if config.label.batch_search:
        tries = len(json.loads(config.label.batch_search))
        notes.append(f"BATCH={config.per_device_batch} is the largest that fits: BATCH=max, {tries} short runs")
    if threads > config.threads:
        notes.append(
            f"{len(parts)} processes use {threads} compute threads in total, but single uses {config.threads}: "
            "each process, or replica of dp, needs at least one thread"
        )
    if skipped := max((part.get("skipped_steps", 0) for part in parts), default=0):
        notes.append(f"{skipped} steps were skipped by all ranks: their loss or gradients would have done harm")
    if unreadable := sorted({name for part in parts for name in part.get("skipped_images", [])}):
        names = ", ".join(unreadable[:MOST_NAMES]) + ", …" * (len(unreadable) > MOST_NAMES)
        examples = workload_of(config).batched
        notes.append(f"{len(unreadable)} {examples} could not be read and were left out (SKIP_BAD=1): {names}")
    return {
        **{name: getattr(topology, name) for name in ("world_size", "num_devices", "devices_per_process")},
        "device": config.device,
        "threads_total": threads,
        "threads_allowed": config.threads,
        "loader_workers_total": sum(part["loader_workers"] for part in parts),
        "global_batch": config.global_batch,
        "notes": notes,
    }


def provenance_of(config: RunConfig) -> dict:
    found = {name: text if isinstance(text, str) else text[config.device] for name, text in PROVENANCE.items()}
    if config.device == "cuda":
        found |= PROVENANCE_OF_GPUS
    if MODES[config.mode].baseline:
        found["throughput_per_s"] = INDEPENDENT_THROUGHPUT
    if config.label.gpu_defaults:
        found["gpu_defaults"] = GPU_DEFAULTS
    if config.label.batch_search:
        found["batch_search"] = BATCH_SEARCH
    if config.epochs:
        found[workload_of(config).metrics[0].key] = METRIC
    if config.replicas:
        found["replicas"] = REPLICAS
    return found


@contextlib.contextmanager
def writable(out: Path | str) -> Iterator[None]:
    """Raises UserError where this block fails to write below OUT."""
    try:
        yield
    except OSError as error:
        raise UserError(f"OUT={out} cannot be written to ({error.strerror}): choose another folder") from None


def save(run_dir: Path, record: dict, name: str = "record.json", form: str = "Run") -> Path:
    """Check a record and write it atomically: to a temporary name on the same disk, then renamed."""
    check(record, run_dir, form)
    path = Path(run_dir) / name
    with files.atomic_write(path, path.with_suffix(".json.tmp")) as temporary, temporary.open("w") as file:
        json.dump(record, file, indent=1, allow_nan=False)
    return path
