"""Checks a record against bench/record/definition.py; the error for what does not fit it."""

import importlib.util
import re
import sys

from bench.errors import BenchError, UserError, printable, shortened

MOST_LETTERS, MOST_ITEMS, MOST_KEYS, LARGEST = 20_000, 1_000_000, 10_000, 1e100


class BadRecord(BenchError):
    """A record that cannot be used; the message, one line, names the file and the reason."""

    def __init__(self, message: str):
        super().__init__(printable(message))  # it may quote what the file holds


def require_validator() -> None:
    """Raise UserError without the package that checks records: a run would end well and then lose its record."""
    if importlib.util.find_spec("msgspec") is None:
        raise UserError(
            f"the package msgspec, which checks records, is not installed for {sys.executable}: `pip install msgspec`, "
            "or `make setup VENV=none`"
        )


def check(record, where, form: str = "Run"):
    """The typed record: a ``form`` of bench/record/definition.py. Raises BadRecord."""
    require_validator()
    import msgspec  # not for commands that read no record

    from bench.record import definition

    try:
        check_bounds(record)
        return msgspec.convert(record, getattr(definition, form))
    except ValueError as error:  # msgspec's ValidationError is one
        what, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`").replace("[...]", ".*").replace("]", "")
        place = re.sub(r"[.\[]", "/", path).strip("/") or "top level"
        raise BadRecord(f"{where}: not a valid record: {place[:200]}: {shortened(what)}") from None


def check_bounds(record) -> None:
    """Raise ValueError for a value at any depth that no table, picture or sum can take."""
    left = [record]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if len(value) > MOST_KEYS or any(len(name) > 1000 for name in value):
                raise ValueError(f"more than {MOST_KEYS} names, or a name of more than 1000 letters")
            left += value.values()
        elif isinstance(value, list):
            if len(value) > MOST_ITEMS:
                raise ValueError(f"a list of more than {MOST_ITEMS} values")
            left += value
        elif isinstance(value, str):
            if len(value) > MOST_LETTERS:
                raise ValueError(f"a text of more than {MOST_LETTERS} letters")
        elif isinstance(value, int | float) and abs(value) > LARGEST:
            raise ValueError(f"a number beyond {LARGEST:g}")


def check_kind(record, where, form: str, key: str, version: int, named: str):
    """The typed record of another kind than a run. Raises BadRecord where its version is another, or it does not fit.

    key: under which the version stands. named: how the message names a version, with {} for it.
    """
    if isinstance(record, dict) and record.get(key) != version:
        raise BadRecord(f"{where}: {named.format(str(record.get(key))[:50])}, this program reads {version}")
    return check(record, where, form)
