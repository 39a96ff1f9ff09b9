"""Files that several processes need and one of them makes."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.errors import UserError

WAIT_S = 3600.0  # for another process; a killed one gives its lock back at once


@contextlib.contextmanager
def locked(path: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock file ``path`` alone. It stays behind, empty. Raises UserError after ``wait_s`` seconds, and OSError
    when the file cannot be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + wait_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(f"{path} has been held by another process for {wait_s:g} s: end it") from None
                time.sleep(0.05)
        yield  # closing the file gives the lock back


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, written by ``make(temporary path)`` in one process if it is not there; the others wait.

    What ``path`` names is always whole. Raises UserError when the folder cannot be written to.
    """
    try:
        if not path.exists():
            with locked(path.with_name(f"{path.name}.lock")):
                if not path.exists():
                    part = path.with_name(f"{path.name}.part")  # that of a killed process is written over
                    try:
                        make(part)
                        with part.open("rb+") as file:
                            os.fsync(file.fileno())
                        part.rename(path)
                    finally:
                        part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written to ({error.strerror or error})") from None
    return path
