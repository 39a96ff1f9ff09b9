"""Files that several processes need and one of them makes."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import files
from bench.errors import UserError

WAIT_S = 3600.0  # for another process; a killed one gives its lock back at once
SILENT_S = 30.0  # without a byte for so long, a download has failed


def locked(path: Path, wait_s: float = WAIT_S) -> contextlib.AbstractContextManager:
    """Hold the lock file ``path`` alone, as ``files.locked`` does. Raises UserError after ``wait_s`` seconds."""
    over = UserError(f"{path} has been held by another process for {wait_s:g} s: end it")
    return files.locked(path, time.monotonic() + wait_s, over)


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, written by ``make(temporary path)`` in one process if it is not there; the others wait.

    What ``path`` names is always whole. Raises UserError when the folder cannot be written to.
    """
    try:
        if not path.exists():
            with locked(path.with_name(f"{path.name}.lock")):
                if not path.exists():
                    with files.written_whole(path, path.with_name(f"{path.name}.part")) as part:
                        make(part)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written to ({error.strerror or error})") from None
    return path


@contextlib.contextmanager
def download_timeout() -> Iterator[None]:
    """Round a download: a server that says nothing for SILENT_S is given up, where the library would wait for ever."""
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(patience)
