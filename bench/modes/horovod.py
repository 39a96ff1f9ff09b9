"""MODE=horovod: one process per device; the optimizer is wrapped, the model is not.

At the start: ``broadcast_parameters`` sends rank 0's weights to all. Without it every rank trains from its own.
Each step:
  1. forward and loss on the rank's own batch;
  2. backward: a hook on each parameter hands its gradient to Horovod's background thread, which once a cycle
     (1 ms by default) agrees with the other ranks on what is ready everywhere, packs small tensors into a fusion
     buffer and starts the all-reduce, while backward continues;
  3. ``synchronize()`` waits for all reductions; gradients now hold the MEAN over ranks. ``optimizer.step()`` would
     wait by itself; waiting separately shows what the wait costs, and lets gradients be clipped before the step;
  4. the wrapped optimizer's own step runs.

With ADASUM=1 the wrapped optimizer is another one: the hook of step 2 takes the inner optimizer's step for its
parameter, with the rank's own gradient, and what is exchanged is the CHANGE of the weights (``formulas.adasum``, tensor
by tensor). So nothing is left for ``synchronize()``, momentum is each rank's own, and LR is one device's: no factor N.

What many tutorials do not say:
  - ``broadcast_optimizer_state`` on a FRESH optimizer takes a hidden step with zero gradients, to create state that it
    can send. Adam's step counter is then one ahead and its bias correction wrong: after five steps weights are 9e-3
    off. With weight decay the step moves the weights as well. A fresh optimizer has no state to send, and after a
    resume every rank reads the same file: it is not called;
  - ``zero_grad(set_to_none=True)`` raises: Horovod's takes no argument, and calls PyTorch's with its default;
  - batch norm's buffers are never synchronised after the start: each rank keeps its own running statistics, which
    are equal only with NORM=sync.
"""

import contextlib
import os
from collections.abc import Callable

import horovod.torch as hvd
import torch
from torch import nn

from bench.config.options import Parallel, RunConfig, on_devices
from bench.errors import UserError
from bench.modes import base, sync_batch_norm

CONTIGUOUS_NORMS = "hvd.SyncBatchNorm copies its images to N C H W, a cost that NORM=sync has only under horovod"
REDUCE_OPS = {"sum": hvd.Sum, "mean": hvd.Average, "max": hvd.Max}


class Mode(base.Mode):
    contiguous_weights = "Horovod sends only contiguous tensors"  # a convolution takes such weights as well

    def __init__(self, config: RunConfig):
        self.config = config
        hvd.init()
        # With MIN_DEVICES Horovod sees each rank as a separate host (bench/launch/engines/horovod_elastic.py).
        local_rank = int(os.environ["LOCAL_RANK"]) if in_elastic_run() else hvd.local_rank()
        self.topology = base.Topology(hvd.rank(), local_rank, hvd.size(), 1, base.device_of(config, local_rank))
        self.add_label(base.shared_label(config, "nccl"), "Horovod's ranks talk MPI" if hvd.mpi_enabled() else "")

    @classmethod
    def elastic(cls, config: RunConfig, attempt: Callable) -> None:
        """When a rank is lost, every reduction of the others fails; ``hvd.elastic.run`` catches that, restores the last
        commit, forms a new group of the remaining processes with new ranks, and calls the function again."""
        if not in_elastic_run():
            return super().elastic(config, attempt)
        hvd.init()

        @hvd.elastic.run
        def train(kept: hvd.elastic.TorchState) -> None:
            whole = hvd.size() == config.num_devices
            attempt(on_devices(config, hvd.size(), fault=config.fault if whole else None), kept)

        train(hvd.elastic.TorchState(checkpoint=None))

    def commit(self, checkpoint: Callable[[], bytes]) -> None:
        if self.kept:
            self.kept.checkpoint = checkpoint()
            self.kept.commit()  # raises HostsUpdatedInterrupt, on every rank, where others want to join

    def sync_norms(self, model: nn.Module) -> nn.Module:
        if self.config.channels_last and self.topology.device.type == "cuda":
            self.add_label(CONTIGUOUS_NORMS)
        return sync_batch_norm.synchronise(self, model, hvd.SyncBatchNorm, sum_over_ranks)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        if self.config.init_sync:  # easily forgotten: there is no error without it
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        config = self.config
        if self.timeline:
            self.timeline.watch_engine(mark, hvd.stop_timeline, writes=hvd.rank() == 0)
        if config.adasum:
            require_adasum(config)
        if not (config.sync and config.overlap):
            return optimizer  # no hooks in backward: nothing is sent before synchronize()
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16 if config.compression == "fp16" else hvd.Compression.none,
            op=hvd.Adasum if config.adasum else hvd.Sum if self.sums_gradients else hvd.Average,
            # The hooks count backward passes and send the gradients at the last one: ``no_sync`` keeps its default.
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

    def buckets(self) -> list[int]:
        """The fusion buffer: allocated at the first reduction of several tensors, on a GPU by torch's allocator."""
        if hvd.size() == 1 or self.topology.device.type == "cpu":
            return []
        return [int(os.environ.get("HOROVOD_FUSION_THRESHOLD", 128 * 2**20))]

    def reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        return hvd.allreduce(value, op=REDUCE_OPS[op])

    def gather(self, item: object) -> list:
        return hvd.allgather_object(item)

    def barrier(self) -> None:
        hvd.barrier()

    def exchanges(self):
        return {"all_reduce": lambda value: hvd.allreduce_(value, name=f"sum of {value.numel()}", op=hvd.Sum)}

    def close(self) -> None:
        hvd.shutdown()


def in_elastic_run() -> bool:
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def require_adasum(config: Parallel) -> None:
    if not hvd.mpi_enabled():
        raise UserError("ADASUM=1 needs MPI, but Horovod uses Gloo here: start the ranks with mpirun")
    if config.device == "cuda" and 1 < hvd.size() == hvd.local_size():  # adasum_gpu_operations.cc of 0.28.1
        raise UserError("ADASUM=1 combines machines and averages the GPUs within one: on one machine use DEVICE=cpu")


def sum_over_ranks(value: torch.Tensor) -> torch.Tensor:
    """Horovod matches tensors by name, and caches the negotiation for a name: so one name for each size."""
    return hvd.allreduce(value, name=f"batch norm {value.numel()}", op=hvd.Sum)


def mark(name: str) -> None:
    """A reduction of one number, which marks a time in Horovod's timeline."""
    hvd.allreduce(torch.zeros(1), name=name)
