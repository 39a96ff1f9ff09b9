"""MODE=dp: ``nn.DataParallel``. One process, one thread per device, one optimizer.

Each step:
  1. scatter    the global batch is cut into one chunk per device;
  2. replicate  the weights are copied from device 0 to every device, every step;
  3. forward    one Python thread per device runs its replica on its chunk;
  4. gather     the outputs are collected on device 0, and the loss is computed there on the whole batch;
  5. backward   gradients flow back through the copies of step 2 and SUM into the originals on device 0. The loss is
                a mean over the whole batch, so the sum of the chunks' gradients is the gradient of the mean;
  6. step       one optimizer, on device 0. Nothing to broadcast: the next step copies the weights again.

What to notice:
  - device 0 holds the originals, their gradients, the optimizer's state and all outputs: it fills up first;
  - the threads share one interpreter lock, and the copies of step 2 are paid every step;
  - replicas cannot start with different weights: there is one set of weights;
  - batch norm: each replica normalises with the statistics of its own chunk, and only replica 0's running
    statistics are kept, since the other replicas are thrown away.
"""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn.parallel import scatter_gather

from bench import structure
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.modes import base


class Mode(base.Mode):
    """``nn.DataParallel`` on GPUs; the same algorithm over CPU replicas where there are none."""

    def __init__(self, config: RunConfig):
        super().__init__(config)
        device = self.topology.device
        self.on_cpu = device.type == "cpu"
        self.topology = base.Topology(0, 0, 1, config.num_devices, device)
        if self.on_cpu:
            how = "one after the other" if config.activation_checkpointing else "in threads"
            self.label = f"CPU replicas {how}: nn.DataParallel itself passes straight through on a CPU"
        elif config.num_devices > 1:  # only device 0's weights could be N H W C, but their gradients would not be
            self.contiguous_weights = "nn.DataParallel sends copies as one flat tensor, and they come back so"

    def wrap_model(self, model: nn.Module) -> nn.Module:
        watched = bool(self.timeline or self.config.memory)
        wrapped = self.on_all_devices(model, watched)
        if watched:
            wrapped.mode = self
        if self.timeline:
            self.timeline.all_threads = True  # includes the replicas' computation
        return wrapped

    def on_all_devices(self, plain: nn.Module, watched: bool = False) -> nn.Module:
        kind = CpuDataParallel if self.on_cpu else DataParallel
        kind = type(f"Watched{kind.__name__}", (Watched, kind), {}) if watched else kind
        if self.on_cpu:
            return kind(plain, self.config.num_devices, self.config.threads)
        return kind(plain, device_ids=[d.index for d in self.topology.devices])

    def compute_in_calling_thread(self, model: nn.Module) -> None:
        if self.on_cpu:
            model.in_turn()

    def kept_replicas(self, model: nn.Module) -> tuple[nn.Module, ...]:
        return model.shells if self.on_cpu else ()

    @contextlib.contextmanager
    def step_only_tensors(self, model, note) -> Iterator[None]:
        """On a GPU: the replicas, with their part of the batch. CPU replicas stay, and the batch is not copied."""
        model.note = None if self.on_cpu else note
        yield
        model.note = None

    def wrap_replicas(self, models: list[nn.Module]) -> nn.Module:
        return CpuDataParallel(models[0], len(models), 1, tuple(models[1:])).in_turn()

    def compute_threads(self) -> int:
        return max(super().compute_threads(), self.config.num_devices if self.on_cpu else 1)  # a replica has at least 1

    def facts(self, optimizer: torch.optim.Optimizer) -> dict:
        return super().facts(optimizer) | {"buffers": "replica 0's are kept"}

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module

    def eval_model(self, model: nn.Module) -> nn.Module:
        return model  # all devices validate, each on its chunk


class DataParallel(nn.DataParallel):
    """``nn.DataParallel`` whose replicas compute in the dtype of the caller's autocast, and take and return objects of
    tensors.

    PyTorch enables autocast in a replica's thread, but does not set its dtype: under a bf16 autocast the replicas would
    compute in fp16, a thread's default. It gives every replica the same object, with tensors on device 0, and cannot
    gather objects.
    """

    def scatter(self, inputs, kwargs, device_ids):
        calls = scattered(inputs, kwargs, lambda tensor: scatter_gather.scatter(tensor, device_ids, self.dim))
        return [args for args, _ in calls], [options for _, options in calls]

    def gather(self, outputs, output_device):
        return gathered(outputs, lambda tensors: scatter_gather.gather(tensors, output_device, self.dim))

    def parallel_apply(self, replicas, inputs, kwargs):
        device_type = self.src_device_obj.type
        return super().parallel_apply([in_this_autocast(r, device_type) for r in replicas], inputs, kwargs)


def scattered(inputs: tuple, kwargs: dict, cut: Callable) -> list[tuple]:
    """(positional, keyword arguments) of each replica's call. cut: one tensor -> a piece for each replica, fewer for a
    small batch. Other objects go to all. Raises UserError for tensors of different lengths, which ``nn.DataParallel``
    would split by their own first dimension, dropping the rest."""
    shapes = [list(tensor.shape) for tensor in structure.tensors((inputs, kwargs))]
    if [] in shapes or len({shape[0] for shape in shapes}) > 1:
        raise UserError(
            "MODE=dp: nn.DataParallel cuts every tensor in the model's arguments along its first dimension, which "
            f"must be the batch; these are {', '.join(map(str, shapes))}: use another mode, or pass only the batch"
        )
    return structure.split((inputs, kwargs), cut)


