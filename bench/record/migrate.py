"""Records of older schema versions, brought up to this one. One function per version, applied in order."""

from bench.config.options import LABELS, UNSET
from bench.config.workloads import WORKLOADS
from bench.record import SCHEMA_VERSION
from bench.record.schema import BadRecord

BEFORE_3 = {"augment": False, "checkpoint": False}  # in effect before they were options
VARIANTS = ("base", "fair", "unfair", "right", "wrong")  # how the name of a program began before there were variants


def migrate(record, where) -> dict:
    """Bring a record up to this schema version, in place. Raises BadRecord for a version that is not known.

    Options that did not exist get the value they had in effect, their default.
    """
    version = record.get("schema_version") if isinstance(record, dict) else None
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise BadRecord(f"{where}: schema version {str(version)[:50]}, this program reads 1 to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION and isinstance(record.get("config"), dict):
        if version < 3:
            record["config"] = BEFORE_3 | record["config"]
        if version < 5:
            name_its_place(record)
            name_its_workload(record)
        record |= {"schema_version": SCHEMA_VERSION, "config": UNSET | dict.fromkeys(LABELS) | record["config"]}
    return record


def name_its_place(record: dict) -> None:
    """4 -> 5: ``role`` is called program; the study and the variant, which stood in names, are labels of their own."""
    config = record["config"]
    program, suite = config.pop("role", None), config.get("suite")
    head = program.partition(":")[0] if isinstance(program, str) else ""
    config |= {"program": program, "variant": head if head in VARIANTS else None}
    config["study"] = suite.partition("-")[0] if isinstance(suite, str) else None


def name_its_workload(record: dict) -> None:
    """4 -> 5: what throughput counts, and the metrics, are in the record; so are the machines."""
    record["workload"] = WORKLOADS["images"].to_dict()
    for part in ("summary", "provenance"):
        figures = record.get(part)
        if isinstance(figures, dict) and "throughput_images_per_s" in figures:
            record[part] = {RENAMED.get(name, name): value for name, value in figures.items()}
    samples = record.get("samples")
    if isinstance(samples, list) and all(isinstance(part, dict) for part in samples):
        record["nodes"] = [{"ranks": [part.get("rank") for part in samples]}] if samples else []


RENAMED = {"throughput_images_per_s": "throughput_per_s"}
