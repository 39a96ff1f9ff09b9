"""Records from files: read, migrated, and checked against their definition and their own samples."""

import json
import math
import re
import stat
from pathlib import Path

from bench import mistakes
from bench.config.fields import LARGEST_WHOLE, fits, in_range
from bench.config.modes import MODES
from bench.config.options import FIELDS, LABELS, UNSET, unchecked
from bench.config.workloads import WORKLOADS, WorkloadInfo
from bench.errors import UserError
from bench.record import SCHEMA_VERSION, packed
from bench.record.observed import observed_of
from bench.record.schema import BadRecord, check
from bench.record.summary import summarise, summarise_accuracy
from bench.record.view import Record

MOST_BYTES = 256 * 2**20  # a record of a long run on many ranks has some MiB
LOOKS = r"[1-9]\d{0,5}(,[1-9]\d{0,5}){0,99}"  # rounds
LATER = {"median_throughput_per_s", "steal_share"}  # metrics that older records lack
PARTS = ("schema_version", "run_id", "config", "samples")  # only the record of a run has all of them
BEFORE_3 = {"augment": False, "checkpoint": False}  # in effect before they were options
FORMER = {"knobs": "sweep"}  # names of studies before version 9
VARIANTS = ("base", "fair", "unfair", "right", "wrong")  # how the name of an arm began before there were variants
OLD_NOTES = (
    (r"^(no GPU is used: \d+ CPU) \w+ stand for", r"\1 processes emulate"),
    (
        r"^(\d+) compute threads in (\d+) processes share the (\d+) that single would get: .*",
        r"\2 processes use \1 compute threads in total, but single uses \3: each process, or replica of dp, needs at "
        "least one thread",
    ),
)
# A control character, written as JSON writes it, but for tab and newline; after an even number of backslashes.
CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\u00(?:0[0-8bcef]|1[0-9a-f]|7f|[89][0-9a-f])", re.IGNORECASE)
MAYBE = re.compile(r"\\u00(?:[0189]|7[fF])")  # almost no record has one: this begins with a text, and is found fast


def load(path: Path) -> Record:
    """One record. Raises BadRecord, which names the file, when it is truncated, edited or of another version."""
    path = Path(path)
    data = parsed(path)
    form = check(migrate(data, path), path)
    added = frozenset()
    try:
        check_config(data["config"])
        if data["status"] == "ok":
            check_ranks(form.samples, form.topology, path)
            check_samples(form)
            check_nodes(form)
            check_observed(data)
            follows = summary_of(data, form.workload, path)
            data["summary"], added = completed(data["summary"], follows)
            check_summary(data, form.workload, follows, path)
    except ValueError as error:
        raise BadRecord(f"{path}: not a valid record: {error}") from None
    return Record(data, str(path.parent), added, form)