def gathered(outputs: list, join: Callable):
    """The replicas' outputs as one structure. join: a list of tensors -> one."""
    try:
        return structure.join(outputs, join)
    except ValueError:
        counts = ", ".join(str(len(structure.tensors(output))) for output in outputs)
        raise UserError(f"MODE=dp: the replicas returned different numbers of tensors ({counts}), which cannot be "
                        "gathered: return the same structure for any part of a batch") from None  # fmt: skip


def in_this_autocast(replica: Callable, device_type: str) -> Callable:
    """``replica`` for calls in any thread, with this thread's current autocast."""
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)

    def call(*inputs, **options):
        with torch.autocast(device_type, enabled=enabled, dtype=dtype):
            return replica(*inputs, **options)

    return call


class CpuDataParallel(nn.Module):
    """nn.DataParallel's algorithm with CPU replicas in threads. On a CPU ``nn.DataParallel`` only calls the module;
    this class does the same as on GPUs, so that the strategy can be run, read and tested anywhere.

    num_replicas: chunks of the batch. threads: CPU threads in total, shared by the replicas in the forward pass;
    backward runs in the calling thread, which has them all. shells: of the replicas but the first.
    """

    def __init__(self, module: nn.Module, num_replicas: int, threads: int, shells: tuple[nn.Module, ...] = ()):
        super().__init__()
        self.module, self.num_replicas = module, num_replicas
        # One shell per replica: a copy of the module whose tensors are replaced at every forward, as swapping the
        # tensors of ONE module is not safe in two threads. In a tuple the shells are not submodules of the model.
        self.shells = shells or tuple(copy.deepcopy(module) for _ in range(num_replicas - 1))
        # One thread per replica: in a common pool a fast thread could take two. The number of OpenMP threads belongs to
        # the thread that sets it.
        self.threads = [
            ThreadPoolExecutor(1, f"replica-{i}", lambda: torch.set_num_threads(max(1, threads // num_replicas)))
            for i in range(num_replicas)
        ]
        # A block is computed again with the random numbers of its first computation, which on a CPU it would share with
        # other threads.
        if any(hasattr(each, "recomputed") for each in module.modules()):
            self.in_turn()

    def in_turn(self) -> "CpuDataParallel":
        """From now on the replicas compute in the calling thread, one after the other."""
        self.close()
        self.threads = []
        return self

    def close(self) -> None:
        for thread in self.threads:
            thread.shutdown()

    def forward(self, *inputs, **kwargs):
        """The module's own arguments, with tensors [global_batch, …] -> its outputs of the whole batch, in order."""
        calls = self.scatter(inputs, kwargs)
        replicas = self.replicate(len(calls))
        return self.gather(self.parallel_apply(replicas, calls))

    def scatter(self, inputs: tuple, kwargs: dict) -> list[tuple]:
        """The arguments of one call per replica, fewer for a small batch: views of [global_batch / num_replicas, …]."""
        return scattered(inputs, kwargs, lambda tensor: tensor.chunk(self.num_replicas))

    def replicate(self, count: int) -> list[nn.Module]:
        """Replica 0 is the original. Each other one gets a copy of every weight.

        ``clone`` is part of the autograd graph: in backward the gradient of each copy is added to the original's.
        In training the buffers are also copied, and a replica's changes to its copy are lost.
        """
        replicas = [self.module, *self.shells[: count - 1]]
        for replica in replicas[1:]:
            for original, shell in zip(self.module.modules(), replica.modules(), strict=True):
                shell.training = original.training  # one by one: frozen batch norms stay in eval mode
                for name, parameter in original._parameters.items():
                    shell._parameters[name] = None if parameter is None else parameter.clone()
                for name, buffer in original._buffers.items():
                    shell._buffers[name] = None if buffer is None else buffer.detach().clone()
        return replicas

    def parallel_apply(self, replicas: list[nn.Module], calls: list[tuple]) -> list:
        """One thread per replica. Gradient mode and autocast belong to a thread, so they are passed on."""
        grad = torch.is_grad_enabled()

        def apply(replica, inputs, kwargs):
            with torch.set_grad_enabled(grad):
                return replica(*inputs, **kwargs)

        work = [(in_this_autocast(replica, "cpu"), *call) for replica, call in zip(replicas, calls, strict=True)]
        if not self.threads:  # ``in_turn``
            return [apply(*each) for each in work]
        begun = [thread.submit(apply, *each) for thread, each in zip(self.threads, work, strict=False)]
        return [replica.result() for replica in begun]

    def gather(self, outputs: list):
        """Tensors of [global_batch, …] on device 0; for scalars, such as a loss, a vector with one per replica."""
        return gathered(outputs, lambda tensors: torch.cat([t.reshape(1) if not t.dim() else t for t in tensors]))


class Watched:
    """With PROFILE=1 or MEMORY=1, mixed in before either class: the parts of its forward pass are spans of the
    timeline, and ``note`` gets the tensors of the other devices' replicas."""

    mode: Mode
    note: Callable[[str, Iterable[torch.Tensor]], None] | None = None

    def scatter(self, *arguments):
        with self.mode.span("dp", "scatter"):
            return super().scatter(*arguments)

    def replicate(self, *arguments):
        with self.mode.span("dp", "replicate"):
            return super().replicate(*arguments)

    def parallel_apply(self, replicas, *calls):
        if self.note:
            for replica in replicas[1:]:
                self.note("replicas", structure.module_tensors(replica))
            self.note("images", structure.tensors(calls))
        with self.mode.span("dp", "forward"):
            return super().parallel_apply(replicas, *calls)

    def gather(self, *arguments):
        with self.mode.span("dp", "gather"):
            return super().gather(*arguments)
