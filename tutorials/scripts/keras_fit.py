"""Callbacks for ``keras.Model.fit`` on several processes, with Keras 3 on torch, under torchrun or horovodrun.

    import os
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import keras_fit

    ranks = keras_fit.ranks()                       # of torchrun or horovodrun; one where nobody has started several
    model.compile(keras.optimizers.SGD(0.01), ...)  # the learning rate of one process
    model.fit(x[ranks.rank :: ranks.size], y[ranks.rank :: ranks.size], batch_size=32, callbacks=[
        keras_fit.SameStart(ranks),                 # rank 0's weights everywhere; gradients are averaged from here on
        keras_fit.MeanMetrics(ranks),               # the logs are the mean over the ranks, for all callbacks after it
        keras_fit.WarmUp(ranks, steps=500),         # from the learning rate to as many times it as there are ranks
        *keras_fit.on_rank_0(ranks, keras.callbacks.ModelCheckpoint("best.keras")),
    ])

The gradients of a step are exchanged in one message after backward: simple, and not overlapped with it as DDP's buckets
and Horovod's hooks are. Statistics of batch norm are each rank's own, as under Horovod. Copy this file
beside your script: it needs Keras 3 and torch only.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

if (backend := os.environ.setdefault("KERAS_BACKEND", "torch")) != "torch":
    raise ImportError(f"Keras would compute with {backend}: set KERAS_BACKEND=torch before it is imported")
try:
    import keras
except ImportError:
    raise ImportError("keras_fit needs Keras 3: pip install 'keras>=3.5'") from None
if keras.backend.backend() != "torch":
    raise ImportError(f"Keras computes with {keras.backend.backend()}: set KERAS_BACKEND=torch before it is imported")


class Ranks:
    """rank, size: of this process. mean, broadcast: of a tensor, in place, over all; every rank calls them."""

    def __init__(self, rank: int, size: int, mean: Callable, broadcast: Callable):
        self.rank, self.size, self.mean, self.broadcast = rank, size, mean, broadcast


def ranks() -> Ranks:
    """The processes that torchrun or horovodrun has started, joined; one alone without them.

    Under torchrun over NCCL where there are GPUs, else Gloo; each rank takes the GPU of its local rank.
    """
    if "HOROVOD_RANK" in os.environ:
        import horovod.torch as hvd

        hvd.init()
        take_gpu(hvd.local_rank())
        return Ranks(hvd.rank(), hvd.size(), hvd.allreduce_, lambda tensor: hvd.broadcast_(tensor, root_rank=0))
    if "RANK" not in os.environ:
        return Ranks(0, 1, lambda tensor: tensor, lambda tensor: tensor)
    gpus = take_gpu(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        dist.init_process_group("nccl" if gpus else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size(), mean_of_group, lambda tensor: dist.broadcast(tensor, 0))


def take_gpu(local_rank: int) -> bool:
    """This rank's GPU becomes the current one; whether there are GPUs."""
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    return torch.cuda.is_available()


def mean_of_group(tensor: torch.Tensor) -> None:
    """The mean over torch's process group, in place. Gloo has no mean."""
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def as_one(tensors: list[torch.Tensor], exchange: Callable[[torch.Tensor], object]) -> None:
    """Exchange tensors as one message for each type of number, in place."""
    for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == kind]
        flat = torch.cat([tensor.detach().flatten() for tensor in alike])
        exchange(flat)
        with torch.no_grad():
            for tensor, part in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
                tensor.copy_(part.view_as(tensor))


class SameStart(keras.callbacks.Callback):
    """Rank 0's weights and state of the optimizer on all ranks when ``fit`` begins, and the mean of their gradients in
    every step until it ends. The first in the list of callbacks."""

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks = ranks

    def on_train_begin(self, logs=None):
        if self.ranks.size == 1:
            return
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *optimizer.variables]
        for variable in variables:
            tensor = variable.value.detach().clone()
            self.ranks.broadcast(tensor)
            variable.assign(tensor)
        apply = type(optimizer).apply

        def apply_mean(gradients, trainable_variables=None):
            as_one([gradient for gradient in gradients if gradient is not None], self.ranks.mean)
            return apply(optimizer, gradients, trainable_variables)

        optimizer.apply = apply_mean

    def on_train_end(self, logs=None):
        vars(self.model.optimizer).pop("apply", None)


class MeanMetrics(keras.callbacks.Callback):
    """The logs of an epoch become the mean over the ranks, in place, so that all callbacks after it see that: with
    shards of unequal length a rank of few examples counts as much as the others."""

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks = ranks

    def on_epoch_end(self, epoch, logs=None):
        if self.ranks.size > 1 and logs:
            numbers = torch.tensor([float(value) for value in logs.values()], dtype=torch.float64)
            numbers = numbers.cuda() if torch.cuda.is_available() else numbers
            self.ranks.mean(numbers)
            logs.update(zip(logs, numbers.tolist(), strict=True))


class WarmUp(keras.callbacks.Callback):
    """The learning rate, scaled by the number of ranks, reached in a line over the first ``steps`` (Goyal et al. 2017,
    https://arxiv.org/abs/1706.02677). What sets it afterwards, as ReduceLROnPlateau does, has the scaled one."""

    def __init__(self, ranks: Ranks, steps: int = 0):
        super().__init__()
        self.size, self.steps, self.taken, self.alone = ranks.size, steps, 0, None

    def on_train_begin(self, logs=None):
        if self.alone is None:  # a second fit with this callback continues with it
            self.alone = float(self.model.optimizer.learning_rate)

    def on_train_batch_begin(self, batch, logs=None):
        if self.taken <= self.steps:
            self.model.optimizer.learning_rate = self.alone * factor(self.taken, self.steps, self.size)
        self.taken += 1


def factor(step: int, steps: int, size: int) -> float:
    """By what the learning rate of one process is multiplied in a step, counted from 0."""
    return 1 + (size - 1) * (min(1.0, step / steps) if steps else 1.0)


class TensorBoard(keras.callbacks.Callback):
    """``keras.callbacks.TensorBoard`` imports TensorFlow; this one writes the same files by torch, which needs the
    package tensorboard alone: the logs of every epoch, and the learning rate, below ``log_dir``/train and /validation.

    Pass it only on rank 0, after ``MeanMetrics``. Raises ImportError without the package.
    """

    def __init__(self, log_dir="logs"):
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("keras_fit.TensorBoard needs tensorboard: pip install tensorboard") from None
        self.open, self.log_dir, self.writers = SummaryWriter, Path(log_dir), {}

    def write(self, part: str, name: str, value, epoch: int) -> None:
        """A number of an epoch. part: "train" or "validation"."""
        if part not in self.writers:
            self.writers[part] = self.open(self.log_dir / part)
        self.writers[part].add_scalar(f"epoch_{name}", float(value), epoch)

    def on_epoch_end(self, epoch, logs=None):
        for name, value in (logs or {}).items():
            self.write("validation" if name.startswith("val_") else "train", name.removeprefix("val_"), value, epoch)
        self.write("train", "learning_rate", self.model.optimizer.learning_rate, epoch)

    def on_train_end(self, logs=None):
        for writer in self.writers.values():
            writer.close()
        self.writers = {}


def on_rank_0(ranks: Ranks, *callbacks: keras.callbacks.Callback) -> list[keras.callbacks.Callback]:
    """These callbacks on rank 0, and none on the others: what writes files, or prints."""
    return list(callbacks) if ranks.rank == 0 else []
