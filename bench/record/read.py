"""Records from files: read, migrated, and checked against their definition and their own samples."""

import json
import math
import re
import stat
from pathlib import Path

from bench.config.fields import LARGEST_WHOLE, fits, in_range
from bench.config.modes import MODES
from bench.config.options import FIELDS, LABELS, unchecked
from bench.config.workloads import WorkloadInfo
from bench.errors import UserError
from bench.record.migrate import migrate
from bench.record.schema import BadRecord, check
from bench.record.summary import summarise, summarise_accuracy
from bench.record.view import Record

MOST_BYTES = 256 * 2**20  # a record of a long run on many ranks has some MiB
LOOKS = r"[1-9]\d{0,5}(,[1-9]\d{0,5}){0,99}"  # rounds
LATER = {"median_throughput_per_s", "steal_share"}  # figures that older records lack
PARTS = ("schema_version", "run_id", "config", "samples")  # which no other file of ours has together
# A control character, written as JSON writes it, but for tab and newline; after an even number of backslashes.
CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\u00(?:0[0-8bcef]|1[0-9a-f]|7f|[89][0-9a-f])", re.IGNORECASE)


def load(path: Path) -> Record:
    """One record. Raises BadRecord, which names the file, when it is truncated, edited or of another version."""
    path = Path(path)
    data = parsed(path)
    form = check(migrate(data, path), path)
    check_config(data, path)
    added = frozenset()
    if data["status"] == "ok":
        check_samples(form, path)
        check_nodes(form, path)
        check_coverage(form, path)
        follows = summary_of(data, form.workload, path)
        data["summary"], added = completed(data["summary"], follows)
        check_summary(data, form.workload, follows, path)
    return Record(data, str(path.parent), added, form)


