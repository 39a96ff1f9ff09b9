"""Checks a record against bench/record/definition.py; the error for what does not fit it."""

import importlib.util
import re
import sys

from bench.errors import BenchError, UserError, printable, shortened

MOST = {str: 20_000, list: 1_000_000, dict: 10_000}
LONGEST_NAME, LARGEST = 1000, 1e100


class BadRecord(BenchError):
    def __init__(self, message: str):
        super().__init__(printable(message))  # it may quote the file's content


def require_validator() -> None:
    """Raise UserError without msgspec: a run would end well and then lose its record."""
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
    """Raise ValueError for a value at any depth that is too large for tables, pictures or sums."""
    left = [record]
    while left:
        value = left.pop()
        if isinstance(value, int | float):
            if abs(value) > LARGEST:
                raise ValueError(f"a number whose absolute value is above {LARGEST:g}")
        elif (most := MOST.get(type(value))) and len(value) > most:
            raise ValueError(f"a {type(value).__name__} with more than {most} entries or characters")
        elif isinstance(value, dict):
            if any(len(name) > LONGEST_NAME for name in value):
                raise ValueError(f"a key with more than {LONGEST_NAME} characters")
            left += value.values()
        elif isinstance(value, list):
            small = set(map(type, value)) == {float} and not any(map(LARGEST.__lt__, map(abs, value)))
            left += () if small else value  # most are


def check_kind(record, where, form: str, key: str, version: int, named: str):
    """The typed record of another kind than a run. key: of its version. named: the version in words, with {} for it.
    Raises BadRecord."""
    if isinstance(record, dict) and record.get(key) != version:
        raise BadRecord(f"{where}: {named.format(str(record.get(key))[:50])}, but this program reads {version}")
    return check(record, where, form)
