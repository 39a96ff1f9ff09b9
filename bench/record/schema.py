"""The form of a record: record.schema.json, and the error for what does not fit it."""

import functools
import importlib.util
import json
import sys
from pathlib import Path

from bench.errors import BenchError, UserError, printable, shortened

SCHEMA_VERSION = 8
SCHEMA_PATH = Path(__file__).with_name("record.schema.json")
NETWORK_PATH = Path(__file__).with_name("network.schema.json")  # of what `bench network` leaves
FOREIGN_PATH = Path(__file__).with_name("foreign.schema.json")  # of what `bench time` leaves
EMULATION_PATH = Path(__file__).with_name("emulation.schema.json")  # of what `bench emulate` leaves


class BadRecord(BenchError):
    """A record that cannot be used; the message, one line, names the file and the reason."""

    def __init__(self, message: str):
        super().__init__(printable(message))  # it may quote what the file holds


def require_validator() -> None:
    """Raise UserError without the package that checks records: a run would end well and then lose its record."""
    if importlib.util.find_spec("jsonschema_rs") is None:
        raise UserError(
            f"the package jsonschema-rs, which checks records, is not installed for {sys.executable}: `pip install "
            "jsonschema-rs`, or `make setup VENV=none`"
        )


@functools.cache
def validator(schema: Path = SCHEMA_PATH):
    """The schema, compiled once per process: 0.1 ms per record. Definitions are those of a run's record."""
    require_validator()
    import jsonschema_rs  # not for commands that read no record

    shared = json.loads(SCHEMA_PATH.read_text())["$defs"]
    return jsonschema_rs.validator_for(json.loads(schema.read_text()) | {"$defs": shared})


def check(record: dict, where, schema: Path = SCHEMA_PATH) -> None:
    """Raise BadRecord when a record does not fit the schema; of several errors the outermost is named."""
    try:
        errors = list(validator(schema).iter_errors(record))
    except ValueError as error:  # text that is no Unicode
        raise BadRecord(f"{where}: not a valid record: {error}") from None
    if errors:
        error = min(errors, key=lambda e: len(e.instance_path))
        place = "/".join(map(str, error.instance_path)) or "top level"
        raise BadRecord(f"{where}: not a valid record: {place[:200]}: {shortened(error.message)}")


def check_kind(record, where, schema: Path, key: str, version: int, named: str) -> None:
    """Raise BadRecord where a record of a kind of its own has another version than this, or does not fit its schema.

    key: under which the version stands. named: how the message names a version, with {} for it.
    """
    if isinstance(record, dict) and record.get(key) != version:
        raise BadRecord(f"{where}: {named.format(str(record.get(key))[:50])}, this program reads {version}")
    check(record, where, schema)
