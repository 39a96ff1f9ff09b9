"""torchrun: starts the ranks, gives each its RANK, LOCAL_RANK and WORLD_SIZE, and ends all when one fails."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from bench.config.options import RunConfig
from bench.launch.placement import Placement
from bench.launch.ports import require_free_port

JOIN_S = 120  # for the torchruns of all machines to meet


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """The command line and variables to add. Raises UserError if DIST_URL's port is in use. No restarts, because a
    benchmark would time them; with MIN_DEVICES on one machine all ranks restart from the last checkpoint, and with a
    shared rendezvous store most restarts would hang over Gloo. On several machines torch's static rendezvous keeps the
    nodes in order; c10d sorts them by the text of their addresses (dynamic_rendezvous.py of 2.14)."""
    if placement.count > 1:
        rendezvous = [
            "--node-rank", str(placement.number), "--master-addr", placement.main,
            "--master-port", str(placement.port), "--local-addr", placement.address,
            "--rdzv-conf", f"timeout={max(1, min(JOIN_S, int(config.timeout)))}",
        ]  # fmt: skip
    elif config.dist_url:
        address = urlsplit(config.dist_url)
        require_free_port(address.hostname, address.port, config.dist_url)
        rendezvous = ["--master-addr", address.hostname, "--master-port", str(address.port)]
    else:
        main = placement.main
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{main}:0", "--local-addr", main]
    again = config.restarts if config.elastic and not placement.joins else 0
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if again else {}
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", str(placement.count), "--nproc-per-node", str(len(placement.ranks)), "--max-restarts", str(again),
        *rendezvous,
        *(["--numa-binding", "node"] if config.numa_binding else []),
        "--log-dir", str(run_dir / ".torchrun"),  # by default it leaves a folder in /tmp
        "-m", "bench.worker", str(run_dir),
    ], variables  # fmt: skip
