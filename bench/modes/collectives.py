"""The process group that ddp and the baseline ``independent`` join: rank, rendezvous, and three collectives.

NCCL between GPUs, Gloo between CPUs and between ranks that share one GPU. Every wait has a limit.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from bench.config.options import RunConfig
from bench.modes.base import Topology, device_of

REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def join(config: RunConfig) -> Topology:
    """Join the group that the launcher's environment describes (RANK, WORLD_SIZE, LOCAL_RANK, address).

    Raises torch's DistStoreError or RuntimeError when the others do not come within the run's timeout.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = device_of(config, int(os.environ["LOCAL_RANK"]))
    url = os.environ.get("BENCH_INIT_METHOD", "env://")
    if url.startswith("file://"):  # as a store: a path may hold characters that a URL may not
        meeting = {"store": dist.FileStore(url.removeprefix("file://"), world_size)}
    else:
        meeting = {"init_method": url}
    own_gpus = device.type == "cuda" and not config.share_gpu
    dist.init_process_group(
        "nccl" if own_gpus else "gloo",
        **meeting,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=config.timeout + 60),  # the launcher sees all ranks, and reports first
        device_id=device if own_gpus else None,
    )
    return Topology(rank, int(os.environ["LOCAL_RANK"]), world_size, 1, device)


def reduce(value: torch.Tensor, op: str) -> torch.Tensor:
    """All-reduce a copy of ``value``; op: "sum", "mean" or "max"."""
    value = value.clone()
    dist.all_reduce(value, REDUCE_OPS[op])
    return value / dist.get_world_size() if op == "mean" else value


def gather(item: object) -> list:
    """The items of all ranks in rank order, on every rank."""
    items = [None] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items
