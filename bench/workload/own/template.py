"""A model and data of your own: change what is between the lines, and run

bench run --mode ddp --gpus 2 --model FILE:build --data FILE:datasets

tutorials/manual/own_model.md of data-parallel-bench says what each function gets and returns.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 4


def build(num_outputs: int) -> nn.Module:
    """The model. Every rank calls it; the mode makes the replicas equal."""
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, num_outputs))


def datasets() -> tuple:
    """(training set, validation set or None, number of outputs). Every rank returns the whole sets: the bench shares
    them out. Random numbers are seeded with SEED before this is called."""
    centres = 2 * torch.randn(CLASSES, 16)
    return (*(around(centres, count) for count in (2048, 512)), CLASSES)


def around(centres: torch.Tensor, count: int) -> TensorDataset:
    """Points round the centres; which centre is their class."""
    classes = torch.randint(CLASSES, (count,))
    return TensorDataset(centres[classes] + torch.randn(count, 16), classes)


# --- what follows may be left out ---------------------------------------------------------------------------------


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A scalar: the mean over the batch. Without it: cross-entropy for classes, the mean square error for numbers."""
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def score(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[batch]: how good each output is, larger is better. Without it: 1 for the right class, minus the square error."""
    return (outputs.argmax(1) == targets).float()


def step(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple:
    """(outputs, loss): the forward pass. The backward pass, the exchange and the optimizer's step are the mode's."""
    outputs = model(inputs)
    return outputs, loss(outputs, targets)