def parsed(path: Path):
    """A file's JSON, with numbers and text that every table and picture can take. Raises BadRecord."""
    try:
        data = json.loads(text := text_of(path), parse_constant=refuse, parse_float=finite, parse_int=whole)
        if "\\ud" in text.lower():  # half a character can be read, and never written
            json.dumps(data, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise BadRecord(f"{path}: not a readable record ({error})") from None
    return data


def text_of(path: Path) -> str:
    """A record's text, its control characters replaced: they would go to a terminal. Raises ValueError for what
    is no plain file, or too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        raise ValueError(f"no plain file of at most {MOST_BYTES / 2**20:g} MiB")
    text = path.read_text(encoding="utf-8")
    return CONTROL.sub(r"\1\\ufffd", text) if "\\u00" in text else text


def refuse(name: str):
    """NaN and Infinity are no JSON, and no figure of a record is one. Raises ValueError."""
    raise ValueError(f"{name} is no number")


def finite(text: str) -> float:
    """A number; what is too large for one would be read as Infinity. Raises ValueError."""
    return value if math.isfinite(value := float(text)) else refuse(text[:20])


def whole(text: str) -> int:
    """A whole number that every table and picture can take. Raises ValueError."""
    return value if abs(value := int(text)) <= LARGEST_WHOLE else refuse(text[:20])


def find_records(folder: Path, needed: bool = True) -> tuple[list[Record], list[str]]:
    """All records below a folder, oldest first, and one sentence for each file that is no good record.

    Raises UserError when the folder does not exist or, where some are needed, holds no record at all.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: run `make bench` first, or name the folder of your records")
    records, refused = [], []
    for path in sorted(folder.rglob("record.json")):
        try:
            records.append(load(path))
        except BadRecord as error:
            refused.append(str(error))
    if needed and not records and not refused:
        raise UserError(f"no record.json below {folder}: run `make bench` first")
    return sorted(records, key=lambda record: record.started_at), refused


def find_runs(folder: Path) -> list[Record]:
    """The record of every run below a folder, by whatever name its file has, oldest first: a run that is no reference
    is stored among reference records under another name than record.json.

    Raises UserError when the folder does not exist, BadRecord for the record of a run that is no good one.
    """
    found, refused = find_records(folder, needed=False)
    if refused:
        raise BadRecord(refused[0])
    for path in sorted(Path(folder).rglob("*.json")):
        if not path.with_name("record.json").exists() and is_of_a_run(path):
            found.append(load(path))
    return sorted(found, key=lambda record: record.started_at)


def is_of_a_run(path: Path) -> bool:
    """Whether a file is the record of a run, good or not, by the names of its parts: it is not parsed for that."""
    try:
        text = text_of(path)
    except (OSError, ValueError):
        return False
    return all(f'"{name}"' in text for name in PARTS)


def check_config(record: dict, where) -> None:
    """Raise BadRecord when ``config`` is not one: an option is missing, unknown, of the wrong type or out of range."""
    config = record["config"]
    known = FIELDS | LABELS
    wrong = list(known.keys() ^ config.keys())
    wrong += [name for name, value in config.items() if name in known and not fits(known[name], value)]
    wrong += [] if re.fullmatch(LOOKS, config.get("looks") or "1") else ["looks"]
    wrong += [] if wrong else [name for name, value in config.items() if not in_range(known[name], value)]
    if wrong or config["mode"] not in MODES:
        raise BadRecord(f"{where}: not a valid record: config/{min(wrong, default='mode')} is not an option's value")


def check_samples(run, where) -> None:
    """Raise BadRecord when ranks or columns that belong together differ in length, or a rank is missing."""
    check_ranks(run.samples, run.topology, where)
    for name in ("step_time_s", "batch_fingerprints"):
        if len({len(getattr(part, name)) for part in run.samples}) > 1:
            raise BadRecord(f"{where}: not a valid record: samples/{name}: the ranks differ in length")
    for part in run.samples:
        columns = [*part.phase_time_s.values(), part.step_time_s]
        timelines = [{len(column) for column in device["timeline"].values()} for device in part.devices]
        if len({len(column) for column in columns}) > 1 or any(len(lengths) > 1 for lengths in timelines):
            raise BadRecord(f"{where}: not a valid record: samples: columns of rank {part.rank} differ in length")
        if found := part.replicas:
            columns = [found["steps"], found["distance"], found["lr"], *found["by_layer"].values()]
            columns += [found["theory"]] if found["theory"] else []
            metric = run.workload.metrics[0].key
            rows = found.get(f"ranks_{metric}")
            if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
                raise BadRecord(f"{where}: not a valid record: samples/replicas: no ranks_{metric}")
            judged = [value for row in rows for value in row] + [each.get(metric) for each in found["average"].values()]
            if not all(map(is_number, judged)):
                raise BadRecord(f"{where}: not a valid record: samples/replicas: {metric} is no number")
            if len({len(column) for column in columns}) > 1 or len({len(row) for row in rows}) > 1:
                raise BadRecord(f"{where}: not a valid record: samples: columns of the replicas differ in length")


def check_ranks(samples: list, topology: dict, where) -> None:
    """Raise BadRecord where a rank is missing, twice, or not in its place."""
    if [part.rank for part in samples] != list(range(topology["world_size"])):
        raise BadRecord(f"{where}: not a valid record: samples: not one of each rank of topology/world_size, in order")


def is_number(value) -> bool:
    """Whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_nodes(run, where) -> None:
    """Raise BadRecord when a rank is on no machine, on two, or on another one than it says."""
    place = {rank: number for number, node in enumerate(run.nodes) for rank in node.ranks}
    listed = sorted(rank for node in run.nodes for rank in node.ranks)
    if run.nodes and (listed != list(range(len(run.samples))) or any(part.node != place[part.rank]
                                                                     for part in run.samples)):  # fmt: skip
        raise BadRecord(f"{where}: not a valid record: nodes: not every rank once, or another than samples/node says")


def check_coverage(run, where) -> None:
    """Raise BadRecord when more images were never seen than an epoch left out, or than there are."""
    seen = run.observed and run.observed.data
    counts = [epoch.never for epoch in seen.epochs or ()] if seen else []
    if counts and not seen.never_seen <= min(counts) <= max(counts) <= seen.num_images:
        raise BadRecord(f"{where}: not a valid record: observed/data: epochs/never, never_seen and num_images disagree")


def summary_of(record: dict, workload: WorkloadInfo, where) -> dict:
    """The summary that follows from a record's samples. Raises BadRecord where the global batch was edited."""
    config, global_batch = unchecked(record["config"]), record["topology"]["global_batch"]
    if global_batch != config.global_batch:
        raise BadRecord(
            f"{where}: edited: topology/global_batch is {global_batch}, by config it was {config.global_batch}"
        )
    return summarise(config.mode, global_batch * workload.per_example, record["samples"])


def completed(summary: dict, follows: dict) -> tuple[dict, frozenset[str]]:
    """A summary with the figures that it is too old to have, from what follows from the samples; and their names."""
    steps, mean = summary["step_time_s"], follows["step_time_s"]["mean"]
    added = {name: follows[name] for name in LATER & follows.keys() - summary.keys()}
    full = summary | added | {"step_time_s": steps | {"mean": steps.get("mean", mean)}}
    return full, frozenset([*added, *({"step_time_s/mean"} if "mean" not in steps else ())])


def check_summary(record: dict, workload: WorkloadInfo, follows: dict, where) -> None:
    """Raise BadRecord when a figure of the summary does not follow from the samples: the record was edited."""
    config, summary = unchecked(record["config"]), record["summary"]
    for name, value in follows.items():
        if name not in ("command_to_first_timed_step_s", "disturbed_above") and not agree(value, summary.get(name)):
            raise BadRecord(f"{where}: edited: summary/{name} does not follow from the samples")
    if accuracy := record.get("accuracy"):
        metrics = workload.metrics
        if len({tuple(metric.key in row for metric in metrics) for row in accuracy["epochs"]}) > 1:
            raise BadRecord(f"{where}: not a valid record: accuracy/epochs: the epochs differ in their metrics")
        values = [row.get(metric.key) for row in accuracy["epochs"] for metric in metrics]
        if not all(value is None or is_number(value) for value in values):
            raise BadRecord(f"{where}: not a valid record: accuracy/epochs: a metric is no number")
        follows = summarise_accuracy(metrics, config.target, accuracy["epochs"])
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
