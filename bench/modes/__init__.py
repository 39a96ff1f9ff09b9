"""The data-parallel patterns, one lesson per file; their table is in bench/config/modes.py."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.modes.base import Mode


def load_mode(name: str) -> "type[Mode]":
    """``bench/modes/<name>.py`` is imported only by the process that needs it."""
    return importlib.import_module(f"bench.modes.{name}").Mode
