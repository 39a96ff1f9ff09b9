"""The time of day without jumps: the wall clock when a command began, plus the monotonic clock since then.

Times to be subtracted or compared are taken here, because the wall clock may be set during a run. All processes that a
command starts on its machine get its anchor, so that times of several ranks can be compared. Imports no torch.
"""

import functools
import os
import time
from pathlib import Path

ANCHOR = "BENCH_CLOCK"  # in the environment: an id of the machine's boot, and the offset to its monotonic clock
STARTED_AT = "BENCH_STARTED_AT"  # in the environment of a rank: when its command began


def now() -> float:
    return time.monotonic() + offset()


@functools.cache
def offset() -> float:
    boot, _, given = os.environ.get(ANCHOR, "").partition(" ")
    return float(given) if given and boot == this_boot() else time.time() - time.monotonic()


def command_began() -> float | None:
    return float(os.environ[STARTED_AT]) if STARTED_AT in os.environ else None


def variables() -> dict[str, str]:
    """The environment with which a process has the same clock as this one."""
    return {ANCHOR: f"{this_boot()} {offset()!r}"}


@functools.cache
def this_boot() -> str:
    """Identifies the start of the monotonic clock; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
