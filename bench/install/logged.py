"""Run a long command: output into a log file, one line of progress on the screen, a time limit, no orphans.

Standard library only: `packages.py` uses it before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time

PERCENT = re.compile(rb"\[ *(\d+)%\]")  # how make reports its progress: "[ 42%] Building CXX object …"
QUIET_S = 30.0  # between two lines of progress where the output is no terminal


def clock_text(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock_text(63.4)
    '1:03'
    """
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"


class ProgressLine:
    """One line that renews itself on a terminal; a plain line now and then anywhere else."""

    def __init__(self, title: str, stream=None):
        self.title = title
        self.stream = stream or sys.stdout
        self.started = self.printed = time.monotonic()
        self.live = self.stream.isatty()
        if not self.live:
            self._write(f"{title} ...\n")

    def update(self, percent: int | None) -> None:
        """Show the time that has passed, and how far the work is where that is known."""
        now = time.monotonic()
        done = "" if percent is None else f" {percent:3d}%"
        text = f"{self.title} ...{done} {clock_text(now - self.started)}"
        if self.live:
            self._write(f"\r\x1b[K{text}")
        elif now - self.printed >= QUIET_S:
            self.printed = now
            self._write(f"{text}\n")

    def close(self, word: str) -> None:
        """End the line with a word: done, failed, stopped."""
        start = "\r\x1b[K" if self.live else ""
        self._write(f"{start}{self.title}: {word} ({clock_text(time.monotonic() - self.started)})\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def run_logged(command, log_path, title: str, *, env=None, cwd=None, deadline: float | None = None) -> int:
    """Run a command to its end and return its exit code; the output is appended to `log_path`.

    `deadline` is a time of `time.monotonic()`. Past it, at Ctrl-C and at SIGTERM, the command and all its
    children are killed. Raises TimeoutError at the deadline.
    """
    line = ProgressLine(title)
    word, child = "stopped", None
    with open(log_path, "ab") as log, signals_raise():
        log.write(f"$ {shlex.join(map(str, command))}\n".encode())
        log.flush()
        try:
            with _signals_wait() as before:  # one that comes while the child is started would leave it behind
                child = subprocess.Popen(
                    command,
                    env=env,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a process group of its own, so that it can be ended as a whole
                    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
                )
            _copy_output(child, log, line, deadline)
            code = child.wait()
            word = "done" if code == 0 else "failed"
            return code
        finally:
            if child:
                with _signals_wait():
                    _end_group(child)
                child.stdout.close()
            line.close(word)


def tail(log_path, lines: int = 15) -> str:
    """The last lines of a log file, indented."""
    with open(log_path, errors="replace") as log:
        return "".join(f"    {line}" for line in log.readlines()[-lines:])


def _copy_output(child, log, line: ProgressLine, deadline: float | None) -> None:
    """Copy what the child prints to the log until it closes its output or ends."""
    percent = None
    while True:
        line.update(percent)
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        if not select.select([child.stdout], [], [], 0.5)[0]:
            if child.poll() is not None:  # ended, though a grandchild still holds the pipe open
                return
            continue
        chunk = os.read(child.stdout.fileno(), 1 << 16)
        if not chunk:
            return
        log.write(chunk)
        log.flush()
        found = PERCENT.findall(chunk)
        percent = int(found[-1]) if found else percent


def _end_group(child) -> None:
    """End what is left of the child's process group: SIGTERM, then after three seconds SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        give_up = time.monotonic() + 3.0
        while time.monotonic() < give_up:
            child.poll()  # a dead child that has not been waited for still counts as a member
            try:
                os.killpg(child.pid, number)
            except (ProcessLookupError, PermissionError):
                return
            number = 0  # from now on only look whether anyone is left
            time.sleep(0.05)


@contextlib.contextmanager
def _signals_wait():
    """Hold signals back, and hand out which were held before; a second Ctrl-C does not stop the tidying after the
    first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def signals_raise():
    """Let SIGTERM and SIGHUP raise as Ctrl-C does, so that `finally` clauses run."""

    def stop(number, frame):
        raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not in the main thread: signals belong to other code
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
