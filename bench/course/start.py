"""``python -m bench.course.start RUN_DIR NUM_RANKS``: start the ranks, end when one fails or all have ended.

Where it is safe (Linux), torch is imported once and the ranks are forked from this fresh process, which has touched
neither a thread nor a device: two ranks start for the price of one import. Elsewhere each rank is a program of its own.
How each ended is left in RUN_DIR/ended<r>: its exit code, or the number of the signal that killed it, negative.
"""

import gc
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from bench.files import LINUX


def main() -> int:
    """Returns 0 when every rank has ended well, else 1 as soon as one has not; the launcher ends the others."""
    run_dir, num_ranks = Path(sys.argv[1]), int(sys.argv[2])
    if LINUX:
        gc.disable()  # until the ranks have joined: see bench/worker.py
        import torch.distributed  # noqa: F401  before the ranks, for all of them

        return watch(fork, run_dir, num_ranks)
    return watch(run, run_dir, num_ranks)


def watch(start: Callable[[Path, int], int], run_dir: Path, num_ranks: int) -> int:
    """Start every rank and wait. start: ``fork`` or ``run``."""
    ranks = {start(run_dir, rank): rank for rank in range(num_ranks)}
    while ranks:
        pid, status = os.wait()
        if pid in ranks:
            (run_dir / f"ended{ranks.pop(pid)}").write_text(str(os.waitstatus_to_exitcode(status)))
            if status:
                return 1
    return 0


def fork(run_dir: Path, rank: int) -> int:
    """A rank as a copy of this process. Returns its process id; never returns in the copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: there are none that hold a lock
        pid = os.fork()
    if pid == 0:
        import numpy

        from bench.course import rank as program

        numpy.random.seed()  # Python's own random numbers differ in a copy, numpy's would not
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        program.live(run_dir, rank)
    return pid


def run(run_dir: Path, rank: int) -> int:
    """A rank as a fresh process. Returns its process id."""
    variables = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    return os.posix_spawn(sys.executable, [sys.executable, "-m", "bench.course.rank", str(run_dir)], variables)


if __name__ == "__main__":
    sys.exit(main())
