"""Files that are whole or not there, and files that one process at a time may write."""

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]  # the root of a clone, or the folder of installed packages
# What only Linux has is asked for here; BENCH_PROC=/nowhere makes a Linux do without it, as macOS does.
PROC = Path(os.environ.get("BENCH_PROC", "/proc"))
LINUX = sys.platform == "linux" and PROC.is_dir()
CLONE = (PROJECT / "pyproject.toml").is_file()
LATEST = "latest.pt"  # in a run's folder: its newest checkpoint
TICK_S = 0.1  # between two looks at a lock


@contextlib.contextmanager
def written_whole(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Gives a temporary name in the folder of ``path`` to write to; it becomes ``path``, replacing what was there, at
    the end.

    Its bytes are on the disk before it has that name: ``path`` is the old file or the new one whenever the power fails.
    When anything is raised inside, ``path`` stays as it was and the temporary file is removed. temporary: its name,
    where no other process writes ``path`` at the same time, so that what a killed process left is written over. Raises
    OSError when something cannot be written.
    """
    path = Path(path)
    temporary = temporary or path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        synchronise(temporary)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # still there after a failure, or when both names were one file
    with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def synchronise(path: Path | str) -> None:
    """Have the operating system write a file to its disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: Path, until: float, over: Exception, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file ``path`` alone; a process that is killed gives it back. The file stays behind, empty.

    until: the ``time.monotonic()`` after which ``over`` is raised. waiting: called once, when another process holds it.
    Raises OSError when the file or its folder cannot be made.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        try:
            lock.acquire(timeout=max(0, until - time.monotonic()), poll_interval=TICK_S)
        except Timeout:
            raise over from None
    try:
        yield
    finally:
        lock.release()
