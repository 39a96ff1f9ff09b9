"""The data-parallel patterns, one lesson per file; the table of what must be known of each is in
bench/config/modes.py."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.modes.base import Mode


def load_mode(name: str) -> "type[Mode]":
    """The ``Mode`` class of a mode: ``bench/modes/<name>.py`` is imported only by the process that needs it."""
    return importlib.import_module(f"bench.modes.{name}").Mode
