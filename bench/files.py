"""Atomic file writes, and lock files."""

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
# Linux-only files are read here; BENCH_PROC=/nowhere simulates a system without them, such as macOS.
PROC = Path(os.environ.get("BENCH_PROC", "/proc"))
LINUX = sys.platform == "linux" and PROC.is_dir()
CLONE = (PROJECT / "pyproject.toml").is_file()
DEVICES = Path("/dev")
LATEST = "latest.pt"  # in a run's folder: its newest checkpoint
SHARED = ".joined"  # in a run's folder: its content proves that processes see the same folder
TICK_S = 0.1  # between two attempts at a lock
MOST_BYTES = 2**30  # limit of a file that is read completely: an image, a list
LEAST_READ = 2**16  # bytes: system files report size 0


@contextlib.contextmanager
def atomic_write(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yields a temporary file name in the folder of ``path``; at the end it replaces ``path``.

    Its bytes are on the disk before the renaming, so after a power failure ``path`` is the old or the new file. After
    an exception ``path`` is unchanged and the temporary file is removed. temporary: its name, if no other process
    writes ``path`` at the same time, so that a killed process's file is overwritten. Raises OSError if writing fails,
    or if ``path`` is not a plain file: root could replace a device.
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
            temporary.unlink(missing_ok=True)  # still there after a failure, or if both names are one file
    with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def new_folder(start: Path) -> Path:
    """Make ``<start>-<random>``, which no other process has made, and its parents. Raises OSError."""
    while True:
        folder = start.with_name(f"{start.name}-{secrets.token_hex(2)}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.exists():  # a parent is a dangling link
                raise


def synchronise(path: Path | str) -> None:
    """Flush a file to its disk (fsync)."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def open_regular_file(path: Path | str, links: bool = True) -> Iterator[BinaryIO]:
    """Open a plain file for reading. links=False: refuse links.

    Raises OSError if it cannot be opened, and for a FIFO or a device, whose reads may never end.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        with open(number, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(number)


def read_regular_file(path: Path | str, most: int = MOST_BYTES, links: bool = True) -> bytes:
    """The bytes of a plain file. Raises OSError, also for more than ``most`` of them."""
    with open_regular_file(path, links) as file:
        size = os.fstat(file.fileno()).st_size
        limit = min(most, max(size, LEAST_READ))
        data = file.read(limit + 1) if size <= most else b""
    if size > most or len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {most / 2**20:g} MiB", str(path))
    return data


@contextlib.contextmanager
def locked(path: Path, until: float, over: Exception, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file ``path``; a killed process releases it. The empty file remains.

    until: the ``time.monotonic()`` after which ``over`` is raised. waiting: called once if another process holds it.
    Raises OSError if the file or its folder cannot be created.
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
