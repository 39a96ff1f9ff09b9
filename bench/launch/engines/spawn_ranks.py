"""The process that spawn.py starts: it spawns the ranks, and each runs the worker.

A file of its own, which the table of engines does not import: a module that is there already is not run a second time
without a warning in every rank's log.
"""

import os
import runpy
import sys


def start_rank(rank: int, world_size: int, run_dir: str) -> None:
    """In a fresh process: say which rank this is, the way torchrun does, and run the worker."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    sys.argv = ["bench.worker", run_dir]
    runpy.run_module("bench.worker", run_name="__main__")


def main() -> None:
    """Called with RUN_DIR and WORLD_SIZE: spawn the ranks and wait; an error if one fails."""
    import torch.multiprocessing

    run_dir, world_size = sys.argv[1], int(sys.argv[2])
    torch.multiprocessing.spawn(start_rank, args=(world_size, run_dir), nprocs=world_size)


if __name__ == "__main__":
    main()
