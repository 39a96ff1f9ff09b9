"""The interface of a workload: data, model, loss and metrics. The training loop and the modes use nothing else.

A data set (``load``) has a length; ``dataset[draws]`` (sharding.py) is (inputs [B, …], targets [B, …], names of
unreadable examples). Inputs, targets and outputs may be structures of tensors (batch.py)."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.workload import batch

SAMPLE = 64  # examples at most


class Workload:
    """One workload in one process. Every method is called on every rank. device: of this process's batches."""

    num_outputs: int  # of the model; set by ``load``, like ``classes``
    classes: list[str] | None = None  # their names
    flops: dict = {}  # noqa: RUF012  (facts for the record: flops.py; on rank 0, of a run that trains)

    def __init__(self, config: RunConfig, device: torch.device):
        self.config, self.device, self.info = config, device, workload_of(config)

    def load(self, mode, say: Callable[[str], None]) -> tuple:
        """The training set and the validation set (or None). mode: the open mode. say: takes progress messages. Raises
        UserError if the data are not available, or if one step needs more examples than there are."""
        raise NotImplementedError

    def model(self, config: RunConfig, rank: int, say: Callable[[str], None]) -> nn.Module:
        """The plain model on the CPU. Each rank draws its own weights (seed + rank)."""
        from bench.workload.models import build_model  # after the data: importing torchvision takes half a second

        return build_model(config, self.num_outputs, rank, say)

    def prepare(self, inputs: torch.Tensor) -> torch.Tensor:
        """A batch's inputs in the model's format, on the device."""
        return batch.moved(inputs, self.device)

    def step(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, loss: Callable) -> tuple:
        """The forward pass of a step: (outputs, loss). model: wrapped by the mode. loss: outputs, targets -> loss."""
        outputs = model(batch.opened(inputs))
        return outputs, loss(outputs, batch.opened(targets))

    def forward(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        """The forward pass of a validation: the outputs. targets: None with ``blank`` inputs."""
        return model(batch.opened(inputs))

    def groups(self, model: nn.Module) -> list:
        """The optimizer's parameters or parameter groups; ``lr_factor`` of a group multiplies the learning rate."""
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def check(self, model: nn.Module, train_set) -> None:
        """Before the mode wraps the model: raise UserError if it cannot be trained on these data."""

    def facts(self, model: nn.Module) -> dict:
        """Further texts and numbers for the record."""
        return {}

    def sample(self, train_set) -> tuple:
        """A batch of the first examples, (inputs, targets), with the shapes that the plain model gets."""
        return train_set[np.arange(min(len(train_set), self.config.per_device_batch, SAMPLE))][:2]

    def planned(self, examples: int) -> tuple:
        """A batch of this many examples, (inputs, targets) on the device ``meta``, to predict memory. Raises UserError
        if the shapes are unknown without the data."""
        raise UserError(f"the memory of DATA={self.config.data} cannot be predicted: run it once with MEMORY=1")

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """A scalar: the mean over the batch."""
        raise NotImplementedError

    def count(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[1 + metrics]: the sum of the losses, then of each metric, over a batch of a validation."""
        raise NotImplementedError

    def blank(self) -> torch.Tensor:
        """The inputs of one example that does not count, for a rank without remaining examples whose forward pass is a
        collective."""
        raise NotImplementedError
