"""This process's reaction to Ctrl-C, SIGTERM, SIGHUP, or its parent's end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextlib.contextmanager
def handled(handler: Callable, *numbers: int) -> Iterator[None]:
    """Handle these signals within a block. Ignored ones stay ignored, as nohup needs; other threads cannot set any."""
    previous = {}
    with contextlib.suppress(ValueError):
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with handled(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP to the end of the block, so that a second one loses no record."""
    came = []
    with handled(lambda number, _: came.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
    for number in came:
        handler = signal.getsignal(number)
        if not callable(handler):
            raise KeyboardInterrupt
        handler(number, None)


def with_parent() -> None:
    """Get SIGTERM when the parent dies, even by SIGKILL (Linux only)."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
