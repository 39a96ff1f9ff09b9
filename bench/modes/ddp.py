"""MODE=ddp: ``DistributedDataParallel``. One process per device, each with its own optimizer.

At construction: rank 0's parameters and buffers are broadcast, so all replicas start from the same weights.
Each step:
  1. every rank takes its own batch; with buffers (batch norm's running statistics) rank 0's are broadcast first;
  2. forward and loss, local: the loss is a mean over the rank's own batch;
  3. backward: gradients are gathered into buckets (25 MB by default), and as soon as a bucket is full its
     all-reduce starts, while backward continues with the layers before it: communication overlaps computation;
  4. every rank now holds the MEAN of all ranks' gradients. Batches are equal in size, so the mean of the means is
     the gradient on the joined batch;
  5. every rank takes the same optimizer step from the same weights with the same gradients: the replicas stay equal.

What to notice:
  - the optimizer is not changed: ``wrap_optimizer`` keeps its default;
  - nothing checks that the replicas stay equal; step 5 is an argument, not a test;
  - all-reduce costs the same however large the batch is: a larger batch pays it with more computation.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bench.config.sections import Exchange
from bench.modes import collectives
from bench.structure import TensorList


class Mode(collectives.Mode):
    def wrap_model(self, model: nn.Module) -> nn.Module:
        config, device = self.config, self.topology.device
        output = TensorList(model)
        kind = ProfiledDDP if self.timeline else DistributedDataParallel
        self.ddp = kind(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=config.gradient_as_bucket_view,  # a gradient is stored once, inside its bucket
            # No bookkeeping of unused parameters. DDP learns the graph in a first pass that exchanges, and would fail
            # if the first pass does not.
            static_graph=config.static_graph and config.sync and config.accumulate == 1,
            **({"bucket_cap_mb": config.bucket_cap_mb} if config.bucket_cap_mb else {}),
            **({} if config.broadcast_buffers else {"broadcast_buffers": False}),
            **({"batched_grad_copy": True} if config.batched_grad_copy else {}),  # torch 2.14 or newer
            init_sync=config.init_sync,  # 0: no weights are broadcast, without an error
        )
        output.close(self.ddp)  # with STATIC_GRAPH torch starts the exchange from the output
        state, self.hook = (None, sum_over_ranks) if self.sums_gradients else communication_hook(config)
        hook = self.hook
        if self.timeline:
            hook = self.timeline.watch_buckets(hook or default_hooks.allreduce_hook, waits=not config.overlap)
            self.ddp.mode = self
        if hook:
            self.ddp.register_comm_hook(state, hook)
        return self.ddp

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager:
        return model.no_sync()

    @property
    def buffers(self) -> str:
        """DDP broadcasts rank 0's before a forward pass, but not after one under ``no_sync``: with ACCUMULATE before
        the first pass of a step, with INJECT=no-exchange only before the first step."""
        if not (self.ddp.broadcast_buffers and self.config.sync):
            return "each rank's own"
        return f"rank 0's, sent every {'forward' if self.config.accumulate == 1 else 'step'}"

    def facts(self, optimizer: torch.optim.Optimizer) -> dict:
        return {
            "gradient": self.gradient,
            "compression": self.config.compression if self.hook and self.config.overlap else "none",
            "buffers": self.buffers,
            "static_graph": self.ddp.static_graph,
            "bucket_cap_mb": self.ddp.bucket_bytes_cap / 2**20,
        }

    def buckets(self) -> list[int]:
        if self.config.gradient_as_bucket_view:  # the gradients are in them
            return []
        data = self.ddp._get_ddp_logging_data()
        sizes = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes", "")  # after the first step, and before it
        return [int(size) for size in sizes.replace(",", " ").split()]

    def exchanges(self):
        return collectives.exchanges(self.topology)

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module


def communication_hook(config: Exchange) -> tuple:
    """(state, hook), which replaces DDP's own all-reduce of a bucket; (None, None) for DDP's own."""
    if not config.overlap:
        return [], reduce_after_backward
    if config.compression == "powersgd":  # rank 1; uncompressed until DDP has the final order of its buckets
        return powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), power_sgd
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    return None, hooks.get(config.compression)


def sum_over_ranks(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """INJECT=gradient-sum: no division by the number of ranks."""
    summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return summed.then(lambda future: future.value()[0])


def reduce_after_backward(waiting: list, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """OVERLAP=0: the same buckets and bytes, but all are sent when the last bucket is full, after backward has computed
    every gradient. ``waiting``: the buckets until then."""
    device = bucket.buffer().device
    future = torch.futures.Future(devices=[device] if device.type == "cuda" else None)
    waiting.append((bucket.buffer(), future))
    if bucket.is_last():
        for gradients, promised in waiting:
            dist.all_reduce(gradients)
            promised.set_result(gradients.div_(dist.get_world_size()))
        waiting.clear()
    return future


def power_sgd(state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's PowerSGD chains three collectives per bucket by callbacks. Over Gloo they run in threads: two buckets
    could meet in another order on each rank, and the run would die. So there a bucket ends before the next begins."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    if dist.get_backend() == "gloo":  # on CPUs, and where ranks share a GPU and their NCCL is too old
        future.wait()
    return future


class ProfiledDDP(DistributedDataParallel):
    mode: Mode

    def _sync_buffers(self) -> None:
        with self.mode.span("communication", "buffers", sum(buffer.nbytes for buffer in self.buffers())):
            super()._sync_buffers()
