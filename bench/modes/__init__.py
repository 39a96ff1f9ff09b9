"""The data-parallel patterns, one lesson a file.

The table says what must be known of a mode before its processes exist; it imports no torch. To add a mode: write
its file, add its line here, and add its row to the equivalence test.
"""

import importlib
from dataclasses import dataclass

LAUNCHERS = ("in-process", "torchrun", "spawn", "horovodrun")


@dataclass(frozen=True)
class ModeInfo:
    """One line of the table. ``launchers``: who can start it, the default first."""

    summary: str
    launchers: tuple[str, ...]
    one_process: bool = False
    baseline: bool = False
    max_devices: int | None = None
    needs: str | None = None  # a package beyond torch


MODES = {
    "single": ModeInfo("one process, one device", ("in-process",), one_process=True, max_devices=1),
    "dp": ModeInfo("nn.DataParallel: one process, one thread a device", ("in-process",), one_process=True),
    "ddp": ModeInfo("DistributedDataParallel: one process a device", ("torchrun", "spawn")),
    "horovod": ModeInfo("Horovod: one process a device", ("horovodrun",), needs="horovod"),
    "independent": ModeInfo("one process a device, no communication: the bound", ("torchrun", "spawn"), baseline=True),
}


def load_mode(name: str):
    """The ``Mode`` class of a mode: ``bench/modes/<name>.py`` is imported only by the process that needs it."""
    return importlib.import_module(f"bench.modes.{name}").Mode
