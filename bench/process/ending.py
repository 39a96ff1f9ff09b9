"""What this process does when Ctrl-C, SIGTERM or SIGHUP tells it to end, or its parent is gone. How it ends the
processes that it has started: bench/process/tree.py."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextlib.contextmanager
def handled(handler: Callable, *numbers: int) -> Iterator[None]:
    """These signals call ``handler(number, frame)`` for a while. One that is ignored stays so, as nohup wants it.
    Outside the main thread they cannot be set, and stay as they are."""
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
    """Ctrl-C, SIGTERM and SIGHUP wait until this is done, and are a KeyboardInterrupt then, or what the handler around
    this makes of them: a second one must not cost the record, or leave processes."""
    came = []
    with handled(lambda number, _: came.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
    for number in came:
        handler = signal.getsignal(number)
        if not callable(handler):
            raise KeyboardInterrupt
        handler(number, None)


def with_parent() -> None:
    """From now on this process gets SIGTERM when its parent is gone, also by SIGKILL; only Linux has that."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
