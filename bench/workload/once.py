"""Files that one process writes for several."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import files
from bench.errors import UserError

WAIT_S = 3600.0  # for another process; a killed one releases its lock
SILENT_S = 30.0  # without data, then a download has failed


def locked(path: Path, wait_s: float = WAIT_S) -> contextlib.AbstractContextManager:
    """Hold the lock file ``path``. Raises UserError after ``wait_s`` seconds."""
    over = UserError(f"{path} has been locked by another process for {wait_s:g} s: stop that process")
    return files.locked(path, time.monotonic() + wait_s, over)


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``; if it does not exist, one process writes it with ``make(temporary path)`` and the others wait. Raises
    UserError if the folder cannot be written to."""
    try:
        if not path.exists():
            with locked(path.with_name(f"{path.name}.lock")):
                if not path.exists():
                    with files.atomic_write(path, path.with_name(f"{path.name}.part")) as part:
                        make(part)
    except OSError as error:
        raise UserError(f"{path.parent} is not writable ({error.strerror or error}): choose another folder") from None
    return path


@contextlib.contextmanager
def download_timeout() -> Iterator[None]:
    """Make downloads inside fail after SILENT_S without data; the libraries would wait forever."""
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(patience)
