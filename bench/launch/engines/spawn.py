"""torch.multiprocessing.spawn, in a new process (spawn_ranks.py): a fork of a notebook's kernel could not use
CUDA."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from bench.config.sections import Resources
from bench.errors import UserError
from bench.launch.placement import Placement
from bench.launch.ports import require_free_port


def command(config: Resources, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """Without DIST_URL the ranks meet through a file. Raises UserError if DIST_URL cannot work."""
    url = config.dist_url or f"file://{run_dir.resolve()}/.rendezvous"
    if url.startswith("tcp:"):
        address = urlsplit(url)
        require_free_port(address.hostname, address.port, url)
    elif config.dist_url:
        path = Path(url.removeprefix("file://"))
        if path.exists():
            raise UserError(f"DIST_URL={url}: this file exists and may belong to another run: choose a new one")
        if not path.parent.is_dir():
            raise UserError(
                f"DIST_URL={url}: the folder {path.parent} does not exist: create it, or leave DIST_URL out"
            )
    argv = [sys.executable, "-m", "bench.launch.engines.spawn_ranks", str(run_dir), str(len(placement.ranks))]
    return argv, {"BENCH_INIT_METHOD": url}
