"""The process group of torch.distributed, and the common part of all its modes: rank, rendezvous, collectives. NCCL
between GPUs, Gloo between CPUs, and between ranks that share a GPU if their NCCL is too old for that. Every wait has a
limit."""

import functools
import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from bench.config.options import RunConfig
from bench.measure import nccl
from bench.modes import base, sync_batch_norm
from bench.modes.base import Topology, device_of

REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Mode(base.Mode):
    """One process of several: everything independent of the way they train."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.topology = join(config)
        self.add_label(base.shared_label(config, dist.get_backend()))

    def sync_norms(self, model: nn.Module) -> nn.Module:
        sum_over_ranks = functools.partial(reduce, op="sum")
        if self.timeline:
            sum_over_ranks = self.timeline.wrapped(sum_over_ranks, "communication", "norm statistics", None)
        return sync_batch_norm.synchronise(self, model, nn.SyncBatchNorm, sum_over_ranks)

    def reduce(self, value, op):
        return reduce(value, op)

    def gather(self, item):
        return gather(item)

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()


def join(config: RunConfig) -> Topology:
    """Join the group that the launcher's environment describes (RANK, WORLD_SIZE, LOCAL_RANK, address).

    Raises torch's DistStoreError or RuntimeError if the others do not join within the run's timeout.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = device_of(config, int(os.environ["LOCAL_RANK"]))
    url = os.environ.get("BENCH_INIT_METHOD", "env://")
    if url.startswith("file://"):  # as a store: a path may contain characters that are invalid in a URL
        meeting = {"store": dist.FileStore(url.removeprefix("file://"), world_size)}
    else:
        meeting = {"init_method": url}
    over_nccl = device.type == "cuda" and (not config.share_gpu or nccl.ranks_share())
    dist.init_process_group(
        "nccl" if over_nccl else "gloo",
        **meeting,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=config.timeout + 60),  # the launcher observes all ranks, and reports first
        device_id=device if over_nccl else None,
    )
    return Topology(rank, int(os.environ["LOCAL_RANK"]), world_size, 1, device)


def reduce(value: torch.Tensor, op: str) -> torch.Tensor:
    value = value.clone()
    dist.all_reduce(value, REDUCE_OPS[op])
    return value / dist.get_world_size() if op == "mean" else value


def gather(item: object) -> list:
    items = [None] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items


def broadcast_weights(model: nn.Module) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def exchanges(topology: Topology) -> dict[str, Callable[[torch.Tensor], None]]:
    """Operations on a tensor in place, as ``base.Mode.exchanges``. Of a gather or scatter each rank has one part, which
    is where NCCL expects it."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.14
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(topology.world_size)[topology.rank]

    return {
        "ping_pong": make_ping_pong(topology),
        "all_reduce": dist.all_reduce,
        "all_gather": lambda tensor: gather(tensor, own(tensor)),
        "reduce_scatter": lambda tensor: scatter(own(tensor), tensor),
    }


def make_ping_pong(topology: Topology) -> Callable[[torch.Tensor], None]:
    last = topology.world_size - 1

    def ping_pong(tensor) -> None:
        if topology.rank == 0:
            dist.send(tensor, last)
            dist.recv(tensor, last)
        elif topology.rank == last:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)

    return ping_pong
