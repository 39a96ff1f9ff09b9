"""The seam of a workload: data, model, loss and metrics. The training loop, the modes and the meters ask nothing else.

A data set (``load``) has a length; ``dataset[draws]`` are the examples of these draws (sharding.py) as (inputs [B, …],
targets [B, …], names of those that could not be read). Inputs, targets and outputs may be structures of tensors
(batch.py).
"""

from collections.abc import Callable

import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.workload import batch


class Workload:
    """One workload in one process. Every method is asked on every rank.

    config: the run's. device: where this process puts its batches. num_outputs: of the model, known once ``load`` has
    been called.
    """

    num_outputs: int
    classes: list[str] | None = None  # their names, where the data has some; known with num_outputs

    def __init__(self, config: RunConfig, device: torch.device):
        self.config, self.device, self.info = config, device, workload_of(config)

    def load(self, mode, say: Callable[[str], None]) -> tuple:
        """The training set and the validation set; None in place of the second where there is none.

        mode: the open mode, for what processes must tell each other. say: is told now and then how far it is. Raises
        UserError when the data cannot be had, and when one step needs more examples than there are.
        """
        raise NotImplementedError

    def model(self, config: RunConfig, rank: int, say: Callable[[str], None]) -> nn.Module:
        """The plain model on the CPU, before any mode has wrapped it. Each rank draws its own weights (seed + rank)."""
        from bench.workload.models import build_model  # after the data: torchvision takes half a second

        return build_model(config, self.num_outputs, rank, say)

    def prepare(self, inputs: torch.Tensor) -> torch.Tensor:
        """A batch's inputs as the model takes them, on the device."""
        return batch.moved(inputs, self.device)

    def step(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, loss: Callable) -> tuple:
        """The forward pass of a step: (outputs, loss). model: as the mode has wrapped it. loss: outputs, targets ->
        loss, as the script has it."""
        outputs = model(batch.opened(inputs))
        return outputs, loss(outputs, batch.opened(targets))

    def forward(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        """The forward pass of a validation: the outputs. targets: None with ``blank`` inputs."""
        return model(batch.opened(inputs))

    def groups(self, model: nn.Module) -> list:
        """What the optimizer is made of: parameters, or dicts as torch's optimizers take them; ``lr_factor`` of a dict
        multiplies the learning rate."""
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def check(self, model: nn.Module, train_set) -> None:
        """Before any mode wraps it: raise UserError for a model that cannot be trained (or evaluated) on these data."""

    def facts(self, model: nn.Module) -> dict:
        """What a record should say of data and model besides the options: texts and numbers, each with its name."""
        return {}

    def planned(self, examples: int) -> tuple:
        """A batch of so many examples as the loader gives it, without its numbers: (inputs, targets) on the device
        ``meta``, to plan with. Raises UserError for a workload of which that is not known before the data are there."""
        raise UserError(f"the memory of DATA={self.config.data} cannot be predicted: run it once with MEMORY=1")

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What backward starts from: a scalar, the mean over the batch."""
        raise NotImplementedError

    def count(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[1 + metrics]: the sum of the losses, then of each metric of the table, over a batch of a validation."""
        raise NotImplementedError

    def blank(self) -> torch.Tensor:
        """The inputs of one example that counts for nothing: where a forward pass is a collective, a rank that has no
        example left calls the model all the same."""
        raise NotImplementedError
