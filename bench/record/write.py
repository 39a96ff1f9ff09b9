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
import re
from pathlib import Path
from types import SimpleNamespace

from bench import files, formulas
from bench.config.modes import MODES
from bench.config.options import UNSET, RunConfig, base_type, global_batch_of, make_command, to_dict
from bench.config.rules import data_kind
from bench.errors import BenchError
from bench.mistakes import confession
from bench.storage.remote import without_credentials

SCHEMA_VERSION = 4
PROJECT = Path(__file__).parents[2]
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
    "top1": "counted over the validation set, each image once, by the plain model with rank 0's batch-norm statistics",
    "replicas": "distance: between all parameters of two ranks (by_layer: of a layer), root mean square over pairs of "
    "ranks, after the steps named, sums in float64; theory: the distance over that before the first step, by "
    "formulas.replica_distance_factors; ranks: each rank alone on the whole validation set, with its own weights and "
    "buffers; average: the mean of the ranks' weights, with the mean of their buffers or with batch norm's statistics "
    "estimated anew on an epoch of training images, as torch.optim.swa_utils.update_bn does",
    "peak_memory_gib": {
        "cpu": "sampled PSS of each process and its loader workers; rss_hwm: the kernel's peak, shared pages counted",
        "cuda": "NVML device and process figures sampled; torch's allocated and reserved: the allocator's exact peaks",
    },
}

BEFORE_3 = {"augment": False, "checkpoint": False}  # in effect before they were options


class BadRecord(BenchError):
    """A record that cannot be used; the message names the file and the reason."""


def write_record(
    run_dir, config: RunConfig, topology, label: str, environment: dict, parts: list[dict], accuracy: list,
    observed: dict,
):  # fmt: skip
    """Rank 0 of a finished run: put the parts of all ranks together and write RUN_DIR/record.json.

    topology: this rank's ``Topology``. parts: one dict a rank, in rank order, as gathered. Raises BadRecord when the
    result does not fit the schema, OSError when it cannot be written. accuracy: one row an epoch. observed: what the
    detectors of bench/record/observed.py look at.
    """
    record = {
        **frame(run_dir, config, "ok"),
        "topology": describe_topology(config, topology, label, parts),
        "environment": environment,
        "samples": parts,
        "summary": summarise(config, parts),
        "observed": observed,
        "provenance": provenance_of(config),
    }
    if accuracy:
        record["accuracy"] = summarise_accuracy(config.target, accuracy)
    save(run_dir, record)


def write_evaluation(run_dir, config: RunConfig, topology, environment: dict, result: dict, notes: list[str]) -> None:
    """Rank 0 of a run that only validated (EVALUATE=1): there are no steps, so there is nothing but the accuracy."""
    record = frame(run_dir, config, "evaluated") | {"environment": environment, "samples": [], "summary": {}}
    record["topology"] = {"world_size": topology.world_size, "num_devices": topology.num_devices, "notes": notes}
    record["accuracy"] = {"top1": result["top1"], "top5": result["top5"], "epochs": [{"epoch": 0, "steps": 0,
                          "elapsed_s": 0.0, **result}]}  # fmt: skip
    save(run_dir, record | {"provenance": {"top1": PROVENANCE["top1"]}})


def write_failure(run_dir: Path, config: RunConfig, environment: dict, failure: dict) -> None:
    """The launcher, after a run that did not end well. failure: rank, kind, message and traceback."""
    record = frame(run_dir, config, "failed") | {"topology": {}, "environment": environment, "samples": []}
    check(record := record | {"summary": {}, "provenance": {}, "failure": failure}, run_dir)
    trace = re.sub(r'(?<=File ")[^"\n]+', lambda found: short_path(found[0]), failure["traceback"])
    save(run_dir, record | {"failure": failure | {"traceback": trace}})


def short_path(file: str) -> str:
    """A file's name for people, which says nothing of this machine: from the project's root, from the folder of
    installed packages, or its last two parts.

    >>> short_path(f"{PROJECT}/bench/training/epochs.py"), short_path("/home/jane/thesis/train.py")
    ('bench/training/epochs.py', 'thesis/train.py')
    >>> short_path("/home/jane/venv/lib/python3.11/site-packages/torch/_tensor.py")
    'site-packages/torch/_tensor.py'
    """
    path = Path(file)
    installed = [i for i, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")]
    if installed:
        return "/".join(path.parts[installed[-1] :])
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else "/".join(path.parts[-2:])


def frame(run_dir, config: RunConfig, status: str) -> dict:
    """The head that every record has."""
    public = without_names(config)
    started = float(os.environ.get("BENCH_STARTED_AT", "0")) or datetime.datetime.now().timestamp()
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": Path(run_dir).name,
        "status": status,
        "started_at": datetime.datetime.fromtimestamp(started, datetime.timezone.utc).isoformat(
            timespec="milliseconds"
        ),
        "command": make_command(public),
        "config": to_dict(public),
    }


def without_names(config: RunConfig) -> RunConfig:
    """A config whose paths say nothing of this machine's owner: below the working folder as they are, else the last
    name of each."""
    kind, place = data_kind(config.data)
    paths = [f.name for f in dataclasses.fields(config) if f.metadata["path"]]
    changes = {name: nameless(getattr(config, name)) for name in paths if getattr(config, name)}
    if place:
        changes["data"] = nameless(place) if kind == "url" else f"{kind}:{nameless(place)}"
    return dataclasses.replace(config, **changes)


