"""Run a long command: output to a log file, one line of progress, a time limit, no orphans. Standard library only."""

from __future__ import annotations

import re
import shlex
import sys
import time

from bench.process.ending import signals_as_interrupt
from bench.process.tree import Tree

PERCENT = re.compile(rb"\[ *(\d+)%\]")  # how make reports its progress: "[ 42%] Building CXX object …"
CLEAR = "\r\x1b[K"
GRACE_S = 3.0  # from SIGTERM to SIGKILL
QUIET_S = 30.0  # between two lines of progress outside a terminal


class ProgressLine:
    """One line that updates itself in a terminal; a plain line now and then elsewhere."""

    def __init__(self, title: str):
        self.title, self.live = title, sys.stdout.isatty()
        self.started = self.printed = time.monotonic()
        if not self.live:
            print(f"{title} ...", flush=True)

    def clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        return f"{minutes}:{seconds:02d}"

    def update(self, percent: int | None) -> None:
        text = f"{self.title} ...{'' if percent is None else f' {percent:3d}%'} {self.clock()}"
        if self.live:
            print(f"{CLEAR}{text}", end="", flush=True)
        elif time.monotonic() - self.printed >= QUIET_S:
            self.printed = time.monotonic()
            print(text, flush=True)

    def close(self, word: str) -> None:
        print(f"{CLEAR if self.live else ''}{self.title}: {word} ({self.clock()})", flush=True)


def run_logged(command, log_path, title: str, *, env=None, cwd=None, deadline: float | None = None) -> int:
    """Run a command and return its exit code; append its output to ``log_path``. Raises TimeoutError at ``deadline``
    (``time.monotonic()``). Then, and on Ctrl-C and SIGTERM, all its processes end."""
    line = ProgressLine(title)
    word = "stopped"
    try:
        with open(log_path, "ab") as log, signals_as_interrupt(), Tree(grace_s=GRACE_S) as tree:
            log.write(f"$ {shlex.join(map(str, command))}\n".encode())
            log.flush()
            tree.start(command, env, cwd=cwd, stdout=log, stderr=log)
            with open(log_path, "rb") as output:
                output.seek(log.tell())
                percent = None
                while (code := tree.wait(0.5)) is None:
                    if deadline is not None and time.monotonic() > deadline:
                        raise TimeoutError
                    found = PERCENT.findall(output.read())
                    percent = int(found[-1]) if found else percent
                    line.update(percent)
        word = "done" if code == 0 else "failed"
        return code
    finally:
        line.close(word)


def tail(log_path, lines: int = 15) -> str:
    with open(log_path, errors="replace") as log:
        return "".join(f"    {line}" for line in log.readlines()[-lines:])
