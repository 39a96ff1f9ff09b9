"""Run a long command: output into a log file, one line of progress on the screen, a time limit, no orphans.

Standard library only: `packages.py` uses it before anything is installed.
"""

from __future__ import annotations

import re
import shlex
import sys
import time

from bench.process.ending import signals_as_interrupt
from bench.process.tree import Tree

PERCENT = re.compile(rb"\[ *(\d+)%\]")  # how make reports its progress: "[ 42%] Building CXX object …"
GRACE_S = 3.0  # from SIGTERM to SIGKILL
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
    children are ended. Raises TimeoutError at the deadline.
    """
    line = ProgressLine(title)
    word = "stopped"
    try:
        with open(log_path, "ab") as log, signals_as_interrupt(), Tree(grace_s=GRACE_S) as tree:
            log.write(f"$ {shlex.join(map(str, command))}\n".encode())
            log.flush()
            tree.start(command, env, cwd=cwd, stdout=log, stderr=log)
            with open(log_path, "rb") as output:
                output.seek(log.tell())
                code = _follow(tree, output, line, deadline)
        word = "done" if code == 0 else "failed"
        return code
    finally:
        line.close(word)


def tail(log_path, lines: int = 15) -> str:
    """The last lines of a log file, indented."""
    with open(log_path, errors="replace") as log:
        return "".join(f"    {line}" for line in log.readlines()[-lines:])


def _follow(tree: Tree, output, line: ProgressLine, deadline: float | None) -> int:
    """Wait for the command to end, and show how far it says it is. Returns its exit code."""
    percent = None
    while True:
        line.update(percent)
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        if (code := tree.wait(0.5)) is not None:
            return code
        found = PERCENT.findall(output.read())
        percent = int(found[-1]) if found else percent
