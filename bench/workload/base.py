"""The seam of a workload: data, model, loss and metrics. The training loop, the modes and the meters ask nothing else.

A data set (``load``) has a length; ``dataset[draws]`` are the examples of these draws (sharding.py) as (inputs [B, …],
targets [B, …], names of those that could not be read).
"""

from collections.abc import Callable

import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.workloads import workload_of


class Workload:
    """One workload in one process. Every method is asked on every rank.

    config: the run's. device: where this process puts its batches. num_outputs: of the model, known once ``load`` has
    been called.
    """

    num_outputs: int

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
        raise NotImplementedError

    def prepare(self, inputs: torch.Tensor) -> torch.Tensor:
        """A batch's inputs as the model takes them, on the device."""
        return inputs.to(self.device, non_blocking=True)

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
