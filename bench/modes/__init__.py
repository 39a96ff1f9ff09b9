"""The data-parallel patterns, one lesson per file; the table of what must be known of each is in
bench/config/modes.py."""

import importlib


def load_mode(name: str):
    """The ``Mode`` class of a mode: ``bench/modes/<name>.py`` is imported only by the process that needs it."""
    return importlib.import_module(f"bench.modes.{name}").Mode
