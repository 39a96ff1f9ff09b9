"""The ranks of ``run_on_nodes``, inside the cluster: ``python -m bench.course.node_ranks …``

FOLDER NUM_NODES   start a rank on each node, end when one fails or all have ended
FOLDER             one rank, which the environment names
"""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from bench.cluster.plan import Cluster


def main(words: list[str]) -> int:
    if len(words) == 1:
        run_rank(Path(words[0]))
        return 0
    ranks = [start_rank(words[0], rank, Cluster(nodes=int(words[1]))) for rank in range(int(words[1]))]
    codes = [rank.poll() for rank in ranks]
    while None in codes and not any(codes):  # the other ranks end with the cluster
        time.sleep(0.02)
        codes = [rank.poll() for rank in ranks]
    return int(any(codes))


def start_rank(folder: str, rank: int, cluster: Cluster) -> subprocess.Popen:
    place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(cluster.nodes), "MASTER_PORT": "29500"}
    place |= {"MASTER_ADDR": cluster.addresses[0], "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    python = [sys.executable, "-m"]
    command = [*python, "bench.cluster.enter", cluster.names[rank], *python, "bench.course.node_ranks", folder]
    return subprocess.Popen(command, env={**os.environ, **place})


def run_rank(folder: Path) -> None:
    import cloudpickle
    import torch.distributed as dist

    function, arguments = pickle.loads((folder / "call").read_bytes())
    dist.init_process_group("gloo")
    (folder / f"result{dist.get_rank()}").write_bytes(cloudpickle.dumps(function(*arguments)))
    dist.barrier()  # rank 0's store must not end while another rank uses it
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
