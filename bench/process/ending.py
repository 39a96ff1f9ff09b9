"""Ending processes: one way to terminate a whole process tree, SIGTERM first, then SIGKILL.

A process that has left its parent's tree, or its session, is found by a mark that it inherited in its environment.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

GRACE_S = 5.0  # from SIGTERM to SIGKILL


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. Outside the main thread signals cannot be set."""

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = {}
    with contextlib.suppress(ValueError):
        for number in (signal.SIGTERM, signal.SIGHUP):
            previous[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until this is done, and are a KeyboardInterrupt then: a second one must not cost
    the record, or leave processes."""
    previous, came = {}, []
    with contextlib.suppress(ValueError):  # outside the main thread they cannot be set
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            previous[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def tree(pid: int) -> list:
    """A process and all its descendants, as psutil.Process; empty where it has ended."""
    import psutil

    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [psutil.Process(pid)]
        found += found[0].children(recursive=True)
    return found


def marked(variable: str, value: str) -> list:
    """Every other process whose environment has this word in this variable, whatever its parent is now."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if value in process.environ().get(variable, "").split() and process.pid != os.getpid():
                found.append(process)
    return found


def end(processes: list, grace_s: float = GRACE_S) -> None:
    """Terminate processes; kill those that are still there after ``grace_s`` seconds."""
    import psutil

    for action in ("terminate", "kill"):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                getattr(process, action)()
        processes = psutil.wait_procs(processes, grace_s)[1]


def end_session(process: subprocess.Popen, grace_s: float = GRACE_S) -> None:
    """Terminate a command that was started in a session of its own, with all that is still in that session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
