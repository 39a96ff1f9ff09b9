"""RunRecord: what a run leaves behind, as JSON. Written whole or not at all, checked against its schema.

``record.schema.json`` beside this file is the form. Raw samples are kept: every figure of ``summary`` can be
computed again from ``samples`` by the functions of ``bench/formulas.py``.
"""

import dataclasses
import datetime
import functools
import json
import math
import os
from pathlib import Path

from bench import formulas
from bench.config import RunConfig, make_command, to_dict
from bench.errors import BenchError
from bench.modes import MODES

SCHEMA_VERSION = 2
SCHEMA_PATH = Path(__file__).with_name("record.schema.json")

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
    "throughput_images_per_s": "images of all timed steps over the slowest rank's time for them",
    "independent_throughput_images_per_s": "sum over processes of own images over own time: none waits",
    "peak_memory_gib": {
        "cpu": "sampled PSS of each process and its loader workers; rss_hwm: the kernel's peak, shared pages counted",
        "cuda": "NVML device and process figures sampled; torch's allocated and reserved: the allocator's exact peaks",
    },
}


class BadRecord(BenchError):
    """A record that cannot be used; the message names the file and the reason."""


def write_record(
    run_dir, config: RunConfig, topology, label: str, environment: dict, parts: list[dict], accuracy: list
):
    """Rank 0 of a finished run: put the parts of all ranks together and write RUN_DIR/record.json.

    topology: this rank's ``Topology``. parts: one dict a rank, in rank order, as gathered. Raises BadRecord when the
    result does not fit the schema, OSError when it cannot be written.
    """
    record = {
        **frame(run_dir, config, "ok"),
        "topology": describe_topology(config, topology, label, parts),
        "environment": environment,
        "samples": parts,
        "summary": summarise(config, parts),
        "provenance": provenance_of(config),
    }
    if accuracy:
        record["accuracy"] = {
            "epochs": accuracy,
            **{k: accuracy[-1][k] for k in ("top1", "top5") if k in accuracy[-1]},
        }
    save(run_dir, record)


def write_failure(run_dir: Path, config: RunConfig, environment: dict, failure: dict) -> None:
    """The launcher, after a run that did not end well. failure: rank, kind, message and traceback."""
    record = frame(run_dir, config, "failed") | {"topology": {}, "environment": environment, "samples": []}
    save(run_dir, record | {"summary": {}, "provenance": {}, "failure": failure})


def frame(run_dir, config: RunConfig, status: str) -> dict:
    """The head that every record has."""
    started = float(os.environ.get("BENCH_STARTED_AT", "0")) or datetime.datetime.now().timestamp()
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": Path(run_dir).name,
        "status": status,
        "started_at": datetime.datetime.fromtimestamp(started, datetime.timezone.utc).isoformat(
            timespec="milliseconds"
        ),
        "command": make_command(config),
        "config": to_dict(config),
    }


