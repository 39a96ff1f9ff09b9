"""A run whose rank 0 enters a collective alone: ``python -m tests.multiprocess.lone_collective MODE OUT TIMEOUT``.

It is `bench run` but for what its ranks do. Both sides are here: without RANK in the environment it launches, with it
(or Horovod's) it is a rank.
"""

import json
import os
import sys
from pathlib import Path

from bench.config.options import RunConfig, from_dict
from bench.errors import BenchError
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter
from tests.multiprocess import other_worker
from tests.multiprocess.hangs import slow_start


def main() -> int:
    """The launcher's side."""
    mode, out, timeout = sys.argv[1:]
    config = RunConfig(mode=mode, num_devices=2, device="cpu", out=out, timeout=float(timeout))
    try:
        with slow_start():
            other_worker.launch(config, __spec__.name)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def rank_main(rank: int) -> None:
    """One rank's life."""
    run_dir = Path(sys.argv[1])
    with Guard(run_dir, rank) as guard:
        guard.status = StatusWriter(run_dir, rank)
        from bench.modes import load_mode

        config = from_dict(json.loads((run_dir / "config.json").read_text()))
        mode = load_mode(config.mode)(config)
        guard.status.phase("validating")
        if rank == 0:
            count_hits(mode)  # the mistake: what follows is for all ranks, this was not
        agree(mode)


def count_hits(mode) -> None:
    """A sum over the ranks."""
    import torch

    mode.reduce(torch.zeros(4), "sum")  # rank 0 waits here


def agree(mode) -> None:
    """Where all ranks meet."""
    mode.barrier()  # rank 1 waits here


if __name__ == "__main__":
    number = os.environ.get("RANK", os.environ.get("HOROVOD_RANK"))
    sys.exit(main() if number is None else rank_main(int(number)))
