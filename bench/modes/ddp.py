"""MODE=ddp: ``DistributedDataParallel``. One process a device, each with its own optimizer.

At construction: rank 0's parameters and buffers are broadcast, so all replicas start from the same weights.
Each step:
  1. every rank takes its own batch; with buffers (batch norm's running statistics) rank 0's are broadcast first;
  2. forward and loss, local: the loss is a mean over the rank's own batch;
  3. backward: gradients are gathered into buckets (25 MB by default), and as soon as a bucket is full its
     all-reduce starts, while backward goes on with the layers before it: communication overlaps computation;
  4. every rank now holds the MEAN of all ranks' gradients. Batches are equal in size, so the mean of the means is
     the gradient on the joined batch;
  5. every rank takes the same optimizer step from the same weights with the same gradients: the replicas stay equal.

What to notice:
  - the optimizer is left alone: ``wrap_optimizer`` keeps its default;
  - nothing checks that the replicas stay equal; step 5 is an argument, not a test;
  - all-reduce costs the same however large the batch is: a larger batch pays it with more computation.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.config import RunConfig
from bench.modes import base, group

# TUNED=1. The mathematics of the step stays as it is; a gradient is stored once, inside its bucket, instead of
# being copied in and out, and the graph is declared constant so that its unused-parameter bookkeeping is skipped.
TUNED = {"gradient_as_bucket_view": True, "static_graph": True}


class Mode(base.Mode):
    """DDP over NCCL on GPUs, over Gloo elsewhere."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.topology = group.join(config)
        if config.share_gpu and config.device == "cuda":
            self.label = "all ranks share one GPU, over Gloo: for learning, not a measurement of DDP"

    def wrap_model(self, model: nn.Module) -> nn.Module:
        device = self.topology.device
        device_ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=device_ids, **(TUNED if self.config.tuned else {}))

    def reduce(self, value, op):
        return group.reduce(value, op)

    def gather(self, item):
        return group.gather(item)

    def barrier(self) -> None:
        dist.barrier()

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module

    def close(self) -> None:
        dist.destroy_process_group()
