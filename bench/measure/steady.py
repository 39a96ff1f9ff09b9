"""The time of day that nobody can set: the wall clock as it was when a command began, and the monotonic clock since.

A moment that is subtracted from another, or compared with it, is taken here: the wall clock may be set back or forward
while a run goes on. All processes that a command starts on its machine have its anchor, so that moments of several
ranks can be compared. It imports no torch.
"""

import functools
import os
import time
from pathlib import Path

ANCHOR = "BENCH_CLOCK"  # in the environment: which boot of which machine, and what to add to its monotonic clock
STARTED_AT = "BENCH_STARTED_AT"  # in the environment of a rank: when its command began


def now() -> float:
    """Seconds since 1970 (UTC), which never jump."""
    return time.monotonic() + offset()


@functools.cache
def offset() -> float:
    """What is added to the monotonic clock: as the process that began the command has it, or as it is now."""
    boot, _, given = os.environ.get(ANCHOR, "").partition(" ")
    return float(given) if given and boot == this_boot() else time.time() - time.monotonic()


def command_began() -> float | None:
    """As its launcher has put it into the environment; None without a launcher."""
    return float(os.environ[STARTED_AT]) if STARTED_AT in os.environ else None


def variables() -> dict[str, str]:
    """What a process must find in its environment to have the same clock as this one."""
    return {ANCHOR: f"{this_boot()} {offset()!r}"}


@functools.cache
def this_boot() -> str:
    """A name for what the monotonic clock counts from; empty where the system tells none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
