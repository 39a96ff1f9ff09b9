"""torch.multiprocessing.spawn: one Python program starts the ranks itself.

This file is both sides: ``command`` starts it as a fresh process (never a fork of a notebook's kernel, which could
not use CUDA again), and that process spawns the ranks.
"""

import os
import runpy
import sys
from pathlib import Path
from urllib.parse import urlsplit

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.launch.node import Placement
from bench.launch.ports import require_free_port


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables to add to the environment. Raises UserError when DIST_URL's port is busy.

    Without DIST_URL the ranks meet through a file in the run's folder: no port at all.
    """
    url = config.dist_url or f"file://{run_dir.resolve()}/.rendezvous"
    if url.startswith("tcp:"):
        address = urlsplit(url)
        require_free_port(address.hostname, address.port, url)
    elif config.dist_url:
        require_new_file(url)
    argv = [sys.executable, "-m", "bench.launch.engines.spawn", str(run_dir), str(len(placement.ranks))]
    return argv, {"BENCH_INIT_METHOD": url}


def require_new_file(url: str) -> None:
    """Raise UserError when a file:// rendezvous cannot work: another run's file, or no folder to put it into."""
    path = Path(url.removeprefix("file://"))
    if path.exists():
        raise UserError(f"DIST_URL={url}: this file exists, and may be another run's; name a new one")
    if not path.parent.is_dir():
        raise UserError(f"DIST_URL={url}: there is no folder {path.parent}; make it, or leave DIST_URL out")


def start_rank(rank: int, world_size: int, run_dir: str) -> None:
    """In a fresh process: say which rank this is, the way torchrun does, and run the worker."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    sys.argv = ["bench.worker", run_dir]
    runpy.run_module("bench.worker", run_name="__main__")


def main() -> None:
    """``python -m bench.launch.engines.spawn RUN_DIR WORLD_SIZE``: spawn the ranks and wait; an error if one fails."""
    import torch.multiprocessing

    run_dir, world_size = sys.argv[1], int(sys.argv[2])
    torch.multiprocessing.spawn(start_rank, args=(world_size, run_dir), nprocs=world_size)


if __name__ == "__main__":
    main()