def describe_topology(config: RunConfig, topology, label: str, parts: list[dict]) -> dict:
    """Where the processes sat, what stood for a device, and what could not be made equal."""
    threads = sum(part["threads"] for part in parts)
    notes = [label] if label else []
    if config.device == "cpu" and config.num_devices > 1:
        notes.append(f"no GPU is used: {config.num_devices} CPU workers stand for {config.num_devices} devices")
    if threads > config.threads:
        notes.append(
            f"{threads} compute threads in {len(parts)} processes share the {config.threads} that single would get: "
            "a process cannot have less than one thread"
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


def summarise(config: RunConfig, parts: list[dict]) -> dict:
    """The figures that tables show, from the samples."""
    times = [part["step_time_s"] for part in parts]
    steps = formulas.slowest_rank(times)
    waits = [wait for part in parts for wait in part["data_wait_s"]]
    throughput = throughput_of(MODES[config.mode])
    return {
        "throughput_images_per_s": throughput(times, config.global_batch),
        "step_time_s": {
            "n": len(steps),
            "median": formulas.percentile(steps, 50),
            "p5": formulas.percentile(steps, 5),
            "p95": formulas.percentile(steps, 95),
        },
        "data_wait_s": {"median": formulas.percentile(waits, 50), "p95": formulas.percentile(waits, 95)},
        "peak_memory_gib": [
            {"rank": part["rank"], "device": device["device"], **device["peak_memory_gib"]}
            for part in parts
            for device in part["devices"]
        ],
        "command_to_first_timed_step_s": max(p["moments"]["first_timed_step"] for p in parts)
        - float(os.environ.get("BENCH_STARTED_AT", parts[0]["moments"]["worker_started"])),
    }


def provenance_of(config: RunConfig) -> dict:
    """How each figure of this record was taken."""
    kind = config.device
    independent = "independent_" if MODES[config.mode].baseline else ""
    return {
        "step_time_s": PROVENANCE["step_time_s"][kind],
        "phase_time_s": PROVENANCE["phase_time_s"][kind],
        "data_wait_s": PROVENANCE["data_wait_s"],
        "throughput_images_per_s": PROVENANCE[f"{independent}throughput_images_per_s"],
        "peak_memory_gib": PROVENANCE["peak_memory_gib"][kind],
    }


def save(run_dir: Path, record: dict) -> Path:
    """Check a record and write it whole: to a temporary name on the same disk, then renamed."""
    check(record, run_dir)
    path = Path(run_dir) / "record.json"
    temporary = path.with_suffix(".json.tmp")
    try:
        with temporary.open("w") as file:
            json.dump(record, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict:
    """Read a record and check it. BadRecord names the file that is truncated, edited or of another version."""
    path = Path(path)
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadRecord(f"{path}: not a readable record ({error})") from None
    check(migrate(record, path), path)
    check_summary(record, path)
    return record


def migrate(record, where) -> dict:
    """Bring a record of an older schema version up to this one, in place. BadRecord for one that is not known.

    1 -> 2: options that did not exist get the value they had in effect, their default; facts and phase times were not
    recorded and stay absent.
    """
    version = record.get("schema_version") if isinstance(record, dict) else None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise BadRecord(f"{where}: schema version {version}, this program reads 1 to {SCHEMA_VERSION}")
    if version == 1 and isinstance(record.get("config"), dict):
        defaults = {f.name: f.default for f in dataclasses.fields(RunConfig)}
        record |= {"schema_version": 2, "config": defaults | record["config"]}
    return record


@functools.cache
def validator():
    """The schema, compiled once in a process: 0.1 ms a record."""
    import jsonschema_rs  # not for commands that read no record

    return jsonschema_rs.validator_for(json.loads(SCHEMA_PATH.read_text()))


def check(record: dict, where) -> None:
    """Raise BadRecord when a record does not fit the schema; of several errors the outermost is named."""
    try:
        errors = list(validator().iter_errors(record))
    except ValueError as error:  # text that is no Unicode
        raise BadRecord(f"{where}: not a valid record: {error}") from None
    if errors:
        error = min(errors, key=lambda e: len(e.instance_path))
        place = "/".join(map(str, error.instance_path)) or "top level"
        raise BadRecord(f"{where}: not a valid record: {place}: {error.message[:200]}")


def check_summary(record: dict, where) -> None:
    """Raise BadRecord when the throughput of a good record does not follow from its samples: somebody edited it."""
    if record["status"] != "ok":
        return
    mode = MODES.get(record["config"]["mode"])
    if mode is None:
        raise BadRecord(f"{where}: not a valid record: config/mode: {record['config']['mode']} is not a mode")
    throughput = throughput_of(mode)
    found = throughput([part["step_time_s"] for part in record["samples"]], record["topology"]["global_batch"])
    if not math.isclose(found, record["summary"]["throughput_images_per_s"], rel_tol=1e-9):  # sums round differently
        raise BadRecord(f"{where}: edited: summary/throughput_images_per_s does not follow from samples ({found:.6g})")


def throughput_of(mode):
    """The formula of a mode's throughput: processes that never wait for each other add up."""
    if mode.baseline:
        return formulas.independent_throughput_images_per_s
    return formulas.throughput_images_per_s
