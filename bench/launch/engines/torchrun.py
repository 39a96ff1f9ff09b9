"""torchrun: starts the ranks, gives each its RANK, LOCAL_RANK and WORLD_SIZE, and ends all when one fails."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from bench.config.options import RunConfig
from bench.launch.node import Placement
from bench.launch.ports import require_free_port


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables to add to the environment. Raises UserError when DIST_URL's port is busy.

    Without DIST_URL torchrun finds a free port itself. A failed rank is not started again: a benchmark that
    restarted would time the restart.
    """
    if config.dist_url:
        address = urlsplit(config.dist_url)
        require_free_port(address.hostname, address.port, config.dist_url)
        rendezvous = ["--master-addr", address.hostname, "--master-port", str(address.port)]
    else:
        rendezvous = [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"{placement.main}:0",
            "--local-addr",
            placement.main,
        ]
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", str(placement.count), "--nproc-per-node", str(len(placement.ranks)), "--max-restarts", "0",
        *rendezvous,
        "--log-dir", str(run_dir / ".torchrun"),  # or it would leave a folder in /tmp
        "-m", "bench.worker", str(run_dir),
    ], {}  # fmt: skip
