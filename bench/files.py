"""Files that are whole or not there, and files that one process at a time may write."""

import contextlib
import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

PROJECT = Path(__file__).resolve().parents[1]  # the root of a clone, or the folder of installed packages
# What only Linux has is asked for here; BENCH_PROC=/nowhere makes a Linux do without it, as macOS does.
PROC = Path(os.environ.get("BENCH_PROC", "/proc"))
LINUX = sys.platform == "linux" and PROC.is_dir()
CLONE = (PROJECT / "pyproject.toml").is_file()
DEVICES = Path("/dev")
LATEST = "latest.pt"  # in a run's folder: its newest checkpoint
SHARED = ".joined"  # in a run's folder: by what it holds a process knows that it sees the same folder
TICK_S = 0.1  # between two looks at a lock
MOST_BYTES = 2**30  # of a file that is read whole: an image, a list
LEAST_READ = 2**16  # bytes: a file of the system says that it has none


@contextlib.contextmanager
def written_whole(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Gives a temporary name in the folder of ``path`` to write to; it becomes ``path``, replacing what was there, at
    the end.

    Its bytes are on the disk before it has that name: ``path`` is the old file or the new one whenever the power fails.
    When anything is raised inside, ``path`` stays as it was and the temporary file is removed. temporary: its name,
    where no other process writes ``path`` at the same time, so that what a killed process left is written over. Raises
    OSError when something cannot be written, and for what is no plain file: as root, it would take a device's place.
    """
    path = Path(path)
    if path.parent.resolve() == DEVICES or (path.exists() and not (path.is_file() or path.is_dir())):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
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
def opened_plain(path: Path | str, links: bool = True) -> Iterator[BinaryIO]:
    """A plain file, open to be read. links=False: no link to one, either.

    Raises OSError where it cannot be opened, and for a FIFO or a device: it may never end, or never begin.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        with open(number, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(number)


def read_plain(path: Path | str, most: int = MOST_BYTES, links: bool = True) -> bytes:
    """The bytes of a plain file. Raises OSError, also for more than ``most`` of them."""
    with opened_plain(path, links) as file:
        size = os.fstat(file.fileno()).st_size
        limit = min(most, max(size, LEAST_READ))
        data = file.read(limit + 1) if size <= most else b""
    if size > most or len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {most / 2**20:g} MiB", str(path))
    return data


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
