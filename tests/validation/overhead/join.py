"""The least a distributed program can do: import its engine and join the group. The floor of every start.

``python -m bench.proof.selfbench.join KIND OUT``, started by the launcher that KIND names: torchrun or horovodrun.
"""

import json
import sys
from pathlib import Path

from bench.measure import steady


def torchrun() -> int:
    """torch, Gloo."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.get_rank()


def horovodrun() -> int:
    """Horovod."""
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank()


if __name__ == "__main__":
    rank = {"torchrun": torchrun, "horovodrun": horovodrun}[sys.argv[1]]()
    Path(sys.argv[2], f"rank{rank}.json").write_text(json.dumps({"step_time_s": [], "ready": steady.now()}))
