"""A command with a limit, of which no process is left: neither those it started, nor those that left its session.

This ends what students' answers leave running by mistake, and files that grow without end. It is no wall: what a
program may read or send is not limited here, so work of people who are not trusted is to be graded in a container.
"""

import contextlib
import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

from bench.files import LINUX, PROC
from bench.process.ending import signals_as_interrupt, uninterrupted
from bench.process.tree import Tree

MOST_FILE_BYTES = 2**30
TRIES = 50  # a process may start another one while it is being ended
SET_SUBREAPER, GET_SUBREAPER = 36, 37  # of prctl(2), Linux


def run(argv: list[str], limit_s: float, environment: dict, log: Path) -> int | None:
    """Run a command in a session of its own; returns its exit code, or None when it was ended after ``limit_s``.

    log: what it prints. When this returns or raises, no process of the command is left. Ctrl-C and SIGTERM end it.
    """
    with signals_as_interrupt(), adopting_orphans() as mine, log.open("wb") as output, Tree(grace_s=0.0) as tree:
        try:
            tree.start(argv, environment, stdout=output, stderr=output)
            limit(tree.process.pid)
            return tree.wait(limit_s)
        finally:
            with uninterrupted():
                end_all(mine)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[set[int]]:
    """While this lasts, a process whose parent has ended becomes a child of this one (Linux), and so can be found.

    Gives the ids of the processes that were children before.
    """
    import psutil

    mine = {process.pid for process in psutil.Process().children(recursive=True)}
    if not LINUX:
        yield mine
        return
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield mine
    finally:
        prctl(SET_SUBREAPER, before.value, 0, 0, 0)


def limit(pid: int) -> None:
    """No file that a process and its children write gets larger than MOST_FILE_BYTES, and where the memory runs out
    they are ended, and not what else runs here (Linux).

    It is set when the process has begun: what it starts before that, in its first milliseconds, has no limit.
    """
    import psutil

    if LINUX:
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
        with contextlib.suppress(OSError):
            (PROC / str(pid) / "oom_score_adj").write_text("1000")


def end_all(mine: set[int]) -> None:
    """End every child of this process but ``mine``, and those that these start meanwhile."""
    import psutil

    for _ in range(TRIES):
        left = [p for p in psutil.Process().children(recursive=True) if p.pid not in mine]
        if not left:
            return
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=1)  # orphans are children now, and are taken note of
        time.sleep(0.02)
