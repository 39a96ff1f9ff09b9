"""The process that spawns the ranks. A separate file, because ``-m`` warns about a module that is already imported."""

import os
import runpy
import sys


def start_rank(rank: int, world_size: int, run_dir: str) -> None:
    """Set the variables that torchrun would set, and run the worker."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    sys.argv = ["bench.worker", run_dir]
    runpy.run_module("bench.worker", run_name="__main__")


def main() -> None:
    import torch.multiprocessing

    run_dir, world_size = sys.argv[1], int(sys.argv[2])
    torch.multiprocessing.spawn(start_rank, args=(world_size, run_dir), nprocs=world_size)


if __name__ == "__main__":
    main()
