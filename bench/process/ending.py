"""Ending processes: one way to terminate a whole process tree, SIGTERM first, then SIGKILL.

A process that has left its parent's tree, or its session, is found by a mark that it inherited in its environment.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

GRACE_S = 5.0  # from SIGTERM to SIGKILL
LOOKS = 10  # a process may start another one while it is being ended
LOOK_S = 0.02  # between two looks at a process that is waited for
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


def end_marked(variable: str, value: str, known: list = (), grace_s: float = GRACE_S) -> None:
    """Terminate every other process that has this word in this variable, and ``known`` ones; look again until none is
    left, for one may have been started between the look and the end of the one that started it."""
    processes = [*known, *marked(variable, value)]
    for _ in range(LOOKS):
        if not processes:
            return
        end(processes, grace_s)
        processes = marked(variable, value)


def end_command(process: subprocess.Popen, variable: str, value: str) -> None:
    """End a command and all that it has started: those that have this word in this variable, and its descendants, which
    may have cleared their environment."""
    running = tree(process.pid) if process.poll() is None else []
    end_marked(variable, value, running)
    wait(process, GRACE_S)


def end_session(process: subprocess.Popen, grace_s: float = GRACE_S) -> None:
    """Terminate a command that was started in a session of its own, with all that is still in that session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        wait(process, grace_s)
        os.killpg(process.pid, signal.SIGKILL)
    wait(process, GRACE_S)


def wait(process: subprocess.Popen, seconds: float) -> int | None:
    """A process's exit code as soon as it has ended; None after ``seconds``.

    Ctrl-C is a KeyboardInterrupt between two looks. One inside of ``Popen.wait`` may come where its lock is taken and
    not yet sure to be given back: no later wait would see the end.
    """
    until = time.monotonic() + seconds
    while True:
        with uninterrupted():
            code = process.poll()
        left = until - time.monotonic()
        if code is not None or left <= 0:
            return code
        time.sleep(min(left, LOOK_S))
