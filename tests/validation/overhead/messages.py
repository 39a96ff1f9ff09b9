"""All-reduces as `bench network` times them and in a bare loop, in turns, in the same processes.

``python -m bench.proof.selfbench.messages CONFIG NBYTES PAIRS OUT``, started by torchrun.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from bench.config.options import from_dict
from bench.modes import load_mode
from bench.without_training.network.plan import ELEMENT
from bench.without_training.network.rank import BLOCK_S, operations_of, seconds_of


def main() -> None:
    """Warm up, then PAIRS times a block of each, the order turned from pair to pair."""
    config, nbytes, pairs = from_dict(json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    mode = load_mode(config.mode)(config)
    operation, tensor = operations_of(mode)[-1], torch.zeros(nbytes // ELEMENT)
    times = max(1, round(BLOCK_S / max(mode.gather(seconds_of(operation.once, tensor, 5, mode)))))

    def harness() -> float:
        return seconds_of(operation.once, tensor, times, mode)

    def bare() -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(tensor)
        return (time.perf_counter() - start) / times

    blocks = {"harness_s": [], "bare_s": []}
    for pair in range(pairs):
        turns = [("harness_s", harness), ("bare_s", bare)]
        for name, block in turns if pair % 2 else reversed(turns):
            blocks[name].append(block())
    Path(sys.argv[4], f"rank{mode.topology.rank}.json").write_text(json.dumps(blocks))
    mode.close()


if __name__ == "__main__":
    main()
