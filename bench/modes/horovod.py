"""MODE=horovod: one process a device; the optimizer is wrapped, the model is not.

At the start: ``broadcast_parameters`` sends rank 0's weights to all. Without it every rank trains from its own.
Each step:
  1. forward and loss on the rank's own batch;
  2. backward: a hook on each parameter hands its gradient to Horovod's background thread, which once a cycle
     (1 ms by default) agrees with the other ranks on what is ready everywhere, packs small tensors into a fusion
     buffer and starts the all-reduce, while backward goes on;
  3. ``optimizer.step()`` waits for all reductions; gradients now hold the MEAN over ranks; then the wrapped
     optimizer's own step runs.

What to notice, and two traps that every tutorial walks into:
  - ``broadcast_optimizer_state`` on a FRESH optimizer takes a hidden step with zero gradients, to create state that it
    can send. Adam's step counter is then one ahead and its bias correction wrong: after five steps weights are 9e-3
    off. A fresh optimizer has no state to send, so here it is called only when there is some (after a resume);
  - ``zero_grad(set_to_none=True)`` raises; plain ``zero_grad()`` lets Horovod keep its gradients in place;
  - batch norm's buffers are never synchronised after the start: each rank keeps its own running statistics.
"""

import horovod.torch as hvd
import torch
from torch import nn

from bench.config import RunConfig
from bench.errors import UserError
from bench.modes import base

REDUCE_OPS = {"sum": hvd.Sum, "mean": hvd.Average, "max": hvd.Max}


class Mode(base.Mode):
    """Horovod: NCCL where it was built in, Gloo elsewhere."""

    def __init__(self, config: RunConfig):
        self.config = config
        hvd.init()
        if config.share_gpu and hvd.nccl_built():
            raise UserError(
                "SHARE_GPU=1 with MODE=horovod needs a Horovod without NCCL, which refuses two ranks on one GPU: "
                "`bench install-horovod --gpu none --force`"
            )
        device = base.device_of(config, hvd.local_rank())
        self.topology = base.Topology(hvd.rank(), hvd.local_rank(), hvd.size(), 1, device)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        before = optimizer.state_dict()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
        if before["state"]:  # after a resume; wrapping makes a new optimizer, without the old one's state
            optimizer.load_state_dict(before)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return optimizer

    def reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        return hvd.allreduce(value, op=REDUCE_OPS[op])

    def gather(self, item: object) -> list:
        return hvd.allgather_object(item)

    def barrier(self) -> None:
        hvd.barrier()

    def close(self) -> None:
        hvd.shutdown()
