"""``python -m bench.course.start RUN_DIR NUM_RANKS``: start the ranks, end when one fails or all have ended.

Where it is safe (Linux), torch is imported once and the ranks are forked from this fresh process, which has touched
neither a thread nor a device: two ranks start for the price of one import. Elsewhere each rank is a program of its own.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path


def main() -> int:
    """Returns 0 when every rank has ended well, else 1 as soon as one has not; the launcher ends the others."""
    run_dir, num_ranks = Path(sys.argv[1]), int(sys.argv[2])
    start = fork if sys.platform == "linux" else run
    if start is fork:
        import torch.distributed  # noqa: F401  before the ranks, for all of them
    ranks = {start(run_dir, rank) for rank in range(num_ranks)}
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status:
            return 1
    return 0


def fork(run_dir: Path, rank: int) -> int:
    """A rank as a copy of this process. Returns its process id; never returns in the copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: there are none that hold a lock
        pid = os.fork()
    if pid == 0:
        from bench.course import rank as program

        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        program.live(run_dir, rank)
    return pid


def run(run_dir: Path, rank: int) -> int:
    """A rank as a fresh process. Returns its process id."""
    variables = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    return subprocess.Popen([sys.executable, "-m", "bench.course.rank", str(run_dir)], env=variables).pid


if __name__ == "__main__":
    sys.exit(main())