def nameless(path: str) -> str:
    """A folder or file below the working folder: its path from there. Elsewhere: its name; ~ stays. Of a URL that is no
    folder of this machine: all but user, password and query.

    >>> nameless("/somewhere/else/flowers"), nameless("~/.cache/data")
    ('flowers', '~/.cache/data')
    >>> nameless("s3://KEY:SECRET@bucket/flowers"), nameless("file:///home/jane/flowers")
    ('s3://bucket/flowers', 'file:///flowers')
    """
    if "://" in path:
        url = without_credentials(path)
        return f"file:///{Path(url).name}" if url.startswith("file:") else url
    if path.startswith("~"):
        return path
    whole = Path(path).resolve()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else whole.name


def describe_topology(config: RunConfig, topology, label: str, parts: list[dict]) -> dict:
    """Where the processes sat, what stood for a device, and what could not be made equal."""
    threads = sum(part["threads"] for part in parts)
    notes = [confession(config.mistake)] if config.mistake != "none" else []
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


def summarise_accuracy(target: float | None, rows: list[dict]) -> dict:
    """What a table shows of the epochs. rows: one an epoch; without a validation set they have no top1."""
    found = {"epochs": rows, **{name: rows[-1][name] for name in ("top1", "top5") if name in rows[-1]}}
    if "top1" in rows[-1]:
        found["best_top1"] = max(row["top1"] for row in rows)
    if target is not None:
        found |= {"target": target, "time_to_accuracy_s": formulas.time_to_accuracy_s(rows, target)}
    return found


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


def load(path: Path) -> dict:
    """Read a record and check it. BadRecord names the file that is truncated, edited or of another version."""
    path = Path(path)
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadRecord(f"{path}: not a readable record ({error})") from None
    check(migrate(record, path), path)
    check_config(record, path)
    if record["status"] == "ok":
        check_samples(record, path)
        check_summary(record, path)
    return record


def migrate(record, where) -> dict:
    """Bring a record of an older schema version up to this one, in place. BadRecord for one that is not known.

    Options that did not exist get the value they had in effect, their default. 1 -> 2: facts and phase times were not
    recorded and stay absent. 2 -> 3: options of training; runs that only validated. 3 -> 4: ``observed``, what `bench
    check` looks at; options of the labs.
    """
    version = record.get("schema_version") if isinstance(record, dict) else None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise BadRecord(f"{where}: schema version {version}, this program reads 1 to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION and isinstance(record.get("config"), dict):
        record |= {"schema_version": SCHEMA_VERSION, "config": UNSET | BEFORE_3 | record["config"]}
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


def check_config(record: dict, where) -> None:
    """Raise BadRecord when ``config`` is not one: an option is missing, unknown or of the wrong type."""
    config, fields = record["config"], {f.name: f for f in dataclasses.fields(RunConfig)}
    wrong = list(fields.keys() ^ config.keys())
    wrong += [name for name, value in config.items() if name in fields and not fits(fields[name], value)]
    if wrong or config["mode"] not in MODES:
        raise BadRecord(f"{where}: not a valid record: config/{min(wrong, default='mode')} is not an option's value")


def fits(field: dataclasses.Field, value) -> bool:
    """Whether a value is of an option's type; a whole number is a number, too."""
    if value is None:
        return "None" in str(field.type)
    kind = base_type(field)
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool) == (type(value) is bool)


def check_samples(record: dict, where) -> None:
    """Raise BadRecord when ranks or columns that belong together differ in length."""
    parts = record["samples"]
    for name in ("step_time_s", "batch_fingerprints"):
        if len({len(part[name]) for part in parts}) > 1:
            raise BadRecord(f"{where}: not a valid record: samples/{name}: the ranks differ in length")
    for part in parts:
        columns = [*list(part.get("phase_time_s", {}).values()), part["step_time_s"]]
        timelines = [{len(column) for column in device["timeline"].values()} for device in part["devices"]]
        if len({len(column) for column in columns}) > 1 or any(len(lengths) > 1 for lengths in timelines):
            raise BadRecord(f"{where}: not a valid record: samples: columns of rank {part['rank']} differ in length")


def check_summary(record: dict, where) -> None:
    """Raise BadRecord when a figure of the summary does not follow from the samples: somebody edited the record."""
    config = SimpleNamespace(mode=record["config"]["mode"], global_batch=record["topology"]["global_batch"])
    asked = global_batch_of(record["config"])
    if config.global_batch != asked:
        raise BadRecord(f"{where}: edited: topology/global_batch is {config.global_batch}, by config it was {asked}")
    expected = summarise(config, record["samples"])
    for name, value in expected.items():
        if name != "command_to_first_timed_step_s" and not agree(value, record["summary"].get(name)):
            raise BadRecord(f"{where}: edited: summary/{name} does not follow from the samples")
    if accuracy := record.get("accuracy"):
        follows = summarise_accuracy(record["config"]["target"], accuracy["epochs"])
        if any(not agree(follows.get(name), value) for name, value in accuracy.items()):
            raise BadRecord(f"{where}: edited: accuracy does not follow from its epochs")


def agree(a, b) -> bool:
    """Whether two JSON values are the same, but for the last digits of numbers (sums round differently)."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def throughput_of(mode):
    """The formula of a mode's throughput: processes that never wait for each other add up."""
    if mode.baseline:
        return formulas.independent_throughput_images_per_s
    return formulas.throughput_images_per_s