def parsed(path: Path):
    """A file's JSON, with numbers and text that every table and picture can take. Raises BadRecord."""
    try:
        data = json.loads(text := text_of(path), parse_constant=refuse, parse_float=finite, parse_int=parse_integer)
        if "\\ud" in text.lower():  # half a surrogate pair can be read, but not written
            json.dumps(data, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise BadRecord(f"{path}: not a readable record ({error})") from None
    return data


def text_of(path: Path) -> str:
    """A record's text with control characters replaced, because messages go to a terminal. Raises ValueError."""
    if (text := packed.text_in_pack(path)) is None:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise ValueError(f"not a regular file of at most {MOST_BYTES / 2**20:g} MiB")
        text = path.read_text(encoding="utf-8")
    return CONTROL.sub(r"\1\\ufffd", text) if MAYBE.search(text) else text


def refuse(name: str):
    raise ValueError(f"{name} is not a number")  # NaN and Infinity are not JSON


def finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else refuse(text[:20])


def parse_integer(text: str) -> int:
    return value if abs(value := int(text)) <= LARGEST_WHOLE else refuse(text[:20])


# --- records of older schema versions -------------------------------------------------------------------------------


def migrate(record, where) -> dict:
    """Bring a record up to this schema version, in place. Raises BadRecord for an unknown version.

    Options that did not exist get the value they had in effect, their default.
    """
    version = record.get("schema_version") if isinstance(record, dict) else None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise BadRecord(f"{where}: schema version {str(version)[:50]}, but this program reads 1 to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION and isinstance(record.get("config"), dict):
        if version < 3:
            record["config"] = BEFORE_3 | record["config"]
        if version < 5:
            name_labels(record["config"])
            name_workload(record)
        reword_notes(record.get("topology"))
        study = record["config"].get("study")
        record["config"]["study"] = FORMER.get(study, study) if isinstance(study, str) else study
        record |= {"schema_version": SCHEMA_VERSION, "config": UNSET | dict.fromkeys(LABELS) | record["config"]}
    return record


def name_labels(config: dict) -> None:
    """4 -> 5: ``role`` is called program; study and variant, which were parts of names, are labels."""
    program, suite = config.pop("role", None), config.get("suite")
    head = program.partition(":")[0] if isinstance(program, str) else ""
    config |= {"program": program, "variant": head if head in VARIANTS else None}
    config["study"] = suite.partition("-")[0] if isinstance(suite, str) else None


def name_workload(record: dict) -> None:
    """4 -> 5: what throughput counts, the metrics and the machines are in the record."""
    record["workload"] = WORKLOADS["images"].to_dict()
    for part in ("summary", "provenance"):
        if isinstance(record.get(part), dict) and "throughput_images_per_s" in record[part]:
            record[part]["throughput_per_s"] = record[part].pop("throughput_images_per_s")
    samples = record.get("samples")
    if isinstance(samples, list) and all(isinstance(part, dict) for part in samples):
        record["nodes"] = [{"ranks": [part.get("rank") for part in samples]}] if samples else []


def reword_notes(topology) -> None:
    """Notes that have had clearer words since."""
    if isinstance(topology, dict) and isinstance(notes := topology.get("notes"), list):
        for pattern, words in OLD_NOTES:
            notes = [re.sub(pattern, words, note) if isinstance(note, str) else note for note in notes]
        topology["notes"] = notes


# --- records in folders ---------------------------------------------------------------------------------------------


def find_records(folder: Path, needed: bool = True) -> tuple[list[Record], list[str]]:
    """All records below a folder, oldest first, and a sentence for each file that is not a valid record.

    Raises UserError if the folder does not exist or, with needed, contains no record at all.
    """
    folder = Path(folder)
    if not packed.holds_records(folder):
        raise UserError(f"{folder} is not a folder: run `make bench` first, or name the folder of your records")
    records, refused = [], []
    for path in packed.find_files(folder, "record.json"):
        try:
            records.append(load(path))
        except BadRecord as error:
            refused.append(str(error))
    if needed and not records and not refused:
        raise UserError(f"no record.json below {folder}: run `make bench` first")
    return sorted(records, key=lambda record: record.started_at), refused


def find_runs(folder: Path) -> list[Record]:
    """The record of every run below a folder, whatever the file's name, oldest first: runs that are not a reference
    are stored among the reference records under other names. Raises UserError, BadRecord."""
    found, refused = find_records(folder, needed=False)
    if refused:
        raise BadRecord(refused[0])
    paths = packed.find_files(folder, "*.json")
    for path in paths:
        if path.with_name("record.json") not in paths and is_of_a_run(path):
            found.append(load(path))
    return sorted(found, key=lambda record: record.started_at)


def is_of_a_run(path: Path) -> bool:
    """Whether a file is the record of a run, valid or not, by the names of its parts; it is not parsed."""
    try:
        text = text_of(path)
    except (OSError, ValueError):
        return False
    return all(f'"{name}"' in text for name in PARTS)


# --- checks between the parts of a record. Each raises ValueError, or BadRecord for a record that was edited. --------


def check_config(config: dict) -> None:
    known = FIELDS | LABELS
    wrong = list(known.keys() ^ config.keys())
    wrong += [name for name, value in config.items() if name in known and not fits(known[name], value)]
    wrong += [] if re.fullmatch(LOOKS, config.get("looks") or "1") else ["looks"]
    wrong += [] if wrong else [name for name, value in config.items() if not in_range(known[name], value)]
    if wrong or config["mode"] not in MODES:
        raise ValueError(f"config/{min(wrong, default='mode')} is not a valid value")


def check_samples(run) -> None:
    for name in ("step_time_s", "batch_fingerprints"):
        if len({len(getattr(part, name)) for part in run.samples}) > 1:
            raise ValueError(f"samples/{name}: the ranks differ in length")
    for part in run.samples:
        tables = [[*part.phase_time_s.values(), part.step_time_s]]
        tables += [device["timeline"].values() for device in part.devices]
        if any(map(uneven, tables)):
            raise ValueError(f"samples: columns of rank {part.rank} differ in length")
        if part.replicas:
            check_replicas(part.replicas, run.workload.metrics[0].key)


def uneven(columns) -> bool:
    return len(set(map(len, columns))) > 1


def check_replicas(found: dict, metric: str) -> None:
    rows = found.get(f"ranks_{metric}")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise ValueError(f"samples/replicas: no ranks_{metric}")
    values = [value for row in rows for value in row] + [each.get(metric) for each in found["average"].values()]
    if not all(map(is_number, values)):
        raise ValueError(f"samples/replicas: {metric} is not a number")
    columns = [found["steps"], found["distance"], found["lr"], *found["by_layer"].values()]
    if uneven(columns + ([found["theory"]] if found["theory"] else [])) or uneven(rows):
        raise ValueError("samples: columns of the replicas differ in length")


def check_ranks(samples: list, topology: dict, where) -> None:
    if [part.rank for part in samples] != list(range(topology["world_size"])):
        raise BadRecord(f"{where}: not a valid record: samples: ranks are not 0 to world_size − 1 in order")


def is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_nodes(run) -> None:
    place = {rank: number for number, node in enumerate(run.nodes) for rank in node.ranks}
    listed = sorted(rank for node in run.nodes for rank in node.ranks)
    ranks = list(range(len(run.samples)))
    if run.nodes and (listed != ranks or any(part.node != place[part.rank] for part in run.samples)):
        raise ValueError("nodes: a rank is missing, is listed twice, or differs from samples/node")


def check_observed(record: dict) -> None:
    """The detectors can read what was observed, and no more images were never seen than an epoch left out."""
    observed = observed_of(record)
    try:
        mistakes.find(observed)
        mistakes.unobserved(observed)
        seen = observed.get("data") or {}
        counts = [epoch["never"] for epoch in seen.get("epochs", ())]
        agrees = not counts or seen["never_seen"] <= min(counts) <= max(counts) <= seen["num_images"]
    except Exception as error:
        raise ValueError(f"observed: {type(error).__name__}: {error}") from None
    if not agrees:
        raise ValueError("observed/data: epochs/never, never_seen and num_images disagree")


def summary_of(record: dict, workload: WorkloadInfo, where) -> dict:
    """The summary that follows from a record's samples. Raises BadRecord if the global batch was edited."""
    config, global_batch = unchecked(record["config"]), record["topology"]["global_batch"]
    if global_batch != config.global_batch:
        raise BadRecord(
            f"{where}: edited: topology/global_batch is {global_batch}, but the config gives {config.global_batch}"
        )
    return summarise(config.mode, global_batch * workload.per_example, record["samples"])


def completed(summary: dict, follows: dict) -> tuple[dict, frozenset[str]]:
    """A summary with the metrics that it is too old to contain, and their names. follows: what the samples give."""
    steps, mean = summary["step_time_s"], follows["step_time_s"]["mean"]
    added = {name: follows[name] for name in LATER & follows.keys() - summary.keys()}
    full = summary | added | {"step_time_s": steps | {"mean": steps.get("mean", mean)}}
    return full, frozenset([*added, *({"step_time_s/mean"} if "mean" not in steps else ())])


def check_summary(record: dict, workload: WorkloadInfo, follows: dict, where) -> None:
    summary = record["summary"]
    for name, value in follows.items():
        if name not in ("command_to_first_timed_step_s", "disturbed_above") and not agree(value, summary.get(name)):
            raise BadRecord(f"{where}: edited: summary/{name} does not follow from the samples")
    if accuracy := record.get("accuracy"):
        metrics, rows = workload.metrics, accuracy["epochs"]
        if len({tuple(metric.key in row for metric in metrics) for row in rows}) > 1:
            raise ValueError("accuracy/epochs: the epochs differ in their metrics")
        values = [row.get(metric.key) for row in rows for metric in metrics]
        if not all(value is None or is_number(value) for value in values):
            raise ValueError("accuracy/epochs: a metric is not a number")
        follows = summarise_accuracy(metrics, unchecked(record["config"]).target, rows)
        if any(not agree(follows.get(name), value) for name, value in accuracy.items()):
            raise BadRecord(f"{where}: edited: accuracy does not follow from its epochs")


def agree(a, b) -> bool:
    """Whether two JSON values are the same, except for the last digits of numbers (sums round differently)."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b
