"""MODE=horovod: one process per device; the optimizer is wrapped, the model is not.

At the start: ``broadcast_parameters`` sends rank 0's weights to all. Without it every rank trains from its own.
Each step:
  1. forward and loss on the rank's own batch;
  2. backward: a hook on each parameter hands its gradient to Horovod's background thread, which once a cycle
     (1 ms by default) agrees with the other ranks on what is ready everywhere, packs small tensors into a fusion
     buffer and starts the all-reduce, while backward goes on;
  3. ``synchronize()`` waits for all reductions; gradients now hold the MEAN over ranks. ``optimizer.step()`` would
     wait by itself; waiting separately shows what the wait costs, and lets gradients be clipped before the step;
  4. the wrapped optimizer's own step runs.

What to notice, and two traps that every tutorial walks into:
  - ``broadcast_optimizer_state`` on a FRESH optimizer takes a hidden step with zero gradients, to create state that it
    can send. Adam's step counter is then one ahead and its bias correction wrong: after five steps weights are 9e-3
    off. A fresh optimizer has no state to send, and after a resume every rank reads the same file: it is not called;
  - ``zero_grad(set_to_none=True)`` raises: Horovod's takes no argument, and calls PyTorch's with its default;
  - batch norm's buffers are never synchronised after the start: each rank keeps its own running statistics, which
    are the same everywhere with NORM=sync alone.
"""

import contextlib

import horovod.torch as hvd
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.modes import base, sync_batch_norm

REDUCE_OPS = {"sum": hvd.Sum, "mean": hvd.Average, "max": hvd.Max}


class Mode(base.Mode):
    """Horovod over NCCL on GPUs, over Gloo elsewhere."""

    channels_last_weights = False  # it sends contiguous tensors alone; a convolution takes such weights as well

    def __init__(self, config: RunConfig):
        self.config = config
        hvd.init()
        device = base.device_of(config, hvd.local_rank())
        self.topology = base.Topology(hvd.rank(), hvd.local_rank(), hvd.size(), 1, device)

    def sync_norms(self, model: nn.Module) -> nn.Module:
        return sync_batch_norm.synchronise(self, model, hvd.SyncBatchNorm, sum_over_ranks)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        if self.config.init_sync:  # a line that is easily forgotten: no error says so
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        config = self.config
        if self.timeline:
            self.timeline.watch_engine(mark, hvd.stop_timeline, writes=hvd.rank() == 0)
        if config.adasum and not hvd.mpi_built():
            raise UserError("ADASUM=1 needs a Horovod built with MPI, and this one talks over Gloo: leave it out")
        if not (config.sync and config.overlap):
            return optimizer  # no hooks in backward: nothing is sent before synchronize()
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16 if config.compression == "fp16" else hvd.Compression.none,
            op=hvd.Adasum if config.adasum else hvd.Sum if self.sums_gradients else hvd.Average,
            # The hooks count backward passes and send at the last one what the gradients have summed up to by then. So
            # ``no_sync`` has nothing to do here, and keeps its default.
            backward_passes_per_step=config.accumulate,
        )

    def synchronize(self, optimizer: torch.optim.Optimizer) -> None:
        if hasattr(optimizer, "synchronize"):
            return optimizer.synchronize()  # wait for what the hooks began; gradients are means from here on
        if self.config.sync:  # OVERLAP=0: everything in one call, after the whole backward pass
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            hvd.grouped_allreduce_(gradients, op=hvd.Average, name="gradients")

    def step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        waited = hasattr(optimizer, "skip_synchronize") and not self.config.adasum  # Adasum reduces inside its step
        with optimizer.skip_synchronize() if waited else contextlib.nullcontext():
            super().step(optimizer, scaler)

    def facts(self, optimizer: torch.optim.Optimizer) -> dict:
        compression = getattr(optimizer, "_compression", hvd.Compression.none)
        return {
            "gradient": "Adasum" if self.config.adasum else self.gradient,
            "compression": "none" if compression is hvd.Compression.none else "fp16",
            "buffers": "each rank's own" + (", of the global batch" if self.config.norm == "sync" else ""),
        }  # fmt: skip

    def reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        return hvd.allreduce(value, op=REDUCE_OPS[op])

    def gather(self, item: object) -> list:
        return hvd.allgather_object(item)

    def barrier(self) -> None:
        hvd.barrier()

    def close(self) -> None:
        hvd.shutdown()


def sum_over_ranks(value: torch.Tensor) -> torch.Tensor:
    """``value`` summed over all ranks. Horovod matches tensors by name, and remembers what it agreed on for a name: one
    name for each size keeps that memory useful, where unnamed tensors get a new name every time."""
    return hvd.allreduce(value, name=f"batch norm {value.numel()}", op=hvd.Sum)


def mark(name: str) -> None:
    """A reduction of one number, by whose name a moment is found in Horovod's own timeline."""
    hvd.allreduce(torch.zeros(1), name=name)
